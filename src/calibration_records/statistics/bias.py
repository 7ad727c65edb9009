"""What calibration does to seed variance and difference: bias share and surviving share."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import special

from calibration_records._check import confidence_level
from calibration_records.statistics.difference import standard_error
from calibration_records.statistics.estimate import Estimate, RunValues, check_runs, t_estimate

Array = NDArray[np.float64]


def bias_share(
    plain: Sequence[RunValues],
    calibrated: Sequence[RunValues],
    *,
    paired: bool = False,
    confidence: float = 0.95,
) -> Estimate:
    """The share of bias in the seed variance of a loss: Cov(L, L − C) / Var(L).

    L is the plain loss of a run and C its calibrated loss, so that L − C is what the correction of
    the bias removes. Since Var(L) = Cov(L, C) + Cov(L, L − C), it is a share of the variance; in a
    sample it can be below 0 or above 1. Covariances and variances are pooled within pipelines. The
    interval is Student's, with the standard error of a jackknife over the seeds.

    With 6 to 60 seeds of two pipelines, the 95 % interval covers 93 to 95 % where the gains L − C
    are normal. It covers 85 to 92 % where gains are squares of biases with mean 0, because few
    seeds underestimate the share of such gains. Gains with heavy tails (a few runs with a bias of
    many standard deviations) need more seeds.

    Args:
        plain: Plain losses, one array of shape `(num_runs,)` for each pipeline, at least 3 runs.
        calibrated: Calibrated losses of the same runs.
        paired: Whether run i of every pipeline has the same seed. The jackknife then leaves out
            seeds, and otherwise runs.
        confidence: Coverage of the interval, in (0, 1).

    Returns:
        The share with its interval; NaN if the plain losses of each pipeline are equal.

    Raises:
        ValueError: Fewer than 3 runs, values that are not finite, or unequal numbers of runs.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> ranking, bias = rng.normal(size=(2, 1000))
        >>> share = bias_share([ranking + 2 * bias], [ranking])
        >>> print(f"{share.value:.2f} [{share.low:.2f}, {share.high:.2f}]")
        0.80 [0.78, 0.82]

    Reference:
        Fan, Si, Song, Zhang, *Calibration-then-Calculation*, arXiv 2401.16692, for the two losses;
        Efron and Stein (1981), *The jackknife estimate of variance*.
    """
    pipelines = _check_losses(plain, calibrated, paired, confidence)
    # Numerator and denominator of the share for each pipeline: first from all runs, then with each
    # run left out, for the jackknife.
    groups = [
        np.stack([_sum_cross_products(losses, other) for other in (losses - corrected, losses)])
        for losses, corrected in pipelines
    ]
    if paired:
        # Leaving out a seed leaves out its run of every pipeline.
        groups = [np.sum(groups, axis=0)]
    total = np.sum([group[:, 0] for group in groups], axis=0)
    # The ratio of sums over pipelines, and its jackknife values: each leaves one run (or one shared
    # seed) out of the sums. A variance of 0, also but for rounding, gives NaN.
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(total[0] / total[1]) if total[1] > 0 else np.nan
        left = [total[:, None] - group[:, :1] + group[:, 1:] for group in groups]
        ratios = [
            above / np.where(below > 1e-12 * total[1], below, np.nan) for above, below in left
        ]
        # The jackknife variance, `(n - 1) / n Σ_i (r_i - r̄)²` for each pipeline, added up.
        error = np.sqrt(sum((ratio.size - 1) * np.var(ratio) for ratio in ratios))
    degrees = sum(ratio.size - 1 for ratio in ratios)
    return t_estimate(value, error, degrees, confidence, is_tested=False)


def surviving_share(
    plain: Sequence[RunValues],
    calibrated: Sequence[RunValues],
    *,
    paired: bool = False,
    confidence: float = 0.95,
) -> Estimate:
    """The share of the difference of two pipelines that survives calibration: ΔC / ΔL.

    ΔL is the difference of the mean plain losses, and ΔC the difference of the mean calibrated
    losses. Near 1, calibration takes nothing away; near 0, the difference is calibration only;
    below 0, the calibrated loss prefers the other pipeline. The interval is Fieller's: all r for
    which ΔC − r ΔL does not differ significantly from 0. The interval is unbounded if ΔL does not
    differ significantly from 0.

    Args:
        plain: Plain losses of A and of B, each of shape `(num_runs,)`, at least 3 runs.
        calibrated: Calibrated losses of the same runs.
        paired: Whether run i of both pipelines has the same seed.
        confidence: Coverage of the interval, in (0, 1).

    Returns:
        The share with its interval; NaN if ΔL is 0.

    Raises:
        ValueError: As in `bias_share`.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> ranking, bias = rng.normal(size=(2, 2, 1000)) + [[[0], [3]], [[0], [1]]]
        >>> share = surviving_share(ranking + bias, ranking)
        >>> print(f"{share.value:.2f} [{share.low:.2f}, {share.high:.2f}]")
        0.74 [0.72, 0.75]

    Reference:
        Fieller (1954), *Some problems in interval estimation*.
    """
    pipelines = _check_losses(plain, calibrated, paired, confidence)
    (plain_a, calibrated_a), (plain_b, calibrated_b) = pipelines
    plain_difference = float(plain_b.mean() - plain_a.mean())
    if plain_difference == 0:
        return Estimate(np.nan, -np.inf, np.inf, confidence)
    calibrated_difference = float(calibrated_b.mean() - calibrated_a.mean())
    share = calibrated_difference / plain_difference

    def error(weight_calibrated: float, weight_plain: float) -> tuple[float, float]:
        a, b = (weight_calibrated * c + weight_plain * p for p, c in pipelines)
        return standard_error(a, b, paired=paired)

    # Fieller's theorem needs the variances of ΔL and ΔC and their covariance, which follows from
    # the variance of the gain: `var(C - L) = var C + var L - 2 cov(C, L)`.
    t_squared = float(special.stdtrit(error(1.0, -share)[1], (1 + confidence) / 2)) ** 2
    of_plain, of_calibrated, of_gain = (
        error(*weights)[0] ** 2 for weights in ((0.0, 1.0), (1.0, 0.0), (1.0, -1.0))
    )
    covariance = (of_plain + of_calibrated - of_gain) / 2
    # `(ΔC − r ΔL)² ≤ t² var(ΔC − r ΔL)` is quadratic in r: the ends of the interval solve
    # `square r² − 2 middle r + rest = 0`.
    square = plain_difference**2 - t_squared * of_plain
    middle = plain_difference * calibrated_difference - t_squared * covariance
    rest = calibrated_difference**2 - t_squared * of_calibrated
    # ΔL is within its own error of 0, so no ratio can be excluded.
    if square <= 0:
        return Estimate(share, -np.inf, np.inf, confidence)
    half = float(np.sqrt(max(middle**2 - square * rest, 0.0))) / square
    centre = middle / square
    # Without noise, the interval is a point, and rounding could leave the share outside of it.
    return Estimate(share, min(centre - half, share), max(centre + half, share), confidence)


def _sum_cross_products(x: Array, y: Array) -> Array:
    """Σ (x − x̄)(y − ȳ) over all runs, followed by the same sum with each run left out."""
    # Rounding can move the mean of equal values past them; their differences are exactly 0.
    x = x - x[0]
    y = y - y[0]
    terms = (x - x.mean()) * (y - y.mean())
    # Leaving out run i of n also moves the means: the sum loses n/(n − 1) times the run's term.
    return terms.sum() - x.size / (x.size - 1) * np.r_[0.0, terms]


def _check_losses(
    plain: Sequence[RunValues], calibrated: Sequence[RunValues], paired: bool, confidence: float
) -> list[Array]:
    """The losses of each pipeline, shape (2, runs), in a unit that keeps squares in range.

    All losses become differences to the first run of the first pipeline, in units of the largest
    plain difference.
    """
    confidence_level("confidence", confidence)
    checked = (
        [check_runs(name, losses, at_least=3) for losses in pipelines]
        for name, pipelines in (("plain", plain), ("calibrated", calibrated))
    )
    pairs = [*zip(*checked, strict=True)]
    sizes = [(one.size, other.size) for one, other in pairs]
    if any(one != other for one, other in sizes) or (paired and len(set(sizes)) > 1):
        raise ValueError(
            "Arguments `plain` and `calibrated` must have a value for each run of each pipeline, "
            f"of the same runs if these are paired. Received: numbers of runs {sizes}."
        )
    stacked = [np.stack(pair) for pair in pairs]
    # Shares do not depend on origin and unit. Small numbers of one size keep their digits.
    stacked = [losses - stacked[0][:, :1] for losses in stacked]
    scale = max((float(np.abs(losses[0]).max()) for losses in stacked), default=0.0)
    return [losses / (scale or 1.0) for losses in stacked]
