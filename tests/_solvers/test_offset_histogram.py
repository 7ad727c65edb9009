"""The fit of a curve under what is added to it, against a general method on the rows."""

import numpy as np
import pytest
import scipy.optimize

from keras_calibration._solvers.offset_histogram import offset_histogram
from keras_calibration.layers import ILPS, PlattScaling


def rows_with_offsets(num_rows=4000):
    """Logits, labels of `0.6 l - 0.5 + o`, weights and offsets o that follow the logit."""
    generator = np.random.default_rng(0)
    logits = generator.normal(-1, 2, num_rows)
    offsets = 0.5 * logits + generator.normal(0, 1, num_rows)
    labels = generator.random(num_rows) < 1 / (1 + np.exp(0.5 - 0.6 * logits - offsets))
    return logits, labels.astype(float), generator.choice([0.5, 1.0, 2.5], num_rows), offsets


def log_loss(calibrated, labels, weights):
    return np.average(np.logaddexp(0, calibrated) - labels * calibrated, weights=weights)


def test_platt_under_offsets_is_the_optimum():
    logits, labels, weights, offsets = rows_with_offsets()

    def objective(theta):
        return log_loss(theta[0] * logits + theta[1] + offsets, labels, weights)

    best = scipy.optimize.minimize(objective, [1.0, 0.0], options={"gtol": 1e-9})
    fit = PlattScaling().fit_histogram(offset_histogram(logits, labels, weights, offsets))
    scale, bias = np.exp(fit.weights["_log_scale"]), fit.weights["_bias"]
    np.testing.assert_allclose([scale, bias], best.x, atol=2e-3)
    received = log_loss(fit.at(logits) + offsets, labels, weights)
    assert best.fun - 1e-9 <= received < best.fun + 1e-6
    assert fit.solved.log_loss == pytest.approx(received, abs=5e-4)
    assert abs(scale - 0.6) < 0.1


@pytest.mark.parametrize("smoothness", [1.0, "auto"])
def test_a_curve_under_offsets_comes_back(smoothness):
    logits, labels, weights, offsets = rows_with_offsets(40_000)
    layer = ILPS(smoothness=smoothness)
    fit = layer.fit_histogram(offset_histogram(logits, labels, weights, offsets))
    grid = np.linspace(-5, 3, 50)
    np.testing.assert_allclose(fit.at(grid), 0.6 * grid - 0.5, atol=0.2)
    plain = ILPS(smoothness=smoothness)
    plain.fit(logits, labels, sample_weight=weights)
    np.testing.assert_allclose(fit.weights["_knots"], plain.get_knots(), atol=0.03)
    assert np.abs(np.asarray(plain(grid)) - 0.6 * grid + 0.5).max() > 0.5
