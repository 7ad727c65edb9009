"""Intervals over seeds and test rows, against simulations with known variances."""

import numpy as np
import pytest

import two_way_bootstrap
from two_way_bootstrap import pseudo_values, two_way_interval

pytestmark = pytest.mark.slow


def test_the_mean_of_the_pseudo_values_is_the_metric():
    rng = np.random.default_rng(3)
    values, without = rng.normal(size=4), rng.normal(size=(4, 7))
    np.testing.assert_allclose(pseudo_values(values, without).mean(axis=1), values, atol=1e-12)


@pytest.mark.parametrize(
    ("of_seed", "of_block", "of_rest"), [(1, 1, 1), (1, 0.1, 0.5), (0.1, 1, 0.5), (0, 0, 1)]
)
def test_the_interval_covers_the_difference(of_seed, of_block, of_rest, monkeypatch):
    monkeypatch.setattr(two_way_bootstrap, "NUM_DRAWS", 1_000)
    rng = np.random.default_rng(1)
    num_covered = num_refused = 0
    for _ in range(300):
        first = rng.normal(size=(10, 1)) + rng.normal(size=20)
        effects = of_seed * rng.normal(size=(10, 1)) + of_block * rng.normal(size=20)
        second = first + 0.3 + effects + of_rest * rng.normal(size=(10, 20))
        num_covered += not two_way_interval(first, second).excludes(0.3)
        num_refused += two_way_interval(first + 0.3, second).p_value < 0.05
    # Where seeds and blocks have no effects of their own, the interval is a little too wide.
    assert 0.92 <= num_covered / 300 <= (0.97 if of_seed or of_block else 0.99)
    assert 0.01 <= num_refused / 300 <= 0.08
