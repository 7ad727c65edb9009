"""Intervals of differences that cover both the seeds and the choice of the test rows.

Both methods were run under the same seeds and scored on the same test rows. Each metric was also
computed without each of K blocks of test rows (`field_aware_calibration/jackknife.py`). This gives
a pseudo-value of the jackknife for each seed and block: the block's contribution. For a mean over
rows, it is the mean of the block. The difference of two methods' pseudo-values has an effect of the
seed, an effect of the block, and a residual.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from keras_calibration.statistics import Estimate

NUM_DRAWS = 10_000


def pseudo_values(values: ArrayLike, without_block: ArrayLike) -> NDArray[np.float64]:
    """The contributions of seeds and blocks to a metric, `θ + (K − 1) (mean of θ₋ₖ − θ₋ₖ)`.

    Their mean over the blocks is the metric itself. (The usual `K θ − (K − 1) θ₋ₖ` corrects a bias
    of order 1/n. That of errors of fields, sums of absolute values, is of order 1/√n: the
    correction would take away half of their noise floor.)

    Args:
        values: The metric on all test rows, a value for each seed, shape (S,).
        without_block: The metric without each block of test rows, shape (S, K).

    Returns:
        Pseudo-values, shape (S, K).

    Example:
        >>> pseudo_values([2.0], [[1.5, 2.5]])
        array([[2.5, 1.5]])
    """
    without = np.asarray(without_block, np.float64)
    deviations = without.mean(axis=1, keepdims=True) - without
    return np.asarray(values, np.float64)[:, None] + (without.shape[1] - 1) * deviations


def two_way_effects(
    differences: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """The effects a_s of the seeds and b_k of the blocks, and the standard error of the mean.

    Args:
        differences: A value for each seed and block, shape (S, K), with S and K at least 2.
    """
    centred = differences - differences.mean()
    of_seeds, of_blocks = centred.mean(axis=1), centred.mean(axis=0)
    residuals = centred - of_seeds[:, None] - of_blocks
    num_seeds, num_blocks = differences.shape
    parts = [effects.var(ddof=1) / len(effects) for effects in (of_seeds, of_blocks)]
    surplus = (residuals**2).sum() / ((num_seeds - 1) * (num_blocks - 1)) / residuals.size
    return of_seeds, of_blocks, float(np.sqrt(max(sum(parts) - surplus, *parts)))


def two_way_interval(
    first: ArrayLike, second: ArrayLike, *, confidence: float = 0.95, seed: int = 0
) -> Estimate:
    """The mean of the second minus that of the first, over seeds and blocks of test rows.

    With the differences d_sk, a_s their means over the blocks and b_k those over the seeds, less
    the mean of all, the variance is `V(a) / S + V(b) / K − R / (S K)`, where R is the mean square
    of the residuals, which both effects contain. The effects of the seeds and those of the blocks
    are drawn with replacement. Each draw is divided by its own standard error (the bootstrap of t),
    which allows for the few seeds.

    Args:
        first: Pseudo-values of the first method, shape (S, K), with S and K at least 2.
        second: Those of the second method, with the same seeds and blocks.
        confidence: Coverage of the interval.
        seed: Seed of the draws.

    Returns:
        The difference, its interval, and a two-sided p-value of no difference.

    Raises:
        ValueError: If the shapes differ, or there are fewer than two seeds or blocks.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> first = rng.normal(size=(10, 1)) + rng.normal(size=(1, 20))
        >>> second = first - 0.5 + 0.1 * rng.normal(size=(10, 20))
        >>> estimate = two_way_interval(first, second)
        >>> round(estimate.value, 1), estimate.excludes(0.0)
        (-0.5, True)
    """
    first, second = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if first.shape != second.shape or first.ndim != 2 or min(first.shape) < 2:
        raise ValueError(
            "Arguments `first` and `second` must have the same shape (seeds, blocks), with at "
            f"least two of both. Received: shapes {first.shape} and {second.shape}."
        )
    differences = second - first
    value = float(differences.mean())
    of_seeds, of_blocks, error = two_way_effects(differences)
    if error == 0:
        return Estimate(value, value, value, confidence, float(value == 0))
    rng = np.random.default_rng(seed)
    means, variances = np.zeros(NUM_DRAWS), np.zeros(NUM_DRAWS)
    for effects in (of_seeds, of_blocks):
        drawn = rng.choice(effects, (NUM_DRAWS, len(effects)))
        means = means + drawn.mean(axis=1)
        variances = variances + drawn.var(axis=1, ddof=1) / len(effects)
    ratios = means / np.sqrt(np.maximum(variances, 1e-12 * error**2))
    low, high = np.quantile(ratios, [(1 - confidence) / 2, (1 + confidence) / 2])
    num_beyond = np.count_nonzero(np.abs(ratios) >= abs(value) / error)
    p_value = (num_beyond + 1) / (NUM_DRAWS + 1)
    return Estimate(value, value - high * error, value - low * error, confidence, p_value)
