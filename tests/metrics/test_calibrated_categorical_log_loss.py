"""What is asked of the loss of several classes beside its reference (`test_references.py`)."""

import math

import numpy as np
import pytest
from scipy.special import log_softmax, softmax

from backends import JIT_COMPILE, digits, update_step
from keras_calibration._ops.class_temperature import log_partition_sum, temperature_sums
from keras_calibration.metrics import CalibratedCategoricalLogLoss
from metric_references import Rows, best_inverse_temperature, calibrated_class_loss

MODES = [{"num_folds": 1}, {}, {"bias_fraction": 0.3}]


def as_rows(labels, logits, weights=None):
    weights = np.ones(len(labels)) if weights is None else weights
    return Rows(labels, logits, weights, np.arange(len(labels)), weights, from_logits=True)


def score(labels, logits, weights=None, **arguments):
    metric = CalibratedCategoricalLogLoss(from_logits=True, **arguments)
    metric.update_state(labels, logits, weights)
    return float(metric.result())


def draw(rng, num_rows, num_classes, temperature):
    """Labels of softmax(logits), and logits that are too sure by the temperature."""
    logits = rng.normal(0, 1.5, (num_rows, num_classes))
    classes = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
    return np.eye(num_classes)[classes], temperature * logits, rng.exponential(size=num_rows)


@pytest.fixture(scope="module")
def rows():
    return draw(np.random.default_rng(0), 501, 3, 1.7)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("num_classes", [10, 2, 100])
@pytest.mark.parametrize("temperature", [0.1, 1.0, 4.1, 11.0])
def test_any_number_of_classes_and_temperature(num_classes, temperature):
    # More than the 512 rows to which smaller batches are filled up.
    labels, logits, _ = draw(np.random.default_rng(1), 600, num_classes, temperature)
    metric = CalibratedCategoricalLogLoss(1, from_logits=True)
    metric.update_state(labels, logits)
    class_rows = as_rows(labels, logits)
    loss = calibrated_class_loss(class_rows, num_folds=1)
    assert float(metric.result()) == pytest.approx(loss, abs=digits(1e-8))
    expected = 1 / best_inverse_temperature(class_rows)
    np.testing.assert_allclose(metric.temperature, [expected], rtol=digits(1e-6, 1e-4))


def test_interpolation_error_of_single_rows():
    rng = np.random.default_rng(0)
    spread = np.exp(rng.uniform(-3, 6, (1000, 9)))
    spread[::2] = spread[::2, :1]
    logits = -np.c_[np.zeros(1000), spread]
    sums = temperature_sums(logits, np.ones(1000), np.arange(1000, dtype="int32"), 1000)
    for beta in (0.0701, 0.42, 0.96, 1.0, 1.13, 6.9, 15.0):
        received = log_partition_sum(sums, np.full(1000, beta))
        expected = np.log(np.sum(np.exp(beta * logits), axis=1))
        np.testing.assert_allclose(received, expected, rtol=0, atol=digits(2e-8))
    received = log_partition_sum(sums, np.ones(1000))
    np.testing.assert_allclose(
        received, np.log(np.sum(np.exp(logits), axis=1)), rtol=0, atol=digits(1e-14)
    )


def test_class_numbers_equal_one_hot(rows):
    labels, logits, weights = rows
    expected = pytest.approx(score(labels, logits, weights), abs=digits(1e-12))
    classes = np.argmax(labels, axis=1)
    for numbers in (classes, classes.astype("uint8")[:, None], classes.astype("float32")):
        assert score(numbers, logits, weights) == expected


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_constant_added_to_the_logits_of_a_row_changes_nothing(rows, mode):
    labels, logits, weights = rows
    shifted = logits + np.random.default_rng(0).choice([-1e4, 0.0, 300.0], (501, 1))
    assert score(labels, shifted, weights, **mode) == pytest.approx(
        # In float32, a logit of 1e4 is known to 5e-4.
        score(labels, logits, weights, **mode),
        abs=digits(1e-10, 1e-4),
    )


def test_temperature_is_clipped_at_both_ends(rows):
    _, logits, _ = rows
    metric = CalibratedCategoricalLogLoss(1, from_logits=True)
    for choose, temperature in ((np.argmax, 1 / 16), (np.argmin, 16)):
        labels = np.eye(3)[choose(logits, axis=1)]
        metric.reset_state()
        metric.update_state(labels, logits)
        np.testing.assert_allclose(metric.temperature, [temperature])
        expected = -np.mean(np.sum(labels * log_softmax(logits / temperature, axis=1), axis=1))
        assert float(metric.result()) == pytest.approx(expected, abs=digits(1e-8))


# Beside what the contract of all metrics has.
BAD_ROWS = {
    "masked logit": ("logits", [0.0, -math.inf, 1.0]),
    "no label": ("labels", [0.0, 0.0, 0.0]),
    "two labels": ("labels", [1.0, 1.0, 0.0]),
    "label of 2": ("labels", [2.0, -1.0, 0.0]),
}


@pytest.mark.parametrize(("column", "value"), BAD_ROWS.values(), ids=BAD_ROWS)
def test_one_bad_row_gives_nan(rows, column, value):
    names = ("labels", "logits", "weights")
    columns = {name: values[:100].copy() for name, values in zip(names, rows, strict=True)}
    columns[column][50] = value
    for mode in MODES:
        assert math.isnan(score(*columns.values(), **mode))


def test_a_label_that_is_no_class_and_equal_logits_give_nan(rows):
    labels, logits, _ = (array[:100] for array in rows)
    for bad in (-1, 3, 1.5, math.nan, 2.0**40):
        classes = np.argmax(labels, axis=1).astype(float)
        classes[20] = bad
        assert math.isnan(score(classes, logits)), bad
    # No temperature is better than another.
    assert math.isnan(score(labels, np.tile(logits[:, :1], 3)))


@pytest.mark.parametrize("jit_compile", JIT_COMPILE)
def test_what_is_no_distribution_gives_nan(rows, jit_compile):
    labels, logits, _ = (array[:100] for array in rows)
    metric = CalibratedCategoricalLogLoss()
    step = update_step(metric, jit_compile)
    for bad in ([0.5] * 3, [1.2, -0.2, 0.0], [math.nan, 1.0, 0.0], [0.0] * 3):
        probabilities = softmax(logits, axis=1)
        probabilities[7] = bad
        metric.reset_state()
        step(labels, probabilities)
        assert math.isnan(float(metric.result())), bad


@pytest.mark.parametrize("scale", [1.0, 1e25])
def test_a_far_logit_in_float32(rows, scale):
    labels, logits, weights = (array.copy() for array in rows)
    logits[0, 0], labels[0] = -scale, [0, 1, 0]
    expected = calibrated_class_loss(as_rows(labels, logits, weights))
    assert score(labels, logits, weights, dtype="float32") == pytest.approx(expected, rel=1e-5)
