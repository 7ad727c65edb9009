"""The ratio of two standard deviations over seeds, such as calibrated / plain loss."""

import numpy as np
from numpy.typing import NDArray

from keras_calibration.statistics.estimate import (
    MAX_RUNS_WITHOUT_P_VALUE,
    Estimate,
    RunValues,
    check_confidence,
    check_paired,
    check_runs,
    t_estimate,
    t_quantile,
)


def std_ratio(
    x: RunValues, y: RunValues, *, paired: bool = True, confidence: float = 0.95
) -> Estimate:
    """The ratio s_x / s_y of two standard deviations, with a jackknife interval.

    The interval is computed for T = log(s_x / s_y) from the pseudo-values
    hᵢ = m T − (m − 1) T₍₋ᵢ₎, SE² = var(h)/m. With a ratio of 0.75, (0.75)² = 56 % of the runs give
    the same precision. If losses are skewed over seeds, no interval for a spread is exact; of those
    tried, the jackknife is closest.

    Args:
        x: Values of the numerator, for example calibrated losses, `(num_runs,)`, at least 3.
        y: Values of the denominator, for example plain losses.
        paired: Whether xᵢ and yᵢ are from the same run, such as two metrics of one pipeline.
        confidence: Coverage of the interval, in (0, 1).

    Returns:
        The ratio, its interval and the p-value of ratio 1; all NaN if a spread is zero.

    Raises:
        ValueError: Fewer than three runs, values that are not finite, or unequal lengths.

    Example:
        >>> x = np.array([1.0, 2.0, 4.0, 3.0, 5.0])
        >>> round(std_ratio(x, 2 * x).value, 6)
        0.5

    Reference:
        Miller (1968), *Jackknifing variances*; arXiv 2401.16692, tables of the std, for the ratio.
    """
    check_confidence(confidence)
    if paired:
        x, y = check_paired(x=x, y=y)
    x, y = check_runs("x", x, at_least=3), check_runs("y", y, at_least=3)
    of_x, of_y = _log_std_pseudo_values(x), _log_std_pseudo_values(y)
    if paired:
        parts, sizes = np.array([np.var(of_x - of_y, ddof=1) / x.size]), np.array([x.size])
    else:
        parts = np.array([of_x.var(ddof=1) / x.size, of_y.var(ddof=1) / y.size])
        sizes = np.array([x.size, y.size])
    total = float(parts.sum())
    if not np.isfinite(total):
        return Estimate(np.nan, np.nan, np.nan, confidence)
    degrees = total**2 / float(np.sum(parts**2 / (sizes - 1))) if total > 0 else np.inf
    # The centre is the plain ratio, to agree with the printed standard deviations.
    logarithm = float(np.log(x.std(ddof=1) / y.std(ddof=1)))
    estimate = t_estimate(logarithm, np.sqrt(total), degrees, confidence, int(sizes.min()))
    value, low, high = (float(np.exp(end)) for end in estimate[:3])
    return Estimate(value, low, high, confidence, estimate.p_value)


def pitman_morgan(x: RunValues, y: RunValues, *, confidence: float = 0.95) -> Estimate:
    """The ratio s_x / s_y of paired values, with the interval and test of Pitman and Morgan.

    s_x = s_y exactly if x + y and x − y are uncorrelated, so the p-value is that of their
    correlation. With R = s_x²/s_y², r = corr(x, y) and K = 1 + 2 (1 − r²) t²/(m − 2), the ends are
    √(R (K ∓ √(K² − 1))). It uses the pairing, unlike the F test and Levene's test, and has far more
    power; it assumes normal values.

    Args:
        x: Values of the numerator, `(num_runs,)`, at least 3.
        y: Values of the denominator, from the same runs.
        confidence: Coverage of the interval, in (0, 1).

    Raises:
        ValueError: Fewer than three runs, values that are not finite, or unequal lengths.

    Example:
        >>> rows = np.array([[1.0, 2.0, 4.0, 3.0, 5.0], [2.0, 3.0, 9.0, 7.0, 8.0]])
        >>> estimate = pitman_morgan(*rows)
        >>> bool(estimate.low < estimate.value < estimate.high)
        True

    Reference:
        Pitman (1939), *A note on normal correlation*; Morgan (1939); Bonett (2006) for the
        interval.
    """
    check_confidence(confidence)
    x, y = check_paired(x=x, y=y)
    check_runs("x", x, at_least=3)
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return Estimate(np.nan, np.nan, np.nan, confidence)
    ratio = x.var(ddof=1) / y.var(ddof=1)
    degrees = x.size - 2
    unexplained = 1 - min(1.0, np.corrcoef(x, y)[0, 1] ** 2)
    t = t_quantile((1 + confidence) / 2, degrees)
    k = 1 + 2 * unexplained * t**2 / degrees
    low, high = (float(np.sqrt(ratio * (k + s * np.sqrt(k**2 - 1)))) for s in (-1, 1))
    p_value = None
    if x.size > MAX_RUNS_WITHOUT_P_VALUE and unexplained > 0:
        # The t statistic of the correlation between sum and difference.
        t = (ratio - 1) * np.sqrt(degrees / (4 * ratio * unexplained))
        p_value = t_estimate(t, 1.0, degrees, confidence, x.size).p_value
    return Estimate(float(np.sqrt(ratio)), low, high, confidence, p_value)


def _log_std_pseudo_values(x: NDArray[np.float64]) -> NDArray[np.float64]:
    squares = (x - x.mean()) ** 2
    without = (squares.sum() - squares * x.size / (x.size - 1)) / (x.size - 2)
    with np.errstate(divide="ignore", invalid="ignore"):
        # Rounding can make it slightly negative.
        logs = 0.5 * np.log(np.maximum(without, 0))
        return x.size * 0.5 * np.log(x.var(ddof=1)) - (x.size - 1) * logs
