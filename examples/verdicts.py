"""What the runs of a study say about a claim: reproduced, not reproduced, undecided, not tested.

An `Effect` has an interval and a one-sided p-value, positive in the direction of the claim;
`hartung_knapp` makes one of many data sets, and `bootstrap_gain` estimates a gain in accuracy.
`verdict` puts an effect into words. Only the hypotheses of HYPOTHESES.md have verdicts.
"""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import scipy.optimize
import scipy.stats
from numpy.typing import ArrayLike, NDArray

from keras_calibration.statistics import Estimate

LEVEL = 0.05
REPRODUCED, NOT_REPRODUCED, UNDECIDED = "reproduced", "not reproduced", "undecided"
NOT_TESTED = "not tested"
# In place of a verdict, as long as runs are missing.
NOT_RUN = "not run yet"


class Effect(NamedTuple):
    """The size of an effect, positive in the direction of a claim.

    Args:
        value: The estimate.
        low: Lower end of the 90 % interval.
        high: Its upper end.
        p_value: One-sided p-value of no effect, or one in the other direction.
        error: The standard error of the estimate.
        degrees: Its degrees of freedom.
    """

    value: float
    low: float
    high: float
    p_value: float
    error: float
    degrees: float


class Comparison(NamedTuple):
    """Runs of two pipelines that a metric has to tell apart.

    Args:
        better: Position of the better pipeline, as decided by other seeds than these.
        worse: Position of the other pipeline.
        seeds: Positions of the seeds whose runs are compared, at least three.
        weight: Weight in the mean over comparisons. The weights of a pair's comparisons sum to 1,
            so that pairs have equal weights.
    """

    better: int
    worse: int
    seeds: Sequence[int]
    weight: float = 1.0


def student_effect(value: float, error: float, degrees: float) -> Effect:
    """An estimate with Student's interval and p-value, given its standard error."""
    half = float(scipy.stats.t.ppf(1 - LEVEL, degrees)) * error
    p_value = float(scipy.stats.t.sf(value / error, degrees)) if error else float(value <= 0)
    return Effect(value, value - half, value + half, p_value, error, degrees)


def mean_over_tables(values: Sequence[float]) -> Effect | None:
    """The unweighted mean with Student's interval over the tables; `None` below two."""
    if len(values) < 2:
        return None
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return student_effect(float(np.mean(values)), error, len(values) - 1)


def p_text(effect: Effect | None) -> str:
    """The p-value of an effect."""
    return "–" if effect is None else f"{effect.p_value:.2g}"


def ratio_text(effect: Effect | None) -> str:
    """A ratio with its 90 % interval, from the effect minus its logarithm."""
    if effect is None:
        return "–"
    value, high, low = (float(np.exp(-figure)) for figure in effect[:3])
    return f"{value:.2f} [{low:.2f}, {high:.2f}]"


def interval_text(
    effect: Effect | Estimate | None, scale: float = 1.0, decimals: int = 1, less: float = 0.0
) -> str:
    """An effect with its interval, less a constant and times a scale, which may be negative."""
    if effect is None:
        return "–"
    value, *ends = (scale * (figure - less) for figure in effect[:3])
    low, high = (f"{end:+.{decimals}f}" for end in sorted(ends))
    return f"{value:+.{decimals}f} [{low}, {high}]"


def estimate_line(
    claim: str, effect: Effect | None, show: Callable[[Effect | None], str]
) -> dict[str, str]:
    """A line without a verdict, below those of the hypotheses."""
    line = {"hypothesis": "", "claim": claim, "here": show(effect)}
    return line | {"p": p_text(effect), "verdict": "estimate"}


def power(size: float, error: float, degrees: float) -> float:
    """The power of a one-sided test at 5 % for an effect of this size.

    Example:
        >>> round(power(2.5, 1.0, 30), 2)
        0.79
    """
    reach = scipy.stats.t.ppf(1 - LEVEL, degrees)
    with np.errstate(divide="ignore"):  # SciPy 1.13, of its own series
        return float(scipy.stats.nct.sf(reach, degrees, size / error))


def power_text(effect: Effect | None, published: float | None = None, unit: float = 1.0) -> str:
    """The power for the published effect, and the effect, in units, whose power is 80 %."""
    if effect is None:
        return "–"
    visible = scipy.optimize.brentq(
        lambda size: power(size, effect.error, effect.degrees) - 0.8, 0, 20 * effect.error
    )
    text = f"80 % for {visible / unit:.2g}"
    if published is None:
        return text
    return f"{100 * power(published, effect.error, effect.degrees):.0f} %; {text}"


def tables_needed(size: float, effect: Effect) -> int:
    """The number of tables for a power of 80 %, if they differ as much as those of this effect."""
    spread = effect.error * math.sqrt(effect.degrees + 1)
    return next(n for n in range(2, 10_000) if power(size, spread / math.sqrt(n), n - 1) >= 0.8)


def sign_test(wins: int, losses: int) -> float:
    """The two-sided p-value of a sign test: as likely to win as to lose; 1 without data sets.

    Args:
        wins: Number of data sets where the claim holds.
        losses: Number of data sets where the opposite holds. Ties are left out.
    """
    return float(scipy.stats.binomtest(wins, wins + losses).pvalue) if wins + losses else 1.0


def hartung_knapp(values: ArrayLike, errors: ArrayLike) -> Effect:
    """The mean of an effect over data sets that differ in it, by random effects.

    μ = Σ wᵢ yᵢ / Σ wᵢ with wᵢ = 1 / (sᵢ² + τ²), where τ² solves Σ wᵢ (yᵢ − μ)² = k − 1 (Paule and
    Mandel), or is 0. The variance of μ is Σ wᵢ (yᵢ − μ)² / ((k − 1) Σ wᵢ), with k − 1 degrees of
    freedom.

    Args:
        values: The effect in each data set, at least two.
        errors: Their standard errors, positive.

    Reference:
        Hartung, Knapp (2001), *On tests of the overall treatment effect in meta-analysis with
        normally distributed responses*, Statistics in Medicine 20.
    """
    y, variances = np.asarray(values, np.float64), np.asarray(errors, np.float64) ** 2
    if y.shape != variances.shape or y.size < 2 or not (variances > 0).all():
        raise ValueError(
            "Arguments `values` and `errors` must have the same length, at least two, and errors "
            f"above 0. Received: {y.size} values, errors={errors!r}."
        )

    def surplus(between: float) -> tuple[float, float, float]:
        weights = 1 / (variances + between)
        mean = float(weights @ y / weights.sum())
        square = float(weights @ (y - mean) ** 2)
        return square - (y.size - 1), mean, square / (y.size - 1) / float(weights.sum())

    between = 0.0
    if surplus(0.0)[0] > 0:
        between = scipy.optimize.brentq(lambda t: surplus(t)[0], 0.0, float(y.var(ddof=1)))
    _, mean, variance = surplus(between)
    return student_effect(mean, math.sqrt(variance), y.size - 1)


def verdict(effect: Effect | None, relevant: float = 0.0) -> str:
    """What an effect says about a claim whose direction is positive.

    - *reproduced*: p ≤ 5 %, one-sided.
    - *not reproduced*: otherwise, if the 90 % interval lies below the relevant size, which is half
      of the published effect.
    - *undecided*: neither.
    - *not tested*: there is no effect.

    Args:
        effect: The effect; `None` if the runs do not bear on the claim.
        relevant: The smallest effect that would confirm the claim; 0 if none is known.
    """
    if effect is None:
        return NOT_TESTED
    if effect.p_value <= LEVEL:
        return REPRODUCED
    return NOT_REPRODUCED if effect.high < relevant else UNDECIDED


def equivalence_verdict(effect: Effect, margin: float) -> str:
    """What an effect says about the claim that it lies in [−margin, margin], by two tests."""
    if -margin <= effect.low and effect.high <= margin:
        return REPRODUCED
    return NOT_REPRODUCED if effect.low > margin or effect.high < -margin else UNDECIDED


def equivalence_power(effect: Effect, margin: float) -> float:
    """The power of `equivalence_verdict` for an effect with this error whose true size is 0."""
    room = (margin - (effect.high - effect.low) / 2) / effect.error
    return max(0.0, 2 * float(scipy.stats.t.cdf(room, effect.degrees)) - 1)


def joint_verdict(verdicts: Sequence[str]) -> str:
    """The verdict on a claim that has several parts, all of which must be reproduced."""
    for text in (NOT_TESTED, NOT_REPRODUCED, UNDECIDED):
        if text in verdicts:
            return text
    return REPRODUCED


def in_order(verdicts: Sequence[str]) -> list[str]:
    """Verdicts of hypotheses that are tested one after the other, each at 5 %.

    A hypothesis after one that was not reproduced is not reproduced by its test alone: it is
    undecided. So the chance that anything is called reproduced by mistake is at most 5 %.
    """
    is_open, in_turn = True, []
    for text in verdicts:
        in_turn.append(UNDECIDED if text == REPRODUCED and not is_open else text)
        is_open = is_open and text == REPRODUCED
    return in_turn


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
    gains = [calibrated - plain for plain, calibrated in published_accuracies(published)]
    return round(sum(gains) / len(gains) / 200, 6) if gains else 0.0


def published_accuracies(published: Iterable[str]) -> list[tuple[float, float]]:
    """All accuracies in such texts, by the plain and the calibrated loss, in percent."""
    number = r"(\d+(?:\.\d+)?)"
    return [
        (float(plain), float(calibrated))
        for text in published
        for plain, calibrated in re.findall(f"{number} → {number}", text)
    ]


def bootstrap_gain(
    plain: NDArray[np.float64],
    calibrated: NDArray[np.float64],
    comparisons: Sequence[Comparison],
    *,
    num_draws: int = 1000,
    seed: int = 0,
) -> Estimate:
    """How much more often a calibrated loss finds the better pipeline than the plain loss does.

    The gain is the weighted mean over the comparisons. Its standard error is that of a two-way
    bootstrap, which draws the blocks of held-out rows again, the same for all runs, and the seeds.
    Runs of different pipelines with the same seed share the order of their rows, so a seed is
    drawn or left out in all pipelines, and two runs of one seed are never compared. Comparisons on
    the same seeds share their draws; odd and even seeds are drawn independently. Of n blocks or
    seeds, n − 1 are drawn, which makes the variance of a mean unbiased. The interval is Student's,
    around the gain of the sample, because draws of rows have a lower accuracy on average.

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
    drawn = on_drawn_blocks((plain, calibrated), num_draws, generator)
    counts: dict[tuple[int, ...], NDArray[np.float64]] = {}
    gains = np.zeros(num_draws + 1)
    total = sum(comparison.weight for comparison in comparisons)
    for better, worse, seeds, weight in comparisons:
        chosen = tuple(seeds)
        if chosen not in counts:
            counts[chosen] = seed_counts(len(chosen), num_draws, generator)
        places = list(chosen)
        before, after = (
            accuracies(losses[:, better, places], losses[:, worse, places], counts[chosen])
            for losses in drawn
        )
        gains += weight * (after - before) / total
    value, error = float(gains[0]), float(gains[1:].std(ddof=1))
    degrees = sum(len(seeds) - 1 for seeds in counts)
    half = float(scipy.stats.t.ppf(1 - LEVEL / 2, degrees)) * error
    p_value = float(2 * scipy.stats.t.sf(abs(value) / error, degrees)) if error else 1.0
    return Estimate(value, value - half, value + half, p_value=p_value)


def on_drawn_blocks(
    both_losses: Iterable[NDArray[np.float64]], num_draws: int, generator: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Losses on blocks of rows that are drawn again, the same blocks for all runs.

    Args:
        both_losses: Plain and calibrated losses, `(num_pipelines, num_seeds, num_blocks)`.
        num_draws: Number of draws.
        generator: Generator of the draws.

    Returns:
        Both, `(num_draws + 1, num_pipelines, num_seeds)`; the first draw is the sample.
    """
    plain, calibrated = both_losses
    num_blocks = plain.shape[-1]
    shares = np.full(num_blocks, 1 / num_blocks)
    counts = generator.multinomial(num_blocks - 1, shares, num_draws)
    weights = np.concatenate([shares[None], counts / (num_blocks - 1)])
    return np.moveaxis(plain @ weights.T, -1, 0), np.moveaxis(calibrated @ weights.T, -1, 0)


def seed_counts(
    num_seeds: int, num_draws: int, generator: np.random.Generator
) -> NDArray[np.float64]:
    """How often each seed is drawn, `(num_draws + 1, num_seeds)`; the first row is the sample."""
    shares = np.full(num_seeds, 1 / num_seeds)
    counts = generator.multinomial(num_seeds - 1, shares, num_draws)
    # A draw of a single seed has no runs to compare: it is drawn again.
    while (alone := (counts > 0).sum(axis=1) < 2).any():
        counts[alone] = generator.multinomial(num_seeds - 1, shares, int(alone.sum()))
    return np.concatenate([np.ones((1, num_seeds)), counts]).astype(np.float64)


def accuracies(
    better: NDArray[np.float64], worse: NDArray[np.float64], counts: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Share of the pairs of runs of different seeds that are won, for each draw."""
    gap = worse[:, None, :] - better[:, :, None]
    wins = (gap > 0) + 0.5 * (gap == 0)
    same_seed = np.einsum("tii,ti->t", wins, counts**2)
    total = np.einsum("ti,ti->t", counts, np.einsum("tij,tj->ti", wins, counts)) - same_seed
    return total / (counts.sum(axis=1) ** 2 - (counts**2).sum(axis=1))
