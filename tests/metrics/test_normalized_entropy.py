import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends import digits, examples, few_lengths, needs_float64
from keras_calibration.metrics import NormalizedEntropy

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(-3, 2, 1001)
PREDICTIONS = 1 / (1 + np.exp(-LOGITS))
LABELS = (RNG.random(1001) < PREDICTIONS).astype(float)
WEIGHTS = RNG.exponential(size=1001)


def filled(metric, labels=LABELS, predictions=LOGITS, weights=None, batch_size=1001):
    metric.reset_state()
    for start in range(0, len(labels), batch_size):
        part = slice(start, start + batch_size)
        metric.update_state(
            labels[part], predictions[part], None if weights is None else weights[part]
        )
    return metric


def score(*arguments, **options):
    return float(filled(*arguments, **options).result())


def reference(labels, logits, weights=None):
    weights = np.ones(len(labels)) if weights is None else weights
    is_good = np.isfinite(logits) & (labels >= 0) & (labels <= 1) & (weights >= 0)
    total, positives = np.sum(weights), np.sum(weights * labels)
    if not is_good.all() or positives <= 0 or np.sum(weights * (1 - labels)) <= 0:
        return math.nan
    losses = labels * np.logaddexp(0, -logits) + (1 - labels) * np.logaddexp(0, logits)
    rate = positives / total
    entropy = -(rate * math.log(rate) + (1 - rate) * math.log1p(-rate))
    return np.sum(weights * losses) / total / entropy


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("batch_size", [64, 7, 1001])
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["unweighted", "weighted"])
def test_equals_the_reference(weights, batch_size):
    number = {"batch_size": batch_size, "weights": weights}
    for labels in (LABELS, 0.1 + 0.5 * LABELS):
        expected = reference(labels, LOGITS, weights)
        metric = NormalizedEntropy(from_logits=True)
        assert score(metric, labels, **number) == pytest.approx(expected, rel=digits(1e-12))
        metric = NormalizedEntropy()
        assert score(metric, labels, PREDICTIONS, **number) == pytest.approx(
            expected, rel=digits(1e-9)
        )
        single = PREDICTIONS.astype("float32")[:, None]
        assert score(metric, labels, single, **number) == pytest.approx(expected, rel=1e-5)


def test_the_mean_label_itself_scores_1_and_better_predictions_less():
    rate = np.full(1001, LABELS.mean())
    assert score(NormalizedEntropy(), LABELS, rate) == pytest.approx(1, rel=digits(1e-12))
    assert score(NormalizedEntropy(), LABELS, PREDICTIONS) < 0.9
    assert score(NormalizedEntropy(), LABELS, 1 - PREDICTIONS) > 2


@needs_float64  # a batch of a million is summed in it
def test_a_rare_positive_among_millions():
    rare = np.zeros(2_000_000)
    rare[0] = 1
    assert score(NormalizedEntropy(), rare, np.full(2_000_000, 5e-7), batch_size=10**6) == (
        pytest.approx(1, rel=1e-9)
    )


def test_one_negative_among_a_million():
    """In float32 too, where the mean label is rounded to 1."""
    rows = np.array([0.0, 1.0]), np.zeros(2), np.array([1.0, 1e6])
    received = score(NormalizedEntropy(from_logits=True), *rows)
    assert received == pytest.approx(reference(*rows), rel=digits(1e-9))


@settings(max_examples=examples(25))
@given(
    few_lengths(
        st.tuples(
            st.sampled_from([0.0, 1.0, 0.25, 0.0, 1.0] * 3 + [math.nan, -0.1, 1.1]),
            st.sampled_from([0.0, -2.5, 30.0, -300.0] * 4 + [math.nan, math.inf, -math.inf]),
            st.sampled_from([0.0, 1.0, 3.5, 1e6] * 4 + [-1.0, math.nan]),
        ),
        max_size=8,
    )
)
def test_equals_the_reference_on_any_rows(rows):
    labels, logits, weights = np.array(rows).reshape(-1, 3).T
    received = score(NormalizedEntropy(from_logits=True), labels, logits, weights)
    assert received == pytest.approx(
        reference(labels, logits, weights), rel=digits(1e-9), nan_ok=True
    )


def test_one_class_and_no_rows_give_nan():
    assert math.isnan(float(NormalizedEntropy().result()))
    for labels in (np.zeros(5), np.ones(5)):
        assert math.isnan(score(NormalizedEntropy(), labels, np.full(5, 0.4)))
    assert math.isnan(score(NormalizedEntropy(), LABELS, PREDICTIONS, np.zeros(1001)))


def test_saturated_probabilities_have_a_finite_loss():
    result = score(NormalizedEntropy(), np.array([1.0, 0.0]), np.float32([1.0, 1.0]))
    assert result == score(NormalizedEntropy(), np.array([1.0, 0.0]), np.float32([0.0, 0.0]))
    assert result == pytest.approx(math.log(2.0**53) / 2 / math.log(2), rel=digits(1e-6))
