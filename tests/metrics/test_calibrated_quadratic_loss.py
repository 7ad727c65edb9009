import math

import keras
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from backends import FLOATS, digits, examples, few_lengths, needs_float64
from keras_calibration._ops.folds import hashed_uniform
from keras_calibration.metrics import CalibratedQuadraticLoss
from metric_references import counted

MODES = [
    {"num_folds": 1},
    {"num_folds": 2},
    {"num_folds": 3, "seed": 7},
    {"bias_fraction": 0.3},
]
CORRECTIONS = ["bias", "linear"]
KEY = "calibrated_quadratic_loss"


def parts(num_rows, num_folds=2, bias_fraction=None, seed=0):
    uniform = np.asarray(hashed_uniform(np.arange(num_rows, dtype="int32"), seed), np.float64)
    if bias_fraction is not None:
        fit = uniform < np.float32(bias_fraction)
        return [(fit, ~fit)]
    fold = np.floor(uniform * num_folds).astype(int)
    scores = [fold == number for number in range(num_folds)]
    return [(~part if num_folds > 1 else part, part) for part in scores]


def line(labels, predictions, weights, correction):
    """Bias and slope by least squares on centred rows; NaN where there are none."""
    if not weights.sum() > 0:
        return math.nan, math.nan
    mean_label = np.average(labels, weights=weights)
    mean_prediction = np.average(predictions, weights=weights)
    if correction == "bias":
        return np.average(labels - predictions, weights=weights), 1.0
    offset = predictions - mean_prediction
    if len(set(predictions[weights > 0])) < 2:
        return math.nan, math.nan
    slope = np.sum(weights * offset * (labels - mean_label)) / np.sum(weights * offset**2)
    return mean_label - slope * mean_prediction, slope


def reference(labels, predictions, weights=None, correction="bias", **mode):
    weights = np.ones(len(labels)) if weights is None else weights
    total = scored = 0.0
    for fit, score in parts(len(labels), **mode):
        bias, slope = line(labels[fit], predictions[fit], weights[fit], correction)
        error = labels[score] - predictions[score] - bias - (slope - 1) * predictions[score]
        total += np.sum(weights[score] * error**2) + 0 * bias
        scored += np.sum(weights[score])
    return total / scored if scored > 0 else math.nan


def score(labels, predictions, weights=None, batch_size=None, **arguments):
    metric = CalibratedQuadraticLoss(**arguments)
    batch_size = batch_size or max(len(labels), 1)
    for start in range(0, len(labels), batch_size):
        part = slice(start, start + batch_size)
        part_weights = None if weights is None else weights[part]
        metric.update_state(labels[part], predictions[part], part_weights)
    return float(metric.result())


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    predictions = rng.normal(7, 3, 2001)
    labels = 2 + 0.8 * predictions + rng.normal(size=2001)
    return labels, predictions, rng.exponential(size=2001)


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("correction", CORRECTIONS)
def test_equals_reference(rows, mode, correction):
    labels, predictions, weights = rows
    for w in (None, weights):
        expected = reference(labels, predictions, w, correction, **mode)
        for batch_size in (None, 97):
            result = score(labels, predictions, w, batch_size, correction=correction, **mode)
            assert result == pytest.approx(expected, rel=digits(1e-11))


@needs_float64
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_large_means_cost_no_digits(rows, mode):
    labels, predictions, weights = rows
    # Exact in float64, so that the reference on the small numbers holds.
    small_labels, small = np.round(labels * 1024) / 1024, np.round(predictions * 1024) / 1024
    expected = reference(small_labels, small, weights, **mode)
    result = score(small_labels + 2.0**30, small + 2.0**30, weights, 97, **mode)
    assert result == pytest.approx(expected, rel=digits(1e-11))


@needs_float64
@pytest.mark.parametrize(("shift", "tolerance"), [(1e3, 1e-9), (1e5, 1e-5)])
def test_slope_loses_the_digits_that_are_documented(rows, shift, tolerance):
    labels, predictions, weights = rows
    expected = reference(labels, predictions, weights, "linear")
    # The ratio of mean to spread, R, is a third of the shift.
    result = score(labels + shift, predictions + shift, weights, 97, correction="linear")
    assert result == pytest.approx(expected, rel=tolerance)


def test_in_sample_is_the_squared_error_less_the_squared_bias(rows):
    labels, predictions, weights = rows
    residual = labels - predictions
    expected = np.average(residual**2, weights=weights) - np.average(residual, weights=weights) ** 2
    result = score(labels, predictions, weights, num_folds=1)
    assert result == pytest.approx(expected, rel=digits(1e-11))


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("correction", CORRECTIONS)
def test_fitted_line_is_readable(rows, mode, correction):
    labels, predictions, weights = rows
    metric = CalibratedQuadraticLoss(correction=correction, **mode)
    metric.update_state(labels, predictions, weights)
    expected = [
        line(labels[fit], predictions[fit], weights[fit], correction)
        for fit, _ in parts(len(labels), **mode)
    ]
    assert isinstance(metric.bias, np.ndarray)
    np.testing.assert_allclose(
        np.stack([metric.bias, metric.slope], 1), expected, rtol=digits(1e-9)
    )


@pytest.mark.quick_cases(8)
@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("correction", CORRECTIONS)
@pytest.mark.parametrize(
    ("label", "prediction", "weight"),
    [
        (math.nan, 0.5, 1.0),
        (math.inf, 0.5, 1.0),
        (1.0, math.nan, 1.0),
        (1.0, -math.inf, 1.0),
        (1.0, 0.5, -1.0),
        (1.0, 0.5, math.nan),
        (1.0, 0.5, math.inf),
    ],
)
def test_one_bad_row_gives_nan(mode, correction, label, prediction, weight):
    labels, predictions, weights = np.arange(100.0), np.arange(100.0) % 7, np.ones(100)
    assert math.isfinite(score(labels, predictions, weights, correction=correction, **mode))
    for bad in (4, 50):
        y, p, w = labels.copy(), predictions.copy(), weights.copy()
        y[bad], p[bad], w[bad] = label, prediction, weight
        assert math.isnan(score(y, p, w, 30, correction=correction, **mode))


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("value", [0.1, -1e6 / 3])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_equal_predictions_have_no_slope(mode, value, dtype):
    rng = np.random.default_rng(0)
    labels, weights = rng.normal(size=1000), rng.exponential(size=1000)
    predictions = np.full(1000, value)
    arguments = {"correction": "linear", "dtype": dtype, **mode}
    assert math.isnan(score(labels, predictions, weights, 10, **arguments))
    assert math.isfinite(score(labels, predictions, weights, 1000, dtype=dtype, **mode))


@settings(max_examples=examples(25))
@given(
    few_lengths(
        st.tuples(
            st.floats(-1e4, 1e4, width=32),
            st.sampled_from([-3.0, 0.0, 0.25, 2.0, 1000.0]),
            st.sampled_from([0.0, 0.1, 1.0, 2.5]),
        ),
        max_size=20,
    ),
    st.sampled_from(MODES),
    st.sampled_from(CORRECTIONS),
    st.integers(1, 7),
)
@example([(0.0, 0.0, 0.1), (0.0, 1000.0, 0.1), (0.0, -3.0, 0.0)], MODES[3], "linear", 3)
def test_equals_reference_on_any_few_rows(rows, mode, correction, batch_size):
    labels, predictions, weights = np.array(rows, np.float64).reshape(-1, 3).T
    expected = reference(*counted(labels, predictions, weights), correction, **mode)
    result = score(labels, predictions, weights, batch_size, correction=correction, **mode)
    # What is squared is up to 11000, and a line through two of the points is steep elsewhere.
    largest = max([1.0, *(np.abs(labels) + np.abs(predictions))])
    precision = digits(1e-4, 3e-5 * largest**2)
    assert result == pytest.approx(expected, rel=digits(1e-7), abs=precision, nan_ok=True)


def test_perfect_predictions_have_no_loss(rows):
    _, predictions, _ = rows
    for correction in CORRECTIONS:
        for factor in (1.0, 1.1, -3.3) if correction == "linear" else (1.0,):
            result = score(5 + factor * predictions, predictions, correction=correction)
            assert 0 <= result < digits(1e-12, 1e-3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_folds": 0}, "num_folds"),
        ({"bias_fraction": 1.0}, "bias_fraction"),
        ({"correction": "platt"}, "correction='platt'"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        CalibratedQuadraticLoss(**arguments)


@pytest.mark.parametrize(
    ("labels", "predictions", "weights", "message"),
    [
        ([0, 1, 1], [0.5, 0.5], None, "`y_true` must .* 3 entries for 2"),
        ([0, 1], [[0.5, 0.5], [0.5, 0.5]], None, "one prediction"),
        ([0, 1], [0.5, 0.5], [1.0, 1.0, 1.0], "`sample_weight` must .* 3 entries for 2"),
    ],
)
def test_rows_that_do_not_align_are_refused(labels, predictions, weights, message):
    with pytest.raises(ValueError, match=message):
        CalibratedQuadraticLoss().update_state(labels, predictions, weights)


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_in_float32(rows, correction):
    labels, predictions, weights = rows
    arguments = {"correction": correction, "dtype": "float32"}
    expected = reference(labels, predictions, weights, correction)
    assert score(labels, predictions, weights, 97, **arguments) == pytest.approx(expected, rel=1e-5)


def test_counts_beyond_what_float32_can_count():
    metric = CalibratedQuadraticLoss(num_folds=1, dtype="float32")
    metric.update_state([1.0], [0.0], 2.0**25)
    for _ in range(8):
        metric.update_state([3.0], [0.0])
    # Plain float32 would leave the sum of the weights at 2²⁵, and the bias at 1.
    assert float(metric._sums.value()[0, 0]) == 2.0**25 + 8


@pytest.mark.slow
def test_in_a_model_that_is_saved_and_loaded(rows, tmp_path):
    labels, predictions, weights = rows
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(
        "sgd",
        "mse",
        weighted_metrics=[
            CalibratedQuadraticLoss(),
            CalibratedQuadraticLoss(correction="linear", name="linear"),
        ],
        jit_compile=True,
    )
    x = predictions[:, None].astype("float32")
    y, w = labels.astype("float32"), weights.astype("float32")
    model.fit(x / 10, y, sample_weight=w, verbose=0)
    arguments = {"sample_weight": w, "batch_size": 300, "verbose": 0, "return_dict": True}
    scores = model.evaluate(x, y, **arguments)
    given = (y.astype(float), model.predict(x, batch_size=300, verbose=0)[:, 0].astype(float), w)
    assert scores[KEY] == pytest.approx(reference(*given), rel=digits(1e-5, 3e-4))
    assert scores["linear"] == pytest.approx(reference(*given, "linear"), rel=digits(1e-5, 3e-4))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.evaluate(x, y, **arguments) == pytest.approx(scores, rel=digits(1e-6))
