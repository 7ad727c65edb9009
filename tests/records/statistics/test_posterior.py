import itertools

import numpy as np
import pytest
from scipy import integrate, stats

from keras_calibration.statistics import probability_better


def test_a_flat_prior_is_students_t():
    for margin in (0.0, 0.3):
        expected = stats.t.cdf((0.8 - margin) / 0.5, 9)
        probability = probability_better(-0.8, 0.5, 9, margin=margin)
        assert probability == pytest.approx(expected, abs=1e-9)


def by_quadrature(difference, error, degrees, margin, prior_scale):
    """The integral of likelihood times prior, in pieces of every size around both centres."""

    def log_density(delta):
        likelihood = np.log1p(((difference - delta) / error) ** 2 / degrees)
        return -(degrees + 1) / 2 * likelihood - (delta / prior_scale) ** 2 / 2

    sizes = np.geomspace(0.01, 1e7, 28)
    steps = np.concatenate([-sizes, [0.0], sizes])
    ends = np.concatenate([difference + steps * error, steps * prior_scale, [-margin]])
    ends = np.unique(ends[np.abs(ends) <= 40 * prior_scale])
    largest = log_density(ends).max()
    masses = [
        integrate.quad(lambda x: np.exp(log_density(x) - largest), *piece, epsabs=0)[0]
        for piece in itertools.pairwise(ends)
    ]
    return sum(masses[: np.searchsorted(ends, -margin)]) / sum(masses)


# From a prior that says all to one that says nothing, and heavy tails far from it.
@pytest.mark.parametrize("prior_scale", [0.05, 0.5, 20.0, 1e3, 1e6])
@pytest.mark.parametrize("degrees", [1, 2, 9, 300])
def test_a_prior_as_by_quadrature(degrees, prior_scale):
    for difference, error, margin in ((-0.8, 0.4, 0), (-3.0, 1.0, 0.2), (30.0, 1.0, 0), (2, 5, 0)):
        likelihood = (difference, error, degrees)
        probability = probability_better(*likelihood, margin=margin, prior_scale=prior_scale)
        expected = by_quadrature(*likelihood, margin, prior_scale)
        assert probability == pytest.approx(expected, abs=1e-9)
        back = probability_better(-difference, error, degrees, prior_scale=prior_scale)
        there = probability_better(*likelihood, prior_scale=prior_scale)
        assert there == pytest.approx(1 - back, abs=1e-12)


def test_a_wide_prior_is_a_flat_one():
    for prior_scale in (1e5, 1e6, 1e150):
        probability = probability_better(-3.0, 1.0, 9, prior_scale=prior_scale)
        assert probability == pytest.approx(stats.t.cdf(3.0, 9), abs=1e-9)


def test_the_probability_with_a_prior_is_right_on_average():
    rng = np.random.default_rng(3)
    truth = rng.normal(0, 0.5, 200)
    estimates = truth + 0.4 * rng.normal(size=200)
    stated = np.array([probability_better(x, 0.4, 1000, prior_scale=0.5) for x in estimates])
    sure = stated > 0.8
    assert np.mean(truth[sure] < 0) == pytest.approx(stated[sure].mean(), abs=0.07)


def test_without_noise_and_wrong_arguments():
    assert probability_better(-1.0, 0.0, 5, margin=0.5) == 1.0
    assert probability_better(-1.0, 0.0, 5, margin=1.5) == 0.0
    # Equal runs speak for neither, as in the limit of little noise.
    assert probability_better(0.0, 0.0, 5) == probability_better(0.0, 1e-9, 5) == 0.5
    for name in ("margin", "prior_scale"):
        with pytest.raises(ValueError, match=f"`{name}`"):
            probability_better(-1.0, 0.5, 5, **{name: -1})
    with pytest.raises(ValueError, match="`standard_error`"):
        probability_better(1.0, -1.0, 5)
