"""V1 and A1 of HYPOTHESES.md, from runs with rotated held-out folds.

Each fold of a table has seeds and held-out rows of its own. Errors are those of a two-way
bootstrap: within each fold, its blocks of rows are drawn again, and its seeds, the same ones for
all pipelines.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy.stats
from numpy.typing import NDArray
from pairs import MAX_ACCURACY, Pair

from verdicts import Effect, accuracies, on_drawn_blocks, seed_counts, student_effect

NUM_DRAWS = 2000
CONFIDENCE = 0.95

Array = NDArray[np.float64]


class Fold(NamedTuple):
    """The losses of all runs that hold out the same rows, by block of these rows.

    Args:
        plain: Plain losses, shape `(num_pipelines, num_seeds, num_blocks)`.
        calibrated: Calibrated losses of the same runs.
    """

    plain: Array
    calibrated: Array


class Drawn(NamedTuple):
    """A fold whose seeds and rows are drawn again; the first draw is the sample.

    Args:
        plain: Plain losses on the drawn rows, shape `(num_draws + 1, num_pipelines, num_seeds)`.
        calibrated: The calibrated ones.
        counts: How often each seed is drawn, shape `(num_draws + 1, num_seeds)`.
    """

    plain: Array
    calibrated: Array
    counts: Array


class PairGain(NamedTuple):
    """What the folds say about a pair.

    Args:
        pair: The pair.
        num_counted: Number of folds that count.
        better: The better pipeline in most of them.
        plain: Accuracy of the plain loss, a mean over the folds that count.
        calibrated: Accuracy of the calibrated loss.
        gains: Gain in each draw, `(num_draws + 1,)`.
        distance: P in the folds that decide, a mean over the folds that count.
    """

    pair: Pair
    num_counted: int
    better: str
    plain: float
    calibrated: float
    gains: Array
    distance: float


def draw(folds: Sequence[Fold], *, num_draws: int = NUM_DRAWS, seed: int = 0) -> list[Drawn]:
    """Draws the seeds and the blocks of rows of each fold again.

    Of n seeds or blocks, n − 1 are drawn, which makes the variance of a mean unbiased.
    """
    generator = np.random.default_rng(seed)
    drawn = []
    for fold in folds:
        losses = on_drawn_blocks(fold, num_draws, generator)
        drawn.append(Drawn(*losses, seed_counts(fold.plain.shape[1], num_draws, generator)))
    return drawn


def log_std_ratios(drawn: Sequence[Drawn]) -> Array:
    """½ log of the ratio of the seeds' variances, each a mean over the folds.

    Returns:
        Calibrated over plain, for each draw and pipeline, shape `(num_draws + 1, num_pipelines)`.
    """
    plain, calibrated = (
        np.mean([_variances(fold[k], fold.counts) for fold in drawn], axis=0) for k in (0, 1)
    )
    return np.asarray(0.5 * np.log(calibrated / plain))


def _variances(losses: Array, counts: Array) -> Array:
    """The variance over the drawn seeds, for each draw and pipeline."""
    weights = (counts / counts.sum(axis=1, keepdims=True))[:, None, :]
    means = (weights * losses).sum(axis=-1, keepdims=True)
    scale = counts.sum(axis=1) / (counts.sum(axis=1) - 1)
    return scale[:, None] * (weights * (losses - means) ** 2).sum(axis=-1)


def mean_shifts(drawn: Sequence[Drawn]) -> Array:
    """The mean calibrated loss relative to the mean plain loss, minus 1, as `log_std_ratios`."""

    def mean(k: int) -> Array:
        parts = [
            np.einsum("tps,ts->tp", fold[k], fold.counts) / fold.counts.sum(axis=1)[:, None]
            for fold in drawn
        ]
        return np.mean(parts, axis=0)

    return mean(1) / mean(0) - 1


def win_share(folds: Sequence[Fold], first: int, second: int) -> tuple[float, float, int]:
    """The chance P that a run of the first pipeline has a lower plain loss than one of the second.

    Returns:
        The mean over the folds of the share of pairs of runs with different seeds, its standard
        error over the seeds, and the degrees of freedom.
    """
    shares, variances, degrees = [], [], 0
    for fold in folds:
        losses = fold.plain[[first, second]].mean(axis=-1)
        num_seeds = losses.shape[1]
        gap = losses[1][None, :] - losses[0][:, None]
        wins = ((gap > 0) + 0.5 * (gap == 0)) * (1 - np.eye(num_seeds))
        # The contribution of a seed, to either side of a pair of runs.
        parts = (wins.sum(axis=0) + wins.sum(axis=1)) / (num_seeds - 1)
        shares.append(parts.mean() / 2)
        variances.append(parts.var(ddof=1) / num_seeds)
        degrees += num_seeds - 1
    return float(np.mean(shares)), math.sqrt(sum(variances)) / len(folds), degrees


def decide(
    folds: Sequence[Fold], first: int, second: int, min_share: float = 0.5
) -> tuple[int, int] | None:
    """The better and the worse of two pipelines by Definition 1, if these folds tell.

    They tell if the 95 % interval of P over the seeds leaves out ½, and the larger of P and 1 − P
    is at least `min_share` and below 98.5 %, from where on single runs are nearly always right.
    """
    share, error, degrees = win_share(folds, first, second)
    reach = float(scipy.stats.t.ppf((1 + CONFIDENCE) / 2, degrees)) * error
    if abs(share - 0.5) <= reach or not min_share <= max(share, 1 - share) < MAX_ACCURACY:
        return None
    return (first, second) if share > 0.5 else (second, first)


def pair_gains(
    names: Sequence[str],
    folds: Sequence[Fold],
    drawn: Sequence[Drawn],
    pairs: Sequence[Pair],
    min_share: float = 0.5,
) -> list[PairGain]:
    """The gain in accuracy of each pair that counts in a fold, as other folds decide.

    Args:
        names: The pipelines.
        folds: The folds, at least two.
        drawn: Result of `draw`.
        pairs: Pairs of these pipelines.
        min_share: How often the better pipeline must win in the other folds at least.
    """
    gains = []
    for pair in pairs:
        first, second = names.index(pair.first), names.index(pair.second)
        plain: list[Array] = []
        calibrated: list[Array] = []
        better: list[int] = []
        distances: list[float] = []
        for number, drawn_fold in enumerate(drawn):
            deciding = [fold for place, fold in enumerate(folds) if place != number]
            if (decided := decide(deciding, first, second, min_share)) is None:
                continue
            better.append(decided[0])
            distances.append(win_share(deciding, *decided)[0])
            for losses, into in ((drawn_fold.plain, plain), (drawn_fold.calibrated, calibrated)):
                low, high = (losses[:, place] for place in decided)
                into.append(accuracies(low, high, drawn_fold.counts))
        if better:
            before, after = np.mean(plain, axis=0), np.mean(calibrated, axis=0)
            winner = names[max(set(better), key=better.count)]
            values = (float(before[0]), float(after[0]), after - before)
            distance = float(np.mean(distances))
            gains.append(PairGain(pair, len(better), winner, *values, distance))
    return gains


def effect_of(draws: Array, degrees: int) -> Effect:
    """The effect in the sample, the first draw; the spread of the other draws is its error."""
    return student_effect(float(draws[0]), float(draws[1:].std(ddof=1)), degrees)
