import numpy as np
import pytest
from scipy import stats

from keras_calibration.statistics import pitman_morgan, std_ratio


def losses(rng, ratio, shape, correlation=0.8):
    """Pairs of values of which the first has `ratio` times the spread of the second."""
    common = rng.normal(size=shape)
    y = np.sqrt(correlation) * common + np.sqrt(1 - correlation) * rng.normal(size=shape)
    x = np.sqrt(correlation) * common + np.sqrt(1 - correlation) * rng.normal(size=shape)
    return ratio * x, y


def test_the_p_value_is_that_of_sum_and_difference():
    x, y = losses(np.random.default_rng(0), 0.7, 25)
    expected = stats.pearsonr(x + y, x - y).pvalue
    assert pitman_morgan(x, y).p_value == pytest.approx(expected, rel=1e-9)


def test_interval_and_p_value_agree_on_what_is_seen():
    rng = np.random.default_rng(1)
    for _ in range(50):
        x, y = losses(rng, 0.8, 12)
        estimate = pitman_morgan(x, y)
        assert estimate.excludes(1.0) == (estimate.p_value < 0.05)


def test_the_jackknife_by_leaving_out_one_run_at_a_time():
    x, y = losses(np.random.default_rng(2), 0.7, 9)
    log = lambda keep: np.log(np.std(x[keep], ddof=1) / np.std(y[keep], ddof=1))  # noqa: E731
    whole = log(np.arange(9))
    pseudo = [9 * whole - 8 * log(np.arange(9) != left) for left in range(9)]
    half = stats.t.ppf(0.975, 8) * np.std(pseudo, ddof=1) / 3
    expected = np.exp([whole, whole - half, whole + half])
    np.testing.assert_allclose(std_ratio(x, y)[:3], expected, rtol=1e-10)


def test_scale_and_sides():
    x, y = losses(np.random.default_rng(3), 0.7, 30)
    for function in (std_ratio, pitman_morgan):
        there, back = function(1e-4 * x, 1e-4 * y), function(y, x)
        np.testing.assert_allclose(there[:3], [1 / back.value, 1 / back.high, 1 / back.low])


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("num_runs", [5, 10, 60])
def test_coverage_and_type_1_error_for_normal_values(num_runs):
    rng = np.random.default_rng(4)
    for function, least in ((pitman_morgan, 0.93), (std_ratio, 0.89)):
        x, y = losses(rng, 0.75, (800, num_runs))
        covered = [not function(*pair).excludes(0.75) for pair in zip(x, y, strict=True)]
        assert least <= np.mean(covered) <= 0.98
    x, y = losses(rng, 1.0, (800, num_runs))
    refused = [pitman_morgan(*pair).p_value < 0.05 for pair in zip(x, y, strict=True)]
    assert np.mean(refused) <= 0.065


def test_pairing_is_worth_its_power():
    rng = np.random.default_rng(5)
    x, y = losses(rng, 0.81, (200, 60))
    pairs = list(zip(x, y, strict=True))
    paired = np.mean([std_ratio(*pair).excludes(1.0) for pair in pairs])
    unpaired = np.mean([std_ratio(*pair, paired=False).excludes(1.0) for pair in pairs])
    assert paired > unpaired + 0.2


def test_no_spread_has_no_ratio():
    for function in (std_ratio, pitman_morgan):
        assert np.isnan(function(np.ones(5), np.arange(5.0))[:3]).all()


def test_refuses_two_runs():
    for function in (std_ratio, pitman_morgan):
        with pytest.raises(ValueError, match="at least 3 runs"):
            function([1.0, 2.0], [1.0, 3.0])
