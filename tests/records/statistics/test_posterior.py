import numpy as np
import pytest
from scipy import integrate, stats

from keras_calibration.statistics import probability_better


def test_a_flat_prior_is_students_t():
    for margin in (0.0, 0.3):
        expected = stats.t.cdf((0.8 - margin) / 0.5, 9)
        probability = probability_better(-0.8, 0.5, 9, margin=margin)
        assert probability == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("margin", [0.0, 0.2])
def test_a_prior_as_by_quadrature(margin):
    def density(delta):
        return stats.t.pdf((-0.8 - delta) / 0.4, 5) * stats.norm.pdf(delta, scale=0.5)

    below, whole = (
        integrate.quad(density, -8, end, points=[-0.8, 0], limit=200)[0] for end in (-margin, 8)
    )
    probability = probability_better(-0.8, 0.4, 5, margin=margin, prior_scale=0.5)
    assert probability == pytest.approx(below / whole, abs=1e-5)
    turned = probability_better(0.8, 0.4, 5, prior_scale=0.5)
    assert turned == pytest.approx(1 - probability_better(-0.8, 0.4, 5, prior_scale=0.5), abs=1e-9)


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
    assert probability_better(0.0, 0.0, 5) == 0.0
    for name in ("margin", "prior_scale"):
        with pytest.raises(ValueError, match=f"`{name}`"):
            probability_better(-1.0, 0.5, 5, **{name: -1})
