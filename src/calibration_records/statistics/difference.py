"""The difference between two pipelines' means: intervals and power."""

from bisect import bisect_left

import numpy as np
from numpy.typing import NDArray
from scipy import special

from calibration_records._check import at_least, confidence_level, positive
from calibration_records.statistics.estimate import (
    MIN_RUNS,
    Estimate,
    RunValues,
    check_pipelines,
    fewest_runs,
    t_estimate,
)
from calibration_records.statistics.summary import mean_and_std

MAX_SEEDS = 100_000


def mean_difference(
    a: RunValues, b: RunValues, *, paired: bool = False, confidence: float = 0.95
) -> Estimate:
    """The mean of B minus the mean of A, with Student's interval.

    Unpaired: Welch's interval, SE² = s_a²/m_a + s_b²/m_b. Paired: with the differences
    dᵢ = bᵢ − aᵢ, SE² = s_d²/m; the effect of a shared seed cancels. With fewer than four runs or
    six pairs there is no p-value, because no exact test could reach the 5 % level.

    Args:
        a: Values of A, shape `(num_runs_a,)`, at least 2.
        b: Values of B, shape `(num_runs_b,)`, at least 2.
        paired: Whether aᵢ and bᵢ have the same seed.
        confidence: Coverage of the interval, in (0, 1).

    Raises:
        ValueError: Fewer than two runs, values that are not finite, or pairs of unequal length.

    Example:
        >>> mean_difference([1.0, 2.0, 3.0, 4.0], [1.5, 2.5, 3.5, 5.5], paired=True).value
        0.75

    Reference:
        Welch (1947), *The generalization of Student's problem*.
    """
    confidence_level("confidence", confidence)
    a, b = check_pipelines(a, b, paired=paired)
    error, degrees = standard_error(a, b, paired=paired)
    return t_estimate(
        float(b.mean() - a.mean()),
        error,
        degrees,
        confidence,
        is_tested=min(a.size, b.size) >= fewest_runs(paired=paired),
    )


def always_valid_difference(
    a: RunValues, b: RunValues, *, confidence: float = 0.95, effect_variance: float = 1.0
) -> Estimate:
    """The mean of B minus the mean of A, with an interval that holds at every look.

    With the differences dᵢ = bᵢ − aᵢ, S = Σ d and V = Σ d², a mixture over effect sizes N(0, g)
    gives log e_m = −½ log(1 + m g) − m/2 log(1 − m g/(1 + m g) S²/(m V)). Without a difference, the
    probability that e_m ever exceeds 1/α is at most α. The interval contains all shifts that this
    test does not reject; p = min(1, 1/e_m) is the p-value of this look.

    Args:
        a: Values of A, `(num_runs,)`, in the order in which they were run.
        b: Values of B, with the same seeds or simply in the order in which they were run.
        confidence: Joint confidence of all looks, in (0, 1).
        effect_variance: g, the prior variance of the effect size mean(d)/std(d).

    Raises:
        ValueError: The lengths differ, values are not finite, or an argument is out of its range.

    Example:
        >>> estimate = always_valid_difference(np.zeros(6), [1.0, 1.2, 0.9, 1.1, 1.0, 0.8])
        >>> estimate.excludes(0.0)
        True

    Reference:
        Lai (1976), *On confidence sequences*; Wang and Ramdas, arXiv 2310.03722.
    """
    confidence_level("confidence", confidence)
    positive("effect_variance", effect_variance)
    a, b = check_pipelines(a, b)
    differences = b - a
    num = differences.size
    mean, std = mean_and_std(differences)
    growth = 1 + num * effect_variance
    shrink = (growth - 1) / growth
    # Solve log e = log(1/α) for the share of m d̄² in Σ d²; a larger share rejects. Then
    # `share / (1 - share) = m d̄² / Σ (d - d̄)²` gives the half-width in units of the metric, with
    # `Σ (d - d̄)² = (m - 1) s²`.
    share = -np.expm1((2 * np.log(1 - confidence) - np.log(growth)) / num) / shrink
    half = np.sqrt(share / (1 - share) * (num - 1) / num) * std if share < 1 else np.inf
    # The p-value 1 / e at the difference 0, from the share that was seen.
    p_value = None
    if num >= MIN_RUNS and std > 0:
        seen = num * (mean / np.hypot(std * np.sqrt(num - 1), mean * np.sqrt(num))) ** 2
        p_value = float(min(1.0, np.exp(0.5 * (np.log(growth) + num * np.log1p(-shrink * seen)))))
    return Estimate(mean, mean - float(half), mean + float(half), confidence, p_value)


def smallest_detectable_effect(
    variance: float,
    num_runs: float,
    degrees: float,
    *,
    confidence: float = 0.95,
    power: float = 0.8,
) -> float:
    """The smallest difference that this many seeds detect with the given power.

    It is (t₍₁₊confidence₎⸝₂ + t_power) √(variance / m).

    Args:
        variance: s_a² + s_b² of unpaired runs, or s_d² of paired differences.
        num_runs: Runs of each pipeline, m.
        degrees: Degrees of freedom of the variance.
        confidence: Coverage of the interval that must exclude 0.
        power: Probability of detection.

    Raises:
        ValueError: An argument is out of its range.

    Example:
        >>> round(smallest_detectable_effect(2.0, 17, 32), 2)
        0.99

    Reference:
        Bloom (1995), *Minimum detectable effects*.
    """
    confidence_level("confidence", confidence)
    confidence_level("power", power)
    at_least("variance", variance, 0)
    positive("num_runs", num_runs)
    positive("degrees", degrees)
    quantiles = special.stdtrit(degrees, [(1 + confidence) / 2, power])
    return float(quantiles.sum() * np.sqrt(variance / num_runs))


def seeds_needed(
    effect: float,
    variance: float,
    *,
    paired: bool = False,
    confidence: float = 0.95,
    power: float = 0.8,
) -> int:
    """The number of seeds of each pipeline that detects `effect` with the given power.

    It is the smallest m whose smallest detectable effect is at most `effect`, with m − 1 degrees of
    freedom if paired, and 2 (m − 1) if not.

    Args:
        effect: Difference of the means to detect, in the metric's unit; the sign does not matter.
        variance: s_a² + s_b² of unpaired runs, or s_d² of paired differences.
        paired: Whether the pipelines share their seeds.
        confidence: Coverage of the interval that must exclude 0.
        power: Probability of detection.

    Returns:
        m ≥ 2, at most 100,000.

    Raises:
        ValueError: An argument is out of its range.

    Example:
        >>> seeds_needed(0.954, 2.0)  # a single run finds it 75 % of the time
        19

    Reference:
        Noether (1987), *Sample size determination for some common nonparametric tests*, and
        Bouthillier et al. (2021), arXiv 2103.03098, for seeds.
    """
    at_least("effect", abs(effect), 0)

    def detects(num_runs: int) -> bool:
        degrees = (num_runs - 1) * (1 if paired else 2)
        return abs(effect) >= smallest_detectable_effect(
            variance, num_runs, degrees, confidence=confidence, power=power
        )

    # The detectable effect falls with each seed, so the numbers that detect `effect` come last.
    return 2 + bisect_left(range(2, MAX_SEEDS), True, key=detects)


def standard_error(
    a: NDArray[np.float64], b: NDArray[np.float64], *, paired: bool = False
) -> tuple[float, float]:
    """The standard error of mean(b) − mean(a), and its degrees of freedom.

    Example:
        >>> error, degrees = standard_error(np.array([1.0, 3.0]), np.array([2.0, 4.0]))
        >>> round(error, 4), round(degrees, 4)
        (1.4142, 2.0)
    """
    if paired:
        return float(mean_and_std(b - a)[1] / np.sqrt(a.size)), a.size - 1
    sizes = np.array([a.size, b.size])
    parts = [mean_and_std(a)[1], mean_and_std(b)[1]] / np.sqrt(sizes)
    total = float(np.hypot(*parts))
    # Without any spread, Welch's degrees of freedom are 0 / 0; take the degrees of freedom of a
    # pooled variance.
    if total == 0:
        return 0.0, float(sizes.sum() - 2)
    # Welch and Satterthwaite's degrees of freedom, `(Σ v)² / Σ (v² / (m - 1))` of `v = s² / m`.
    # Shares of the total come first, as the squares of small deviations would be 0.
    return total, 1 / float(np.sum((parts / total) ** 4 / (sizes - 1)))
