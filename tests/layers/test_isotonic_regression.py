"""IsotonicRegression: a step function of the logit."""

import keras
import numpy as np
import pytest
import sklearn.isotonic
from scipy.special import expit as probabilities

from keras_calibration.layers import IsotonicRegression


def rows_of(num_rows=5000, bias=-1.0, seed=0, decimals=None):
    generator = np.random.default_rng(seed)
    logits = generator.normal(-1, 1.5, num_rows)
    logits = (logits if decimals is None else logits.round(decimals)).astype(np.float32)
    labels = generator.random(num_rows) < 1 / (1 + np.exp(-0.7 * logits - bias))
    return logits, labels.astype(float)


def called(layer, logits):
    logits = np.asarray(logits, np.float32)
    return keras.ops.convert_to_numpy(layer(logits)).astype(np.float64)


def log_loss(calibrated, labels, weights=None):
    losses = labels * np.logaddexp(0, -calibrated) + (1 - labels) * np.logaddexp(0, calibrated)
    return np.average(losses, weights=weights)


def sklearn_curve(logits, labels, weights=None):
    """scikit-learn's probabilities, a rate of 0 or 1 at an end moved in by half a click."""
    logits, labels = np.asarray(logits, np.float64), np.asarray(labels, np.float64)
    weights = np.ones(len(logits)) if weights is None else np.asarray(weights, np.float64)
    model = sklearn.isotonic.IsotonicRegression(out_of_bounds="clip")
    model.fit(logits, labels, sample_weight=weights)
    places, rates = model.X_thresholds_.copy(), model.y_thresholds_.copy()
    fitted = model.predict(logits)
    inner = rates[(rates > 0) & (rates < 1)]
    for end, sign in ((0.0, 1), (1.0, -1)):
        if not (rates == end).any():
            continue
        half = min(0.5, 0.5 / weights[fitted == end].sum())
        moved = end + sign * half
        if len(inner):
            moved = min(moved, inner[0]) if end == 0 else max(moved, inner[-1])
        rates[rates == end] = moved
    return lambda values: np.interp(np.asarray(values, np.float64), places, rates)


@pytest.mark.parametrize("form", ["ordinary", "tied", "weighted", "rare", "soft"])
def test_equals_scikit_learn(form):
    logits, labels = rows_of(
        bias=-5.0 if form == "rare" else -1.0, decimals=1 if form == "tied" else None
    )
    weights = None
    if form == "weighted":
        weights = np.random.default_rng(1).choice([0.0, 1.0, 3.0], len(logits))
    if form == "soft":
        labels = 0.8 * labels + 0.1
        model = sklearn.isotonic.IsotonicRegression(out_of_bounds="clip").fit(logits, labels)
        expected = model.predict
    else:
        expected = sklearn_curve(logits, labels, weights)
    layer = IsotonicRegression(keep_ranking=False)
    summary = layer.fit(logits, labels, sample_weight=weights, weights_are="counts")
    grid = np.r_[logits, np.linspace(-30, 30, 10_001)].astype(np.float32)
    received = probabilities(called(layer, grid))
    np.testing.assert_allclose(received, expected(grid), rtol=0, atol=1e-6)
    rates = expected(logits)
    after = log_loss(np.log(rates / (1 - rates)), labels, weights)
    assert summary.log_loss_in_sample == pytest.approx(after, abs=1e-7)
    assert summary.log_loss_in_sample <= summary.log_loss_before


def test_the_curve_never_falls_and_ties_keep_their_ranking():
    logits, labels = rows_of(20_000)
    sorted_logits = np.sort(np.random.default_rng(2).normal(0, 4, 1_000_000).astype(np.float32))
    for keep_ranking in (False, True):
        layer = IsotonicRegression(keep_ranking=keep_ranking)
        summary = layer.fit(logits, labels)
        assert np.diff(called(layer, sorted_logits)).min() >= -1e-6
        apart = np.diff(called(layer, np.arange(-600, 600) * 0.02))
        assert (apart > 0).all() == keep_ranking
    steps = IsotonicRegression(keep_ranking=False)
    assert summary.log_loss_in_sample == pytest.approx(
        steps.fit(logits, labels).log_loss_in_sample, abs=1e-6
    )
    np.testing.assert_allclose(called(layer, logits), called(steps, logits), atol=1e-3)


def test_more_steps_than_there_is_room_for_are_pooled():
    logits, labels = rows_of(20_000)
    many, few = IsotonicRegression(), IsotonicRegression(max_num_steps=5)
    more, fewer = many.fit(logits, labels), few.fit(logits, labels)
    assert len(many.thresholds) > 20
    assert 5 <= len(few.thresholds) <= 10
    assert (np.diff(few.values) >= 0).all()
    assert more.log_loss_in_sample < fewer.log_loss_in_sample < fewer.log_loss_before
    rates = probabilities(called(few, logits))
    assert rates.mean() == pytest.approx(labels.mean(), rel=1e-3)
    one = IsotonicRegression(max_num_steps=1, keep_ranking=False)
    one.fit(logits, labels)
    np.testing.assert_allclose(probabilities(called(one, [-9, 9])), labels.mean(), rtol=1e-6)


def test_separated_classes_give_half_a_click_at_both_ends():
    layer = IsotonicRegression(keep_ranking=False)
    layer.fit(np.arange(8), np.arange(8) >= 4)
    received = probabilities(called(layer, [-np.inf, 3, 3.5, 4, np.inf]))
    np.testing.assert_allclose(received, [1 / 8, 1 / 8, 1 / 2, 7 / 8, 7 / 8], rtol=1e-5)
    layer.fit([0.0, 1.0, 1.0, 1.0], [0, 0, 1, 0])  # one row of no click: not above the next rate
    np.testing.assert_allclose(probabilities(called(layer, [0, 1])), 1 / 3, rtol=1e-6)
