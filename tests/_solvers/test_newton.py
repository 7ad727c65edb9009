"""Newton's method where a step is longer by many orders than what helps."""

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit

from keras_calibration.layers import ILPS, BiasCorrection, PlattScaling

# One positive among few or many negatives at -2, and one negative at 0.
LOGITS = np.array([-2.0, -2.0, 0.0])
LABELS = np.array([0.0, 1.0, 0.0])


@pytest.mark.parametrize("make", [BiasCorrection, ILPS])
@pytest.mark.parametrize("num_negatives", [1, 1e3, 1e6])
def test_the_total_is_right_however_rare_positives_are(make, num_negatives):
    counts = np.array([num_negatives, 1.0, 1.0])
    head = make()
    summary = head.fit(LOGITS, LABELS, sample_weight=counts, weights_are="counts")
    assert summary.converged
    assert counts @ expit(np.asarray(head(LOGITS), np.float64).ravel()) == pytest.approx(
        1.0, rel=1e-3
    )


def test_platt_scaling_finds_the_minimum_with_rare_positives():
    rng = np.random.default_rng(0)
    logits = np.linspace(-3.0, 3.0, 13)
    counts = np.concatenate([np.full(13, 1e7), rng.integers(1, 4, 13)])
    rows, labels = np.tile(logits, 2), np.repeat([0.0, 1.0], 13)

    def loss(theta):
        curve = theta[0] * rows + theta[1]
        return counts @ (np.logaddexp(0.0, curve) - labels * curve)

    best = minimize(loss, [0.0, -15.0], tol=1e-14)
    head = PlattScaling()
    summary = head.fit(rows, labels, sample_weight=counts, weights_are="counts")
    assert summary.converged
    curve = np.asarray(head(np.array([0.0, 1.0])), np.float64).ravel()
    expected = [best.x[1], best.x.sum()]
    np.testing.assert_allclose(curve, expected, atol=1e-3)
