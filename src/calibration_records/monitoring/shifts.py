"""A test for shifts, valid at any time: do the labels still follow the predictions?

A shift is a change of all logits by θ from some time block on. With right predictions p, the
likelihood ratio of the labels since then, `Π exp(θ y) / (1 + p (exp(θ) - 1))`, has the mean 1,
whatever came before and whenever you look: it is an e-process. The evidence adds these ratios over
the blocks in which a shift may have begun, each times the length of its block in years, and
averages them over the sizes θ. Its mean is then at most y, the number of years so far. By the
inequality of Doob and Ville, it reaches 1 / α within y years with a probability of at most α y.

Reference:
    Shiryaev, *On optimum methods in quickest detection problems*, 1963. Ramdas, Grünwald, Vovk,
    Shafer, *Game-theoretic statistics and safe anytime-valid inference*, Statistical Science 2023.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.special import logsumexp

from calibration_records.monitoring.sums import Sums

# Changes of the logit beyond the tolerance, of both signs. Each is twice the one before, so that
# for any shift in their range, one change differs from it by at most a factor of √2.
_SIZES = 0.005 * 2.0 ** np.arange(9)
SHIFTS = np.concatenate([-_SIZES, _SIZES])
# Number of sums whose ratios are in memory at once, unless a value has more blocks.
_TOGETHER = 1 << 16


def most_log_years(sums: Sums, years: float) -> np.ndarray:
    """An upper bound of the log evidence of values, from their sums over this many years.

    A ratio is at most `exp(θ)` for each positive, or if θ < 0 for each predicted positive.
    """
    return SHIFTS.max() * np.maximum(sums.positives, sums.predicted) + np.log(years)


def find_shifts(
    sums: Sums, value: np.ndarray, block: np.ndarray, years: float, tolerance: float
) -> tuple[np.ndarray, np.ndarray, Sums]:
    """The shift of each value: log of its evidence in years, likeliest start, sums since then.

    Args:
        sums: Sums of the groups.
        value: Number of each group's value, from 0, in ascending order.
        block: Start of each group's time block.
        years: Length of a block.
        tolerance: Relative error that does not matter.

    Example:
        >>> ones = np.ones(3)  # for three blocks of a year
        >>> sums = Sums(1000 * ones, np.array([100.0, 100.0, 150.0]), 100 * ones, 10 * ones)
        >>> log_years, since, _ = find_shifts(sums, np.zeros(3, int), np.arange(3), 1.0, 0.0)
        >>> np.exp(log_years).round(), since
        (array([4777.]), array([2]))
    """
    firsts = np.flatnonzero(np.diff(value, prepend=-1))
    parts = [
        _detect_shifts(
            sums.select(part), value[part] - value[part.start], block[part], years, tolerance
        )
        for part in _split_groups(firsts, len(value))
    ]
    log_years, since = (np.concatenate(column) for column in zip(*parts, strict=True))
    # Sums from the likeliest start on, to show predicted and observed rates since then.
    is_since = block >= since[value]
    return log_years, since, Sums(*(column * is_since for column in sums)).added(firsts)


def _split_groups(firsts: np.ndarray, num_groups: int) -> Iterator[slice]:
    """Slices of groups, all groups of a value in one."""
    # Cut at the first value that begins after each multiple of the limit.
    near = np.searchsorted(firsts, np.arange(_TOGETHER, num_groups, _TOGETHER))
    starts = np.unique([0, *firsts[near[near < len(firsts)]]])
    for start, end in zip(starts, [*starts[1:], num_groups], strict=True):
        yield slice(int(start), int(end))


def _detect_shifts(
    sums: Sums, value: np.ndarray, block: np.ndarray, years: float, tolerance: float
) -> tuple[np.ndarray, np.ndarray]:
    """Log of the evidence of each value, and its most likely start."""
    ratios = log_ratios(sums, tolerance)
    size = (int(value[-1]) + 1, len(SHIFTS))
    evidence = np.full(size, -np.inf)
    # The largest ratio since any block, and that block.
    largest = np.zeros(size)
    since = np.zeros(size, block.dtype)
    by_block = np.argsort(block, kind="stable")
    starts, firsts = np.unique(block[by_block], return_index=True)
    for start, groups in zip(starts, np.split(by_block, firsts[1:]), strict=True):
        at = value[groups]
        ratio = ratios[groups]
        # Shiryaev and Roberts' recursion `R ← (R + years) Λ`: a shift may begin with this block,
        # and the new ratio multiplies all starts so far.
        evidence[at] = np.logaddexp(evidence[at], np.log(years)) + ratio
        # Page's CUSUM: while the best sum of log ratios is not above 0, a later start is likelier.
        since[at] = np.where(largest[at] > 0, since[at], start)
        largest[at] = np.maximum(largest[at], 0) + ratio
    # The mean over the sizes of shifts keeps the e-process valid; the largest would not.
    log_years = logsumexp(evidence, axis=1) - np.log(len(SHIFTS))
    return log_years, since[np.arange(len(since)), np.argmax(largest, axis=1)]


def log_ratios(sums: Sums, tolerance: float) -> np.ndarray:
    """A lower bound of the log likelihood ratio of each group and shift (groups, shifts).

    It is `θ Σ y - Σ log(1 + r p (exp(θ) - 1))`. The rate r, 1 + tolerance for θ > 0 and its inverse
    for θ < 0, is the tolerated error closest to the shift. Only the number n of probabilities,
    their sum m and their sum of squares s are known. Given these, the second sum is largest for two
    different probabilities, one of them 1 (θ > 0) or 0 (θ < 0), because the third derivative of the
    logarithm by p has the sign of θ (Chebyshev, Markov, Krein). With equal probabilities, the bound
    is the ratio itself.
    """
    rows, positives, mean, squares = (column[:, None] for column in sums)
    # Bounds of s for n probabilities of sum m (Cauchy-Schwarz); rounding may leave them.
    squares = np.clip(squares, mean**2 / rows, mean)
    down = np.expm1(SHIFTS[SHIFTS < 0]) / (1 + tolerance)
    up = np.expm1(SHIFTS[SHIFTS > 0]) * (1 + tolerance)
    # θ < 0: `m² / s` rows with the probability s / m, all others with 0, have the sums m and s.
    trials = _divide(mean**2, squares)
    share = _divide(squares, mean)
    falls = trials * np.log1p(share * down)
    # θ > 0: k rows with probability 1, and n - k with `(m - k) / (n - k)`, have the sums m and s
    # for `k = (n s - m²) / (n - 2 m + s)`.
    ones = _divide(rows * squares - mean**2, rows - 2 * mean + squares, mean)
    # If all probabilities are close to 1, k is a ratio of rounding errors; whatever it is, the mean
    # stays right.
    ones = np.clip(ones, 0.0, mean)
    share = _divide(mean - ones, rows - ones)
    rises = (rows - ones) * np.log1p(share * up) + ones * np.log1p(up)
    return positives * SHIFTS - np.concatenate([falls, rises], axis=1)


def _divide(part: np.ndarray, total: np.ndarray, otherwise: np.ndarray | float = 0.0) -> np.ndarray:
    """The ratio, or `otherwise` where the total is 0."""
    return np.where(total > 0, part / np.where(total > 0, total, 1.0), otherwise)
