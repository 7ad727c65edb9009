import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st

from backends import digits, examples
from keras_calibration._ops import folds as kernels
from keras_calibration.metrics import CalibratedLogLoss, CalibrationGain, LogLoss

NUM_ROWS = 3001
RNG = np.random.default_rng(0)
LOGITS = RNG.normal(-1, 1.5, NUM_ROWS)
LABELS = (RNG.random(NUM_ROWS) < 1 / (1 + np.exp(-0.6 * LOGITS - 0.4))).astype("float64")
WEIGHTS = RNG.exponential(size=NUM_ROWS)


def reference_log_loss(labels, logits, weights=None):
    return np.average(np.logaddexp(0, logits) - labels * logits, weights=weights)


def fed(metric, labels=LABELS, logits=LOGITS, weights=None, batch_size=NUM_ROWS):
    for start in range(0, len(labels), batch_size):
        part = slice(start, start + batch_size)
        metric.update_state(labels[part], logits[part], None if weights is None else weights[part])
    return metric


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("batch_size", [1, 7, 256, NUM_ROWS])
def test_log_loss_equals_the_reference_at_any_batch_size(batch_size):
    size = min(NUM_ROWS, 200 * batch_size)
    metric = fed(
        LogLoss(from_logits=True), LABELS[:size], LOGITS[:size], WEIGHTS[:size], batch_size
    )
    expected = reference_log_loss(LABELS[:size], LOGITS[:size], WEIGHTS[:size])
    assert float(metric.result()) == pytest.approx(expected, rel=digits(1e-13))


def test_log_loss_from_probabilities_and_beyond_what_keras_clips():
    probabilities = 1 / (1 + np.exp(-LOGITS))
    received = float(fed(LogLoss(), logits=probabilities).result())
    assert received == pytest.approx(reference_log_loss(LABELS, LOGITS), rel=digits(1e-10))
    metric = LogLoss(from_logits=True)
    metric.update_state([1.0, 0.0], [-50.0, 50.0])
    assert float(metric.result()) == 50


def test_log_loss_counts_beyond_float32():
    metric = LogLoss(from_logits=True)
    metric._sums._total.assign([2.0**24, 2.0**24])
    metric.update_state([1.0], [0.0])
    assert sum(np.asarray(part, np.float64)[1] for part in metric.variables) == 2**24 + 1


@pytest.mark.parametrize(
    ("labels", "logits", "weights"),
    [([], [], None), ([2.0], [0.0], None), ([1.0], [np.nan], None), ([1.0], [0.0], [-1.0])],
)
def test_log_loss_of_what_cannot_be_told_is_nan(labels, logits, weights):
    metric = LogLoss(from_logits=True)
    arrays = [np.array(values, "float32") for values in (labels, logits)]
    metric.update_state(*arrays, None if weights is None else np.array(weights, "float32"))
    assert np.isnan(metric.result())


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("correction", ["bias", "temperature", "platt"])
@pytest.mark.parametrize("arguments", [{"num_folds": 1}, {}, {"bias_fraction": 0.3}])
def test_log_loss_is_calibrated_log_loss_plus_gain(correction, arguments):
    arguments = {"correction": correction, "from_logits": True, **arguments}
    total = float(fed(LogLoss(from_logits=True), weights=WEIGHTS).result())
    calibrated = float(fed(CalibratedLogLoss(**arguments), weights=WEIGHTS).result())
    gain = float(fed(CalibrationGain(**arguments), weights=WEIGHTS).result())
    assert calibrated + gain == pytest.approx(total, rel=digits(4e-16), abs=0)
    # The mean and the slope of these predictions are off.
    assert gain > 0.005


@settings(max_examples=examples(25))
@given(st.integers(0, 2**31), st.floats(-3, 3))
def test_in_sample_gain_is_never_negative(seed, shift):
    generator = np.random.default_rng(seed)
    logits = generator.normal(shift, 2, 30)
    labels = generator.integers(0, 2, 30).astype("float64")
    gain = float(fed(CalibrationGain(num_folds=1, from_logits=True), labels, logits).result())
    assert np.isnan(gain) if labels.min() == labels.max() else gain > -1e-8


def test_the_parts_are_refinement_and_calibration_error():
    # Soft labels equal to the true probabilities leave no chance in the two parts.
    true = 1 / (1 + np.exp(-LOGITS))
    scores = 0.5 * LOGITS + 1.2
    platt = {"correction": "platt", "from_logits": True}
    refinement = fed(CalibratedLogLoss(**platt), true, scores)
    calibration_error = fed(CalibrationGain(**platt), true, scores)
    entropy = reference_log_loss(true, LOGITS)
    divergence = reference_log_loss(true, scores) - entropy
    assert float(refinement.result()) == pytest.approx(entropy, rel=digits(1e-6))
    assert float(calibration_error.result()) == pytest.approx(divergence, rel=digits(1e-5, 1e-4))


@pytest.mark.parametrize("correction", ["temperature", "platt"])
def test_cross_fitted_corrections_equal_minimisation_fold_by_fold(correction):
    fold = np.floor(np.asarray(kernels.hashed_uniform(np.arange(NUM_ROWS), 0)) * 2)
    losses, scales, biases = [], [], []
    for number in range(2):
        other, own = fold != number, fold == number

        def objective(p, other=other):
            p = (*p, 0.0)[:2]
            shifted = p[0] * LOGITS[other] + p[1]
            return reference_log_loss(LABELS[other], shifted, WEIGHTS[other])

        start = [1.0, 0.0] if correction == "platt" else [1.0]
        scale, bias = (*scipy.optimize.minimize(objective, start, options={"gtol": 1e-9}).x, 0)[:2]
        shifted = scale * LOGITS[own] + bias
        losses.append(WEIGHTS[own] @ (np.logaddexp(0, shifted) - LABELS[own] * shifted))
        scales.append(scale)
        biases.append(bias)
    metric = fed(CalibratedLogLoss(correction=correction, from_logits=True), weights=WEIGHTS)
    assert float(metric.result()) == pytest.approx(sum(losses) / WEIGHTS.sum(), abs=digits(1e-8))
    np.testing.assert_allclose(metric.scale, scales, atol=digits(1e-5, 1e-4))
    np.testing.assert_allclose(metric.bias, biases, atol=digits(1e-5, 1e-4))


def test_an_unknown_correction_is_refused():
    with pytest.raises(ValueError, match=r"one of \('bias', 'temperature', 'platt'\)"):
        CalibratedLogLoss(correction="isotonic")
