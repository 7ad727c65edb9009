"""A figure with its interval, and the checks that every statistic over runs begins with."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

RunValues = Sequence[float] | NDArray[np.floating]

# With three runs each no exact two-sided test can reach 5 %, so none is printed.
MAX_RUNS_WITHOUT_P_VALUE = 3


class Estimate(NamedTuple):
    """A figure computed from runs, with its confidence interval.

    Args:
        value: the figure itself.
        low: lower end of the interval.
        high: upper end of the interval.
        confidence: coverage that the interval aims at, in (0, 1).
        p_value: two-sided, of the hypothesis that there is nothing to see (0 for a difference, 1
            for a ratio); `None` where there is no test or there are too few runs for one.

    Example:
        >>> estimate = Estimate(-0.7, -1.0, -0.4, 0.95)
        >>> estimate.excludes(0.0), estimate.lies_within(0.8)
        (True, False)
    """

    value: float
    low: float
    high: float
    confidence: float = 0.95
    p_value: float | None = None

    def excludes(self, value: float) -> bool:
        """Whether `value` lies outside the interval."""
        return bool(value < self.low or value > self.high)

    def lies_within(self, margin: float) -> bool:
        """Whether the whole interval lies in [−margin, margin]."""
        return bool(-margin <= self.low and self.high <= margin)


def t_estimate(
    value: float,
    standard_error: float,
    degrees: float,
    confidence: float,
    num_runs: int,
) -> Estimate:
    """The interval value ± t SE of Student's t, with its p-value where there are runs enough.

    Args:
        value: the figure.
        standard_error: of the figure, in its unit.
        degrees: degrees of freedom of the standard error; may be infinite.
        confidence: coverage of the interval, in (0, 1).
        num_runs: of the pipeline with fewer runs.

    Example:
        >>> round(t_estimate(1.0, 0.5, float("inf"), 0.95, 10).low, 3)
        0.02
    """
    half = float(t_quantile((1 + confidence) / 2, degrees) * standard_error)
    p_value = None
    if num_runs > MAX_RUNS_WITHOUT_P_VALUE and standard_error > 0:
        tail = -abs(value) / standard_error
        p_value = 2 * t_probability(tail, degrees)
    return Estimate(value, value - half, value + half, confidence, p_value)


def t_quantile(probability: float, degrees: float) -> float:
    """Quantile of Student's t; of the normal distribution for infinite degrees of freedom.

    Example:
        >>> round(t_quantile(0.975, 9), 3)
        2.262
    """
    if np.isfinite(degrees):
        return float(special.stdtrit(degrees, probability))
    return float(special.ndtri(probability))


def t_probability(value: float, degrees: float) -> float:
    """P(T ≤ value) of Student's t; of the normal distribution for infinite degrees of freedom.

    Example:
        >>> round(t_probability(2.262, 9), 3)
        0.975
    """
    if np.isfinite(degrees):
        return float(special.stdtr(degrees, value))
    return float(special.ndtr(value))


def check_confidence(confidence: float) -> None:
    """Refuses a confidence that is no share between 0 and 1."""
    # So near to 1 that rounding leaves no tail, the intervals would be infinite.
    if not 0 < confidence < 1 or (1 + confidence) / 2 == 1:
        raise ValueError(
            f"Received confidence={confidence!r}; expected a share between 0 and 1, as in 0.95; "
            "divide percentages by 100."
        )


def check_runs(name: str, values: RunValues, at_least: int = 1) -> NDArray[np.float64]:
    """One finite float64 value a run, or a ValueError that says what is wrong.

    Args:
        name: of the argument, for the message.
        values: shape `(num_runs,)`.
        at_least: number of runs that the statistic needs.

    Example:
        >>> check_runs("a", [1, 2])
        array([1., 2.])
    """
    array = np.asarray(values, np.float64)
    if array.ndim != 1 or array.size < at_least:
        raise ValueError(
            f"Received `{name}` of shape {array.shape}; expected (num_runs,) with at least "
            f"{at_least} runs; the replication unit is the run: give one value for each."
        )
    if not np.isfinite(array).all():
        raise ValueError(
            f"Received `{name}` with {np.sum(~np.isfinite(array))} values that are not finite; "
            "expected finite values; count diverged runs apart, as `seeds.compare` does."
        )
    return array


def check_paired(**values: RunValues) -> list[NDArray[np.float64]]:
    """Values of the same runs, in the same order: checked to be of one length."""
    arrays = [check_runs(name, array, at_least=2) for name, array in values.items()]
    if len({array.size for array in arrays}) > 1:
        sizes = {name: array.size for name, array in zip(values, arrays, strict=True)}
        raise ValueError(
            f"Received paired values of different numbers {sizes}; expected one value of each for "
            "the same runs, in the same order; leave out runs that have no partner."
        )
    return arrays
