"""The ECCE of segments against row-by-row sums, and its p-values against simulated labels."""

import numpy as np
import pytest

from keras_calibration._solvers.cumulative_error import brownian_range_tail, segment_figures

# `_ecce_cdf` of mcgrad 0.1.5, in which small tails have too few digits to compare.
CDF_OF_MCGRAD = {
    0.5: 8.777772248109397e-08,
    0.8: 0.005963665192105679,
    1.0: 0.06336458792045059,
    1.5: 0.4870592457697518,
    2.0: 0.8185056606058126,
    3.0: 0.9892008315323616,
}


def figures_of_draws(predictions, num_draws, seed=0, weights=None):
    """Segments with the same predictions, each with labels drawn from them."""
    rng = np.random.default_rng(seed)
    n = len(predictions)
    labels = (rng.random((num_draws, n)) < predictions).astype(float).ravel()
    tiled = np.tile(predictions, num_draws)
    order = np.argsort(tiled, kind="stable")
    w = np.tile(np.ones(n) if weights is None else weights, num_draws)
    ids = np.repeat(np.arange(num_draws), n)
    return segment_figures(labels[order], tiled[order], w[order], ids[order])


def test_tail_of_the_range_of_a_brownian_motion():
    for x, expected in CDF_OF_MCGRAD.items():
        assert brownian_range_tail(x) == pytest.approx(1 - expected, rel=1e-12)
    assert brownian_range_tail([0.0, 1e-300, np.inf]).tolist() == [1, 1, 0]
    assert brownian_range_tail(20.0) == pytest.approx(8 * 2.753624e-89, rel=1e-6)  # 8 Φ(-20)
    x = np.linspace(0, 12, 5001)
    tail = brownian_range_tail(x)
    assert (np.diff(tail) <= 0).all()
    assert (np.diff(tail[x > 0.7]) < 0).all()
    # The mean of the range is the integral of its tail, and is known.
    assert np.trapezoid(tail, x) == pytest.approx(np.sqrt(8 / np.pi), rel=1e-6)


@pytest.mark.parametrize(("rate", "num_rows"), [(0.3, 100), (0.03, 100), (0.003, 300)])
def test_p_values_hold_for_few_positives_too(rate, num_rows):
    spread = np.random.default_rng(1).normal(0, 0.7, num_rows)
    predictions = 1 / (1 + np.exp(spread - np.log(rate / (1 - rate))))
    for weights in (None, np.random.default_rng(2).exponential(size=num_rows)):
        figures = figures_of_draws(predictions, 3000, weights=weights)
        received = figures.p_value
        assert (received >= brownian_range_tail(figures.deviations) - 1e-12).all()
        for level in (0.1, 0.01, 0.001):
            # Three standard errors of the share.
            assert (received <= level).mean() <= level + 3 * np.sqrt(level / 3000)


def test_rounding_is_no_evidence():
    # Predictions of exactly 0 and 1 have no variance: any error would be infinitely significant.
    labels = np.tile([0.0, 1.0], 5000)
    ids = np.random.default_rng(0).integers(0, 50, 10_000)
    predictions = np.where(ids % 2, labels, 0.1)  # the even segments move the running sum
    order = np.argsort(predictions, kind="stable")
    figures = segment_figures(labels[order], predictions[order], np.ones(10_000), ids[order])
    assert (figures.deviations[1::2] == 0).all()
    assert (figures.p_value[1::2] == 1).all()
    assert (figures.deviations[::2] > 5).all()
    wrong = segment_figures(1 - labels[order], predictions[order], np.ones(10_000), ids[order])
    assert (wrong.deviations[1::2] == np.inf).all()
    assert (wrong.p_value[1::2] == 0).all()
