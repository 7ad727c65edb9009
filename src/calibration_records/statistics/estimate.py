"""A figure with its confidence interval, and the checks shared by all statistics."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from calibration_records._check import refused

RunValues = Sequence[float] | NDArray[np.floating]

# Fewest runs of each pipeline with which an exact two-sided test can reach the 5 % level: a test of
# ranks for independent runs (p = 2/70), and the sign-flip test for pairs (p = 2/64).
MIN_RUNS, MIN_PAIRS = 4, 6


class Estimate(NamedTuple):
    """A figure computed from runs, with its confidence interval.

    Args:
        value: The figure.
        low: Lower end of the interval.
        high: Upper end of the interval.
        confidence: Nominal coverage of the interval, in (0, 1).
        p_value: Two-sided p-value of no effect (a difference of 0, a ratio of 1); `None` without a
            test, or with too few runs for a test.

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
    *,
    is_tested: bool = True,
) -> Estimate:
    """Student's interval value ± t SE, with a p-value unless there are too few runs for a test.

    Example:
        >>> round(t_estimate(1.0, 0.5, 9, 0.95).low, 3)
        -0.131
    """
    half = float(special.stdtrit(degrees, (1 + confidence) / 2) * standard_error)
    p_value = None
    if is_tested and standard_error > 0:
        p_value = float(2 * special.stdtr(degrees, -abs(value) / standard_error))
    return Estimate(value, value - half, value + half, confidence, p_value)


def fewest_runs(*, paired: bool) -> int:
    """The fewest runs of each pipeline, or pairs, that allow a verdict."""
    return MIN_PAIRS if paired else MIN_RUNS


def check_runs(name: str, values: RunValues, at_least: int = 1) -> NDArray[np.float64]:
    """The values as float64 after a check: one finite value for each of `at_least` runs.

    Example:
        >>> check_runs("a", [1, 2])
        array([1., 2.])
    """
    array = np.asarray(values, np.float64)
    if array.ndim != 1 or array.size < at_least:
        raise ValueError(
            f"Argument `{name}` must have shape (num_runs,) with at least {at_least} runs. "
            f"Received: {name}.shape={array.shape}."
        )
    if not np.isfinite(array).all():
        raise refused(name, "finite", array.tolist(), "Leave out diverged runs.")
    return array


def check_pipelines(
    a: RunValues, b: RunValues, *, paired: bool = True
) -> list[NDArray[np.float64]]:
    """The values of two pipelines after a check, paired: in the same runs, in the same order."""
    arrays = [check_runs(name, values, at_least=2) for name, values in (("a", a), ("b", b))]
    if paired and len(sizes := {array.size for array in arrays}) > 1:
        raise ValueError(
            f"Arguments `a` and `b` must have equal lengths. Received: {sorted(sizes)}."
        )
    return arrays
