"""What the runs of a study say about a claim: reproduced, not reproduced, undecided, not tested.

A claim over data sets has one p-value, of `sign_test` or `wilcoxon`. A claim about pairs of
pipelines has the gain in accuracy of `bootstrap_gain` and its p-value. `holm` adjusts the p-values
of a family of claims, and `verdict` puts the result into words.
"""

import math
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import scipy.stats
from numpy.typing import NDArray

from keras_calibration.statistics import Estimate

LEVEL = 0.05
REPRODUCED, NOT_REPRODUCED, UNDECIDED, NOT_TESTED = (
    "reproduced",
    "not reproduced",
    "undecided",
    "not tested",
)


class Comparison(NamedTuple):
    """Runs of two pipelines that a metric has to tell apart.

    Args:
        better: Position of the better pipeline, as decided by other seeds than these.
        worse: Position of the other pipeline.
        seeds: Positions of the seeds whose runs are compared, at least three.
    """

    better: int
    worse: int
    seeds: Sequence[int]


def sign_test(wins: int, losses: int) -> float:
    """The two-sided p-value of a sign test: as likely to win as to lose; 1 without data sets.

    Args:
        wins: Number of data sets where the claim holds.
        losses: Number of data sets where the opposite holds. Ties are left out.
    """
    return float(scipy.stats.binomtest(wins, wins + losses).pvalue) if wins + losses else 1.0


def wilcoxon(gains: Sequence[float]) -> float:
    """The exact two-sided p-value of Wilcoxon's signed-rank test; 1 if all gains are 0.

    Zeros are left out. The p-value is that of all signs of the ranks, also where some are equal.

    Args:
        gains: For each data set by how much the claim holds; negative where it does not. They must
            be of one scale, for example relative to the loss of the data set.
    """
    others = np.array([gain for gain in gains if gain != 0], np.float64)
    if not len(others):
        return 1.0
    # Equal gains share half ranks: doubled, all ranks are whole.
    ranks = np.rint(2 * scipy.stats.rankdata(np.abs(others))).astype(int)
    chances = np.ones(1)  # of each sum of the ranks of positive gains
    for rank in ranks:
        chances = np.convolve(chances, [0.5, *np.zeros(rank - 1), 0.5])
    found = ranks[others > 0].sum()
    tail = min(chances[: found + 1].sum(), chances[found:].sum())
    return float(min(2 * tail, 1.0))


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values adjusted by Holm's method: the k-th smallest of m times m − k + 1, made monotone.

    Claims whose adjusted p-value is at most α hold with an error in any of them of at most α,
    however the p-values depend on each other.

    Args:
        p_values: One for each claim of the family. A NaN is not counted and stays NaN.
    """
    values = np.asarray(p_values, np.float64)
    tested = np.flatnonzero(~np.isnan(values))
    order = tested[np.argsort(values[tested], kind="stable")]
    factors = np.arange(len(order), 0, -1)
    adjusted = values.copy()
    adjusted[order] = np.minimum(np.maximum.accumulate(values[order] * factors), 1.0)
    return adjusted.tolist()


def verdict(
    p_value: float,
    direction: float,
    *,
    is_tested: bool = True,
    high: float = math.inf,
    relevant: float = 0.0,
) -> str:
    """What the runs say about a claim, in words.

    - *not tested*: the runs are too unlike the paper's to bear on the claim, or there are too few.
    - *reproduced*: the effect has the claimed direction, and its p-value, adjusted by Holm's method
      for the claims that are made together, is at most 5 %.
    - *not reproduced*: the effect has the other direction and an adjusted p-value of at most 5 %,
      or its 95 % interval lies below the relevant size, which is half of the mean gain that the
      papers report for this kind of pairs.
    - *undecided*: none of these.

    Args:
        p_value: Two-sided p-value, adjusted. NaN is undecided, unless the interval decides.
        direction: The effect, or its sign: positive in the direction of the claim.
        is_tested: Whether the runs bear on the claim.
        high: Upper end of the 95 % interval of the effect, if there is one.
        relevant: The smallest effect that would confirm the claim; 0 if none is known.
    """
    if not is_tested:
        return NOT_TESTED
    is_significant = p_value <= LEVEL
    if is_significant and direction > 0:
        return REPRODUCED
    if (is_significant and direction < 0) or high < relevant:
        return NOT_REPRODUCED
    return UNDECIDED


def relevant_gain(published: Iterable[str]) -> float:
    """Half of the mean published gain, as a share of 1; 0 if none is known.

    The smallest published gain is no measure: it is 0 where the plain loss is already almost always
    right.

    Args:
        published: Texts with accuracies in percent, each `"plain → calibrated"`, such as
            `"69.6 → 73.6, 80.1 → 86.1"`.

    Example:
        >>> relevant_gain(["69.6 → 73.6, 80.1 → 86.1", "78.3 → illegible", ""])
        0.025
    """
    number = r"(\d+(?:\.\d+)?)"
    found = [
        float(calibrated) - float(plain)
        for text in published
        for plain, calibrated in re.findall(f"{number} → {number}", text)
    ]
    return round(sum(found) / len(found) / 200, 6) if found else 0.0


def bootstrap_gain(
    plain: NDArray[np.float64],
    calibrated: NDArray[np.float64],
    comparisons: Sequence[Comparison],
    *,
    num_draws: int = 1000,
    seed: int = 0,
) -> Estimate:
    """How much more often a calibrated loss finds the better pipeline than the plain loss does.

    The gain is the mean over the comparisons. Its standard error is that of a two-way bootstrap,
    which draws the blocks of held-out rows again, the same for all runs, and the seeds. Runs of
    different pipelines with the same seed share the order of their rows, so a seed is drawn or left
    out in all pipelines, and two runs of one seed are never compared. Comparisons of the same seeds
    have the same draws; those of others, such as the odd and the even ones, have their own. Of n
    blocks or seeds, n − 1 are drawn, which makes the variance of a mean unbiased. The interval is
    Student's, around the gain: draws of rows have a lower accuracy than the sample on average.

    Args:
        plain: Plain losses by block, shape `(num_pipelines, num_seeds, num_blocks)`, with at least
            two blocks: the mean over the blocks is the loss of the run.
        calibrated: The calibrated ones, of the same shape.
        comparisons: Which runs are compared, at least one. A pair whose better pipeline was decided
            by the even seeds for the odd ones, and the other way round, has two.
        num_draws: Number of bootstrap draws.
        seed: Seed of the draws.

    Returns:
        The gain as a share of 1 with its 95 % interval and two-sided p-value; the p-value is 1
        if the draws are all the same.
    """
    generator = np.random.default_rng(seed)
    num_blocks = plain.shape[-1]
    shares = np.full(num_blocks, 1 / num_blocks)
    blocks = np.concatenate(
        [shares[None], generator.multinomial(num_blocks - 1, shares, num_draws) / (num_blocks - 1)]
    )
    # The sample is the first draw. Shape (num_draws + 1, num_pipelines, num_seeds).
    drawn = [np.moveaxis(losses @ blocks.T, -1, 0) for losses in (plain, calibrated)]
    counts: dict[tuple[int, ...], NDArray[np.float64]] = {}
    gains = np.zeros(num_draws + 1)
    for better, worse, seeds in comparisons:
        chosen = tuple(seeds)
        if chosen not in counts:
            counts[chosen] = _seed_counts(len(chosen), num_draws, generator)
        places = list(chosen)
        before, after = (
            _accuracies(losses[:, better, places], losses[:, worse, places], counts[chosen])
            for losses in drawn
        )
        gains += (after - before) / len(comparisons)
    value, error = float(gains[0]), float(gains[1:].std(ddof=1))
    degrees = sum(len(seeds) - 1 for seeds in counts)
    half = float(scipy.stats.t.ppf(1 - LEVEL / 2, degrees)) * error
    p_value = float(2 * scipy.stats.t.sf(abs(value) / error, degrees)) if error else 1.0
    return Estimate(value, value - half, value + half, p_value=p_value)


def _seed_counts(
    num_seeds: int, num_draws: int, generator: np.random.Generator
) -> NDArray[np.float64]:
    """How often each seed is drawn, `(num_draws + 1, num_seeds)`; the first row is the sample."""
    shares = np.full(num_seeds, 1 / num_seeds)
    counts = generator.multinomial(num_seeds - 1, shares, num_draws)
    # One seed alone has no other to be compared with.
    while (alone := (counts > 0).sum(axis=1) < 2).any():
        counts[alone] = generator.multinomial(num_seeds - 1, shares, int(alone.sum()))
    return np.concatenate([np.ones((1, num_seeds)), counts]).astype(np.float64)


def _accuracies(
    better: NDArray[np.float64], worse: NDArray[np.float64], counts: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Share of the pairs of runs of different seeds that are won, for each draw.

    Args:
        better: Losses of the better pipeline's runs, shape `(num_draws, num_seeds)`.
        worse: Those of the worse one.
        counts: How often each seed is drawn, of the same shape.
    """
    gap = worse[:, None, :] - better[:, :, None]
    wins = (gap > 0) + 0.5 * (gap == 0)
    own = np.einsum("tii,ti->t", wins, counts**2)
    total = np.einsum("ti,ti->t", counts, np.einsum("tij,tj->ti", wins, counts)) - own
    return total / (counts.sum(axis=1) ** 2 - (counts**2).sum(axis=1))
