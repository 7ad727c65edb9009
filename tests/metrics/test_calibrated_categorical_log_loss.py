import math

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import log_softmax, softmax

from backends import JIT_COMPILE, digits, examples, few_lengths, update_step
from keras_calibration._ops.class_temperature import log_partition_sum, temperature_sums
from keras_calibration._ops.folds import hashed_uniform
from keras_calibration.metrics import (
    CalibratedCategoricalLogLoss,
)

MODES = [
    {"num_folds": 1},
    {"num_folds": 2},
    {"num_folds": 3, "seed": 7},
    {"bias_fraction": 0.3},
]
KEY = "calibrated_categorical_log_loss"


def parts(num_rows, num_folds=2, bias_fraction=None, seed=0):
    uniform = np.asarray(hashed_uniform(np.arange(num_rows, dtype="int32"), seed), np.float64)
    if bias_fraction is not None:
        fit = uniform < np.float32(bias_fraction)
        return [(fit, ~fit)]
    fold = np.floor(uniform * num_folds).astype(int)
    scores = [fold == number for number in range(num_folds)]
    return [(~part if num_folds > 1 else part, part) for part in scores]


def best_beta(labels, logits, weights):
    """Root of the derivative of the log loss, clipped to [1/16, 16]; NaN where there is none."""
    offset = logits - logits.max(axis=1, keepdims=True)
    if not weights.sum() > 0 or not offset[weights > 0].any():
        return math.nan

    def slope(beta):
        probabilities = softmax(beta * offset, axis=1)
        return np.sum(weights[:, None] * (probabilities - labels) * offset)

    if slope(1 / 16) >= 0:
        return 1 / 16
    return 16.0 if slope(16.0) <= 0 else brentq(slope, 1 / 16, 16.0, xtol=1e-13)


def reference(labels, logits, weights=None, **mode):
    labels, logits = np.asarray(labels, np.float64), np.asarray(logits, np.float64)
    weights = np.ones(len(labels)) if weights is None else weights
    # A row of weight 0 is no row: it has no number, and is in no fold.
    labels, logits, weights = (column[weights > 0] for column in (labels, logits, weights))
    total = scored = 0.0
    for fit, score in parts(len(labels), **mode):
        beta = best_beta(labels[fit], logits[fit], weights[fit])
        losses = -np.sum(labels[score] * log_softmax(beta * logits[score], axis=1), axis=1)
        total += np.sum(weights[score] * losses) + 0 * beta
        scored += np.sum(weights[score])
    return total / scored if scored > 0 else math.nan


def update(metric, labels, predictions, weights=None, batch_size=None):
    batch_size = batch_size or max(len(labels), 1)
    for start in range(0, len(labels), batch_size):
        part = slice(start, start + batch_size)
        part_weights = None if weights is None else weights[part]
        metric.update_state(labels[part], predictions[part], part_weights)
    return metric


def score(labels, logits, weights=None, batch_size=None, **arguments):
    metric = CalibratedCategoricalLogLoss(from_logits=True, **arguments)
    return float(update(metric, labels, logits, weights, batch_size).result())


def draw(rng, num_rows, num_classes, temperature):
    """Labels of softmax(logits), and logits that are too sure by the temperature."""
    logits = rng.normal(0, 1.5, (num_rows, num_classes))
    classes = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
    return np.eye(num_classes)[classes], temperature * logits, rng.exponential(size=num_rows)


@pytest.fixture(scope="module")
def rows():
    return draw(np.random.default_rng(0), 2001, 4, 1.7)


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("case", ["plain", "weights", "soft labels"])
def test_equals_reference(rows, mode, case):
    labels, logits, weights = rows
    weights = None if case == "plain" else weights
    labels = 0.8 * labels + 0.05 if case == "soft labels" else labels
    expected = reference(labels, logits, weights, **mode)
    assert score(labels, logits, weights, **mode) == pytest.approx(expected, abs=digits(1e-8))
    assert score(labels, logits, weights, 97, **mode) == pytest.approx(expected, abs=digits(1e-8))


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("num_classes", [2, 3, 10, 100])
@pytest.mark.parametrize("temperature", [0.1, 0.5, 1.0, 4.1, 11.0])
def test_any_number_of_classes_and_temperature(num_classes, temperature):
    labels, logits, _ = draw(np.random.default_rng(1), 500, num_classes, temperature)
    metric = CalibratedCategoricalLogLoss(1, from_logits=True)
    result = float(update(metric, labels, logits).result())
    assert result == pytest.approx(reference(labels, logits, num_folds=1), abs=digits(1e-8))
    expected = 1 / best_beta(labels, logits, np.ones(500))
    np.testing.assert_allclose(metric.temperature, [expected], rtol=digits(1e-6, 1e-4))


def test_interpolation_error_of_single_rows():
    rng = np.random.default_rng(0)
    spread = np.exp(rng.uniform(-3, 6, (3000, 9)))
    spread[::2] = spread[::2, :1]
    logits = -np.c_[np.zeros(3000), spread]
    sums = temperature_sums(logits, np.ones(3000), np.arange(3000, dtype="int32"), 3000)
    for beta in (0.0701, 0.42, 0.96, 1.0, 1.13, 6.9, 15.0):
        received = log_partition_sum(sums, np.full(3000, beta))
        expected = np.log(np.sum(np.exp(beta * logits), axis=1))
        np.testing.assert_allclose(received, expected, rtol=0, atol=digits(2e-8))
    received = log_partition_sum(sums, np.ones(3000))
    np.testing.assert_allclose(
        received, np.log(np.sum(np.exp(logits), axis=1)), rtol=0, atol=digits(1e-14)
    )


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
@pytest.mark.parametrize("dtype", ["int64", "uint8", "float32"])
def test_class_numbers_equal_one_hot(rows, mode, shape, dtype):
    labels, logits, weights = rows
    metric = CalibratedCategoricalLogLoss(from_logits=True, **mode)
    update(metric, np.argmax(labels, axis=1).astype(dtype).reshape(shape), logits, weights, 300)
    assert float(metric.result()) == pytest.approx(
        score(labels, logits, weights, **mode), abs=digits(1e-12)
    )


@pytest.mark.parametrize("make", [np.asarray, lambda p: p.astype("float32")])
def test_probabilities_equal_logits(rows, make):
    labels, logits, weights = rows
    metric = CalibratedCategoricalLogLoss()
    result = float(update(metric, labels, make(softmax(logits, axis=1)), weights).result())
    assert result == pytest.approx(reference(labels, logits, weights), abs=digits(1e-6))


def test_probabilities_of_exactly_0_and_1_stay_finite(rows):
    labels, logits, _ = rows
    probabilities = softmax(logits, axis=1).astype("float32")
    probabilities[:50] = np.eye(4)[np.arange(50) % 4]
    metric = CalibratedCategoricalLogLoss()
    expected = reference(labels, np.log(np.maximum(probabilities, 2.0**-53)))
    assert float(update(metric, labels, probabilities).result()) == pytest.approx(
        expected, abs=digits(1e-6)
    )


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_constant_added_to_the_logits_of_a_row_changes_nothing(rows, mode):
    labels, logits, weights = rows
    shifted = logits + np.random.default_rng(0).choice([-1e4, 0.0, 300.0], (2001, 1))
    assert score(labels, shifted, weights, **mode) == pytest.approx(
        score(labels, logits, weights, **mode), abs=digits(1e-10)
    )


def test_in_sample_is_never_above_the_log_loss(rows):
    labels, logits, _ = rows
    for factor in (0.2, 0.6, 1.0, 3.0):
        log_loss = -np.mean(np.sum(labels * log_softmax(factor * logits, axis=1), axis=1))
        assert score(labels, factor * logits, num_folds=1) <= log_loss + 1e-9


def test_temperature_is_clipped_at_both_ends(rows):
    _, logits, _ = rows
    metric = CalibratedCategoricalLogLoss(1, from_logits=True)
    best = np.eye(4)[np.argmax(logits, axis=1)]
    np.testing.assert_allclose(update(metric, best, logits).temperature, [1 / 16])
    expected = -np.mean(np.sum(best * log_softmax(16 * logits, axis=1), axis=1))
    assert float(metric.result()) == pytest.approx(expected, abs=digits(1e-8))
    metric.reset_state()
    worst = np.eye(4)[np.argmin(logits, axis=1)]
    np.testing.assert_allclose(update(metric, worst, logits).temperature, [16.0])


def spoil(kind, labels, logits, weights, row):
    labels, logits, weights = labels.copy(), logits.copy(), weights.copy()
    target, value = {
        "nan logit": (logits[row], [0.0, math.nan, 1.0, 0.0]),
        "infinite logit": (logits[row], [0.0, math.inf, 1.0, 0.0]),
        "masked logit": (logits[row], [0.0, -math.inf, 1.0, 0.0]),
        "nan label": (labels[row], [math.nan, 0.0, 0.0, 1.0]),
        "no label": (labels[row], [0.0, 0.0, 0.0, 0.0]),
        "two labels": (labels[row], [1.0, 1.0, 0.0, 0.0]),
        "label of 2": (labels[row], [2.0, -1.0, 0.0, 0.0]),
        "negative weight": (weights[row : row + 1], -1.0),
        "nan weight": (weights[row : row + 1], math.nan),
        "infinite weight": (weights[row : row + 1], math.inf),
    }[kind]
    target[:] = value
    return labels, logits, weights


@pytest.mark.quick_cases(8)
@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize(
    "kind",
    [
        "nan logit",
        "infinite logit",
        "masked logit",
        "nan label",
        "no label",
        "two labels",
        "label of 2",
        "negative weight",
        "nan weight",
        "infinite weight",
    ],
)
def test_one_bad_row_gives_nan(rows, mode, kind):
    rows = [array[:100] for array in rows]
    assert math.isfinite(score(*rows, **mode))
    for row in (4, 50):
        assert math.isnan(score(*spoil(kind, *rows, row), 30, **mode))


NO_DISTRIBUTIONS = [[0.5] * 4, [1.2, -0.2, 0.0, 0.0], [math.nan, 1.0, 0.0, 0.0], [0.0] * 4]


@pytest.mark.parametrize("jit_compile", JIT_COMPILE)
def test_what_is_no_distribution_gives_nan(rows, jit_compile):
    labels, logits, _ = (array[:100] for array in rows)
    metric = CalibratedCategoricalLogLoss()
    step = update_step(metric, jit_compile)
    for bad in NO_DISTRIBUTIONS:
        probabilities = softmax(logits, axis=1)
        metric.reset_state()
        step(labels, probabilities)
        assert math.isfinite(float(metric.result()))
        probabilities[7] = bad
        step(labels, probabilities)
        assert math.isnan(float(metric.result())), bad


@pytest.mark.parametrize("bad", [-1, 4, 1.5, math.nan, 2.0**40])
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_label_that_is_no_class_gives_nan(rows, bad, mode):
    labels, logits, _ = (array[:100] for array in rows)
    classes = np.argmax(labels, axis=1).astype(float)
    classes[20] = bad
    metric = CalibratedCategoricalLogLoss(from_logits=True, **mode)
    assert math.isnan(float(update(metric, classes, logits).result()))


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_nothing_to_tell_gives_nan(rows, mode):
    labels, logits, _ = rows
    assert math.isnan(float(CalibratedCategoricalLogLoss(**mode).result()))
    assert math.isnan(score(labels, logits, np.zeros(2001), **mode))
    # No temperature is better than another.
    assert math.isnan(score(labels, np.tile(logits[:, :1], 4), **mode))


@settings(max_examples=examples(25))
@given(
    few_lengths(
        st.tuples(
            st.integers(0, 2),
            st.integers(-60, 60).map(lambda quarters: quarters / 4),
            st.sampled_from([-2.0, 0.0, 0.5, 40.0]),
            st.sampled_from([0.0, 0.1, 1.0, 2.5]),
        ),
        max_size=20,
    ),
    st.sampled_from(MODES),
    st.integers(1, 7),
)
def test_equals_reference_on_any_few_rows(rows, mode, batch_size):
    classes, first, second, weights = np.array(rows, np.float64).reshape(-1, 4).T
    labels, logits = np.eye(3)[classes.astype(int)], np.c_[first, second, np.zeros(len(first))]
    expected = reference(labels, logits, weights, **mode)
    result = score(labels, logits, weights, batch_size, **mode)
    # So few rows may leave β to the last digits of a loss that is flat on them.
    assert result == pytest.approx(expected, rel=1e-5, abs=digits(1e-6), nan_ok=True)


@pytest.mark.parametrize(
    ("labels", "predictions", "weights", "message"),
    [
        ([[0, 1]], [0.5, 0.5], None, "CalibratedLogLoss"),
        ([[1], [1]], [[0.5], [0.5]], None, "K ≥ 2"),
        ([[[0]], [[1]]], [[0.5, 0.5], [0.5, 0.5]], None, "class numbers"),
        ([0, 1], [[0.5, 0.5]], None, "shape"),
        ([[0, 0, 1]], [[0.5, 0.5]], None, "shape"),
        ([[0, 1]], [[0.5, 0.5], [0.5, 0.5]], None, "shape"),
        ([[0, 1]], [[0.5, 0.5]], [1.0, 1.0], "2 entries for 1 pred"),
    ],
)
def test_rows_that_do_not_align_are_refused(labels, predictions, weights, message):
    with pytest.raises(ValueError, match=message):
        CalibratedCategoricalLogLoss().update_state(labels, predictions, weights)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1.0, 1e25])
def test_in_float32(rows, scale):
    labels, logits, weights = rows
    logits = logits.copy()
    logits[0, 0] = -scale
    labels = labels.copy()
    labels[0] = [0, 1, 0, 0]
    result = score(labels, logits, weights, 97, dtype="float32")
    assert result == pytest.approx(reference(labels, logits, weights), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "jit_compile"),
    [
        pytest.param("float32", True, marks=pytest.mark.slow),
        ("mixed_bfloat16", JIT_COMPILE[0]),
    ],
)
def test_in_a_model_that_is_saved_and_loaded(rows, tmp_path, policy, jit_compile):
    labels, logits, weights = rows
    keras.config.set_dtype_policy(policy)
    try:
        model = keras.Sequential([keras.Input((4,)), keras.layers.Softmax()])
        model.compile(
            loss="sparse_categorical_crossentropy",
            metrics=[CalibratedCategoricalLogLoss(name="plain")],
            weighted_metrics=[CalibratedCategoricalLogLoss(3)],
            jit_compile=jit_compile,
        )
    finally:
        keras.config.set_dtype_policy("float32")
    x, w = logits.astype("float32"), weights.astype("float32")
    y = np.argmax(labels, axis=1)
    arguments = {"sample_weight": w, "batch_size": 667, "verbose": 0, "return_dict": True}
    scores = model.evaluate(x, y, **arguments)
    probabilities = np.asarray(model.predict(x, verbose=0), np.float64)
    given = (labels, np.log(np.maximum(probabilities, 2.0**-53)))
    assert scores["plain"] == pytest.approx(reference(*given), rel=digits(1e-5, 1e-4))
    assert scores[f"sparse_{KEY}"] == pytest.approx(
        reference(*given, w, num_folds=3), rel=digits(1e-5, 1e-4)
    )
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.evaluate(x, y, **arguments) == pytest.approx(scores, rel=digits(1e-6))
