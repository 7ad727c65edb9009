"""Standard errors of means: of independent rows, of many small groups and of few blocks."""

import numpy as np
import pytest

from keras_calibration._solvers.standard_errors import mean_and_error

RNG = np.random.default_rng(0)


def test_rows_that_are_there_four_times_have_the_error_of_the_rows():
    values, weights = RNG.normal(size=300), RNG.exponential(size=300)
    mean, error = mean_and_error(values, weights)
    groups = np.repeat(np.arange(300), 4)
    again = mean_and_error(np.repeat(values, 4), np.repeat(weights, 4), None, groups)
    assert again == pytest.approx((mean, error * np.sqrt(300 / 299)), rel=1e-12)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_the_error_of_many_small_groups_is_the_spread_of_the_mean(share):
    """Groups of one to six rows, whose values have a common part."""
    group = np.repeat(np.arange(200), np.tile([1, 2, 3, 6], 50))
    weights = RNG.exponential(size=len(group))
    means, errors = [], []
    for _ in range(1000):
        common, own = RNG.normal(size=200)[group], RNG.normal(size=len(group))
        values = np.sqrt(share) * common + np.sqrt(1 - share) * own
        mean, error = mean_and_error(values, weights, group)
        means.append(mean)
        errors.append(error)
    assert np.mean(errors) == pytest.approx(np.std(means), rel=0.08)


def test_the_largest_error_counts():
    values, rows = RNG.normal(size=60), np.arange(60)
    errors = [mean_and_error(values, None, ids)[1] for ids in (None, rows // 20, rows % 7)]
    assert mean_and_error(values, None, rows // 20, None, rows % 7)[1] == max(errors)
