"""Variance components, the hybrid loss and the posterior."""

import numpy as np
import pytest
from scipy import stats

from keras_calibration.statistics import (
    difference_on_new_rows,
    hybrid_loss,
    probability_better,
    variance_components,
)


def row_losses(rng, num_seeds, rows, seed_std=0.02, interaction_std=0.3, shift=0.0):
    seeds = seed_std * rng.normal(size=(num_seeds, 1))
    return shift + rows + seeds + interaction_std * rng.normal(size=(num_seeds, rows.size))


def test_components_are_found():
    rng = np.random.default_rng(0)
    rows = rng.exponential(size=1000)
    found = [variance_components(row_losses(rng, 10, rows)) for _ in range(400)]
    assert np.mean([parts.seeds for parts in found]) == pytest.approx(4e-4, rel=0.1)
    assert np.mean([parts.interaction for parts in found]) == pytest.approx(0.09, rel=0.01)
    assert np.mean([parts.rows for parts in found]) == pytest.approx(rows.var(ddof=1), rel=0.02)


def test_the_parts_add_up_to_the_variance_over_seeds():
    losses = row_losses(np.random.default_rng(1), 12, np.ones(500), seed_std=0.1)
    parts = variance_components(losses)
    assert parts.of_a_run == pytest.approx(losses.mean(axis=1).var(ddof=1), rel=1e-9)


def test_float32_losses_are_summed_in_float64():
    losses = row_losses(np.random.default_rng(2), 4, np.full(10_000, 0.37), 1e-4, 1e-3)
    exact = variance_components(losses)
    rounded = variance_components(losses.astype("float32"))
    np.testing.assert_allclose(rounded[:2], exact[:2], rtol=1e-3)


def test_coverage_for_new_rows_as_well():
    rng = np.random.default_rng(3)
    covered = 0
    for _ in range(400):
        rows = rng.exponential(size=300)
        # What a row means to the difference of the two, beside noise.
        effect = 0.5 * rng.normal(size=300)
        a = row_losses(rng, 6, rows, 0.03, 0.2)
        b = row_losses(rng, 6, rows + effect, 0.03, 0.2, shift=0.1)
        covered += not difference_on_new_rows(a, b).excludes(0.1)
    assert 0.92 <= covered / 400 <= 0.99


def test_components_refuse_what_is_not_seeds_by_rows():
    with pytest.raises(ValueError, match=r"must have shape \(num_seeds, num_rows\)"):
        variance_components(np.ones(5))
    with pytest.raises(ValueError, match="must be finite"):
        variance_components(np.array([[1.0, np.inf], [1.0, 2.0]]))
    with pytest.raises(ValueError, match="5 and 6 rows"):
        difference_on_new_rows(np.ones((2, 5)), np.ones((2, 6)))


def test_hybrid_counts_the_systematic_bias_only():
    rng = np.random.default_rng(6)
    losses = np.full(5, 0.3)
    # E[c̄² − s_c²/m] = mean², whatever the spread of the biases; cut off at 0 it is larger.
    values = [hybrid_loss(losses, rng.normal(0.5, 0.2, 5), 0.1) for _ in range(2000)]
    assert np.mean(values) == pytest.approx(0.3 + 0.05 * 0.25, abs=3e-4)
    with pytest.raises(ValueError, match="curvature=-1"):
        hybrid_loss(losses, losses, -1)
    with pytest.raises(ValueError, match="at least 3 runs"):
        hybrid_loss(losses[:2], losses[:2], 0.1)


def test_posterior_with_a_flat_prior_is_students():
    for margin in (0.0, 0.3):
        expected = stats.t.cdf((-margin + 0.8) / 0.5, 9)
        assert probability_better(-0.8, 0.5, 9, margin=margin) == pytest.approx(expected, abs=1e-9)


def test_posterior_with_a_prior_shrinks():
    shrink = 0.5**2 / (0.5**2 + 0.4**2)
    expected = stats.norm.cdf(np.sqrt(shrink) * 0.8 / 0.4)
    found = probability_better(-0.8, 0.4, np.inf, prior_scale=0.5)
    assert found == pytest.approx(expected, abs=1e-5)
    with_tails = probability_better(-0.8, 0.4, 200, prior_scale=0.5)
    assert with_tails == pytest.approx(expected, abs=2e-3)
    turned = probability_better(0.8, 0.4, np.inf, prior_scale=0.5)
    assert turned == pytest.approx(1 - expected, abs=1e-5)


def test_posterior_of_the_data_is_calibrated():
    rng = np.random.default_rng(7)
    truth = 0.5 * rng.normal(size=300)
    seen = truth + 0.4 * rng.normal(size=300)
    stated = np.array([probability_better(x, 0.4, np.inf, prior_scale=0.5) for x in seen])
    assert np.mean(stated) == pytest.approx(np.mean(truth < 0), abs=0.07)
    assert np.mean(truth[stated > 0.8] < 0) > 0.8


def test_posterior_without_noise_or_with_a_wrong_margin():
    assert probability_better(-1.0, 0.0, 5, margin=0.5) == 1.0
    assert probability_better(-1.0, 0.0, 5, margin=1.5) == 0.0
    assert probability_better(0.0, 0.0, 5) == 0.0
    with pytest.raises(ValueError, match="margin=-1"):
        probability_better(-1.0, 0.5, 5, margin=-1)
