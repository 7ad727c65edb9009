"""Metric accuracy: how often single runs show which pipeline is better."""

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from calibration_records._check import confidence_level
from calibration_records.statistics.estimate import Estimate, RunValues, check_pipelines, check_runs

# Smallest number of seeds from which `independent_seed_accuracy` estimates the effect of sharing
# them.
_MIN_SHARED = 10


def metric_accuracy(a: RunValues, b: RunValues) -> float:
    """The share of pairs of runs in which A has the lower loss.

    Acc = 1 / (m_a m_b) Σᵢ Σⱼ [1(aᵢ < bⱼ) + ½ 1(aᵢ = bⱼ)], the area under a ROC curve. 0.5 means
    that single runs do not tell the pipelines apart.

    Args:
        a: Losses of pipeline A, shape `(num_runs_a,)`; lower is better.
        b: Losses of pipeline B, shape `(num_runs_b,)`.

    Returns:
        A share in [0, 1].

    Raises:
        ValueError: Values are not finite or not one-dimensional.

    Example:
        >>> metric_accuracy([0.1, 0.2, 0.4], [0.3, 0.4])
        0.75

    Reference:
        Fan, Si, Song, Zhang, *Calibration-then-Calculation*, arXiv 2401.16692, eq. 8; Mann and
        Whitney (1947).
    """
    return float(np.mean(_compute_placements(check_runs("a", a), check_runs("b", b))))


def accuracy_interval(a: RunValues, b: RunValues, *, confidence: float = 0.95) -> Estimate:
    """Metric accuracy of independent runs, with Newcombe's score interval.

    The ends t solve `|Acc − t| = z √V(t)`, with
    `V(t) = t (1 − t) [1 + N ((1 − t)/(2 − t) + t/(1 + t))] / (m_a m_b)` and
    `N = (m_a + m_b)/2 − 1`. z is the quantile of Student's t with m_a m_b degrees of
    freedom. Unlike bootstrap and Wald intervals, it keeps its coverage with five runs and without
    overlap: with five skewed runs each and an accuracy of 0.9, the coverage is 95.5 %, and with the
    normal quantile 92.9 %.

    Args:
        a: Losses of A, `(num_runs_a,)`.
        b: Losses of B, `(num_runs_b,)`, with other seeds than A.
        confidence: Coverage of the interval, in (0, 1).

    Raises:
        ValueError: Invalid losses, or `confidence` is outside (0, 1).

    Example:
        >>> estimate = accuracy_interval(range(5), range(5, 10))
        >>> print(f"{estimate.value:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]")
        1.00 [0.62, 1.00]

    Reference:
        Newcombe (2006), *Confidence intervals for an effect size measure based on the Mann–Whitney
        statistic*, part 2, Statistics in Medicine 25, method 5.
    """
    confidence_level("confidence", confidence)
    accuracy = metric_accuracy(a, b)
    z = special.stdtrit(len(a) * len(b), (1 + confidence) / 2)
    return _compute_newcombe_interval(accuracy, len(a), len(b), confidence, z)


def same_seed_accuracy(a: RunValues, b: RunValues, *, confidence: float = 0.95) -> Estimate:
    """The share of seeds under which A has the lower loss, with a mid-p interval.

    With w wins out of m (ties count ½), the lower end t solves P(W > w) + ½ P(W = w) = (1 −
    confidence)/2 for W binomial with probability t; the upper end likewise. With 5 to 60 seeds, the
    95 % interval has a coverage of at least 92.4 %; Wilson's score interval falls to 83 %.

    Args:
        a: Losses of A, `(num_runs,)`.
        b: Losses of B under the same seeds, in the same order.
        confidence: Coverage of the interval, in (0, 1).

    Raises:
        ValueError: Invalid losses or unequal lengths, or `confidence` is outside (0, 1).

    Example:
        >>> estimate = same_seed_accuracy([1.0, 2.0, 3.0, 4.0], [1.1, 2.1, 3.1, 3.9])
        >>> print(f"{estimate.value:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]")
        0.75 [0.24, 0.99]

    Reference:
        Lancaster (1961), *Significance tests in discrete distributions*; Agresti, Gottard (2007),
        *Nonconservative exact small-sample inference for discrete data*.
    """
    confidence_level("confidence", confidence)
    a, b = check_pipelines(a, b)
    wins = float(np.sum((a < b) + 0.5 * (a == b)))
    low, rest = (_solve_mid_p_lower(count, a.size, confidence) for count in (wins, a.size - wins))
    return Estimate(wins / a.size, low, 1 - rest, confidence)


def independent_seed_accuracy(a: RunValues, b: RunValues, *, confidence: float = 0.95) -> Estimate:
    """Metric accuracy of independent runs, estimated from runs that share their seeds.

    The estimate leaves out pairs (i, i), which share a seed:
    Acc = (m² Acc_all − m Acc_same) / (m (m − 1)). The interval is Newcombe's with t² var(P +
    Q)/(var P + var Q) in place of z², where P and Q are the placements of the runs of A and B and t
    has m − 1 degrees of freedom: shared seeds reduce the variance of Acc. With fewer than ten
    seeds, this factor is too uncertain and set to 1, which makes the interval conservative.

    Args:
        a: Losses of A, `(num_runs,)`.
        b: Losses of B under the same seeds, in the same order.
        confidence: Coverage of the interval, in (0, 1).

    Raises:
        ValueError: Invalid losses or unequal lengths, or `confidence` is outside (0, 1).

    Example:
        >>> independent_seed_accuracy([1.0, 2.0, 3.0], [1.1, 2.1, 3.1]).value
        0.5

    Reference:
        Newcombe (2006), see `accuracy_interval`.
    """
    confidence_level("confidence", confidence)
    a, b = check_pipelines(a, b)
    same = (a < b) + 0.5 * (a == b)
    # Placements over the other seeds alone: for each run of A, the share of runs of B above it; for
    # each run of B, the share of runs of A below it.
    above = (a.size * _compute_placements(a, b) - same) / (a.size - 1)
    below = (a.size * (1 - _compute_placements(b, a)) - same) / (a.size - 1)
    accuracy = min(max(float(above.mean()), 0.0), 1.0)
    apart = float(above.var() + below.var())
    # A seed that raises both a_i and b_i lowers `above` and raises `below`. So `var(P + Q)` is
    # smaller than `var P + var Q`, and the ratio scales z² in Newcombe's interval.
    if a.size < _MIN_SHARED or apart == 0:
        z = special.stdtrit(a.size**2, (1 + confidence) / 2)
    else:
        shared = min(1.0, float(np.var(above + below)) / apart)
        z = special.stdtrit(a.size - 1, (1 + confidence) / 2) * float(np.sqrt(shared))
    return _compute_newcombe_interval(accuracy, a.size, a.size, confidence, z)


def _compute_placements(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """For each a the share of b above it; ties count half."""
    # Two searches in sorted values count, for each a, the b below it once and the equal ones half.
    ranked = np.sort(b)
    below = np.searchsorted(ranked, a, "left") + np.searchsorted(ranked, a, "right")
    return 1 - below / (2 * b.size)


def _compute_newcombe_interval(
    accuracy: float, num_a: int, num_b: int, confidence: float, z: float
) -> Estimate:
    def excess(t: float, point: float) -> float:
        runs = 1 + ((num_a + num_b) / 2 - 1) * ((1 - t) / (2 - t) + t / (1 + t))
        return (point - t) ** 2 - z**2 * t * (1 - t) * runs / (num_a * num_b)

    # Where the squared distance equals z² times the variance, by Brent's method. The upper end is
    # the lower one with A and B exchanged.
    def lower(point: float) -> float:
        if point == 0 or z == 0:
            return point
        # At point = 1, t = 1 is a second solution: exclude it.
        return float(optimize.brentq(excess, 0.0, min(point, 1 - 1e-12), args=(point,)))

    return Estimate(accuracy, lower(accuracy), 1 - lower(1 - accuracy), confidence)


def _solve_mid_p_lower(wins: float, num_runs: int, confidence: float) -> float:
    """The lower end of the mid-p interval; half wins are interpolated."""

    def excess(t: float) -> float:
        # P(W ≥ w) and P(W > w), by the incomplete beta function.
        at_least = special.betainc(wins, num_runs - wins + 1, t)
        more = special.betainc(wins + 1, num_runs - wins, t) if wins < num_runs else 0.0
        return float((at_least + more - (1 - confidence)) / 2)

    return 0.0 if wins == 0 else float(optimize.brentq(excess, 0.0, 1.0))
