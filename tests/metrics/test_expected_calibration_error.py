import math

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends import FLOATS, HOSTILE_PREDICTIONS, digits, examples
from keras_calibration.metrics import ExpectedCalibrationError
from metric_references import counted

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(-2, 1.5, 20_000)
PREDICTIONS = 1 / (1 + np.exp(-LOGITS))
LABELS = (RNG.random(20_000) < PREDICTIONS**1.3).astype(float)
WEIGHTS = RNG.exponential(size=20_000)


def filled(metric, labels=LABELS, predictions=PREDICTIONS, weights=None, batch_size=20_000):
    metric.reset_state()
    for start in range(0, len(labels), batch_size):
        part = slice(start, start + batch_size)
        metric.update_state(
            labels[part], predictions[part], None if weights is None else weights[part]
        )
    return metric


def score(*arguments, **options):
    return float(filled(*arguments, **options).result())


def error(labels, predictions, weights, bins):
    residual = weights * (labels - predictions)
    return sum(abs(residual[bins == b].sum()) for b in set(bins.tolist())) / weights.sum()


def equal_width(labels, predictions, weights, num_bins):
    """Row by row, by comparison with the edges themselves."""
    weights = np.ones(len(labels)) if weights is None else weights
    both = np.r_[labels, predictions]
    if not (((both >= 0) & (both <= 1)).all() and (weights >= 0).all() and weights.sum() > 0):
        return math.nan
    bins = [
        next(b for b in range(num_bins) if p <= (b + 1) / num_bins) for p in predictions.tolist()
    ]
    return error(labels, predictions, weights, np.array(bins, int))


def equal_mass(labels, predictions, weights, num_bins):
    """On sorted rows, bounds wherever they fall."""
    weights = np.ones(len(labels)) if weights is None else weights
    order = np.argsort(predictions, kind="stable")
    labels, predictions, weights = labels[order], predictions[order], weights[order]
    middle = (np.cumsum(weights) - weights / 2) / weights.sum()
    return error(labels, predictions, weights, np.floor(middle * num_bins).astype(int))


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("batch_size", [999, 20_000])
@pytest.mark.parametrize("num_bins", [1, 2, 15, 100])
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["unweighted", "weighted"])
def test_equal_width_equals_the_reference(weights, num_bins, batch_size):
    # Without float64, the 20,000 rows of one batch are summed in plain float32.
    number = {"weights": weights, "batch_size": batch_size}
    for labels in (LABELS, 0.1 + 0.5 * LABELS):
        expected = equal_width(labels, PREDICTIONS, weights, num_bins)
        metric = ExpectedCalibrationError(num_bins)
        assert score(metric, labels, PREDICTIONS, **number) == pytest.approx(
            expected, rel=digits(1e-9, 2e-3)
        )
    metric = ExpectedCalibrationError(num_bins, from_logits=True)
    assert score(metric, labels, LOGITS, **number) == pytest.approx(
        expected, rel=digits(1e-9, 2e-3)
    )


@pytest.mark.parametrize("num_bins", [1, 10, 15, 50])
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["unweighted", "weighted"])
@pytest.mark.parametrize("from_logits", [False, True])
def test_equal_mass_is_close_to_sorted_rows(weights, num_bins, from_logits):
    metric = ExpectedCalibrationError(num_bins, "equal_mass", from_logits)
    result = score(metric, LABELS, LOGITS if from_logits else PREDICTIONS, weights, 3000)
    expected = equal_mass(LABELS, PREDICTIONS, weights, num_bins)
    assert result == pytest.approx(expected, abs=digits(1e-9) if num_bins == 1 else 1e-3)
    table = metric.per_bin()
    assert len(table["rows"]) == num_bins
    share = table["rows"] / table["rows"].sum()
    np.testing.assert_allclose(share, 1 / num_bins, atol=0.01)


def test_equal_mass_tells_more_than_equal_width_of_rare_positives():
    rng = np.random.default_rng(2)
    logits = rng.normal(-7, 1, 200_000)
    true = 1 / (1 + np.exp(-logits))
    # Too little among the likely, too much among the rare, right on the whole.
    likely = logits > -7
    labels = true * np.where(likely, 1.05, 1 - 0.05 * true[likely].sum() / true[~likely].sum())
    result = score(ExpectedCalibrationError(15, "equal_mass"), labels, true)
    assert result == pytest.approx(equal_mass(labels, true, None, 15), rel=0.01)
    assert result > 5 * score(ExpectedCalibrationError(15), labels, true)


@pytest.mark.parametrize("dtype", [*FLOATS, "float16", "bfloat16"])
def test_edges_belong_to_the_bin_below_in_every_dtype(dtype):
    edges = np.arange(11) / 10
    predictions = keras.ops.cast(keras.ops.convert_to_tensor(edges), dtype)
    metric = ExpectedCalibrationError(10)
    metric.update_state(np.zeros(11), predictions)
    table = metric.per_bin()
    np.testing.assert_array_equal(table["rows"], [2] + [1] * 9)  # 0 and 0.1 in the first
    np.testing.assert_array_equal(table["lower"], edges[:-1])
    np.testing.assert_array_equal(table["upper"], edges[1:])
    metric.reset_state()
    above = np.nextafter(edges[1:-1].astype("float32"), np.float32(1))
    metric.update_state(np.zeros(9), above)
    np.testing.assert_array_equal(metric.per_bin()["lower"], edges[1:-1])


@pytest.mark.parametrize("binning", ["equal_width", "equal_mass"])
def test_predictions_of_0_and_1_count(binning):
    saturated = keras.ops.convert_to_numpy(keras.ops.sigmoid(np.float32([40, 20, -200])))
    assert saturated.tolist() == [1, 1, 0]
    metric = ExpectedCalibrationError(2, binning)
    result = score(metric, np.array([1.0, 0.0, 1.0]), saturated)
    assert result == pytest.approx(2 / 3, rel=digits(1e-9))
    table = metric.per_bin()
    assert table["rows"].tolist() == [1, 2]
    assert (table["lower"][0], table["upper"][-1]) == (0, 1)
    metric = ExpectedCalibrationError(2, binning, from_logits=True)
    result = score(metric, np.array([1.0, 0.0, 1.0]), np.array([math.inf, 500, -math.inf]))
    assert result == pytest.approx(2 / 3, rel=digits(1e-9))


@settings(max_examples=examples(25))
@given(HOSTILE_PREDICTIONS, st.sampled_from([1, 3, 10]))
def test_equals_the_reference_on_any_rows(rows, num_bins):
    labels, predictions, weights = np.array(rows).reshape(-1, 3).T
    expected = equal_width(*counted(labels, predictions, weights), num_bins)
    received = score(ExpectedCalibrationError(num_bins), labels, predictions, weights)
    assert received == pytest.approx(expected, rel=digits(1e-9), abs=digits(1e-12), nan_ok=True)
    received = score(ExpectedCalibrationError(num_bins, "equal_mass"), labels, predictions, weights)
    # Bins differ; what they hold together does not.
    overall = equal_width(*counted(labels, predictions, weights), 1)
    assert math.isnan(received) == math.isnan(overall)
    if not math.isnan(overall):
        assert received >= overall - digits(1e-9)
        if num_bins == 1:
            assert received == pytest.approx(overall, rel=digits(1e-9), abs=digits(1e-12))


def test_one_prediction_alone_fills_one_bin():
    metric = filled(ExpectedCalibrationError(15, "equal_mass"), LABELS, np.full(20_000, 0.2))
    assert float(metric.result()) == pytest.approx(abs(LABELS.mean() - 0.2), rel=digits(1e-9, 2e-3))
    assert metric.per_bin()["rows"].tolist() == [20_000]


def test_the_table_adds_up():
    for binning in ("equal_width", "equal_mass"):
        metric = filled(ExpectedCalibrationError(15, binning), weights=WEIGHTS)
        table = metric.per_bin()
        assert table["rows"].sum() == pytest.approx(WEIGHTS.sum(), rel=digits(1e-9))
        result = np.abs(table["residual"]).sum() / WEIGHTS.sum()
        assert result == pytest.approx(float(metric.result()), rel=digits(1e-9))
        gap = table["rows"] * (table["observed_rate"] - table["mean_prediction"])
        np.testing.assert_allclose(gap, table["residual"], rtol=digits(1e-9), atol=digits(1e-9))
        np.testing.assert_allclose(table["upper"][:-1], table["lower"][1:])
        assert (table["lower"] <= table["mean_prediction"]).all()
        assert (table["mean_prediction"] <= table["upper"]).all()


def test_no_rows_give_nan_and_an_empty_table():
    for binning in ("equal_width", "equal_mass"):
        metric = ExpectedCalibrationError(binning=binning)
        assert math.isnan(float(metric.result()))
        assert len(metric.per_bin()["rows"]) == 0
        assert math.isnan(score(metric, LABELS, PREDICTIONS, np.zeros(20_000)))


def test_bad_arguments_are_refused():
    for num_bins in (0, -1, 2.5, None, "15"):
        with pytest.raises(ValueError, match="num_bins"):
            ExpectedCalibrationError(num_bins)
    with pytest.raises(ValueError, match="at most 4354"):
        ExpectedCalibrationError(4355, "equal_mass")
    with pytest.raises(ValueError, match="'equal_width', 'equal_mass'"):
        ExpectedCalibrationError(binning="quantile")
