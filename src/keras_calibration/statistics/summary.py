"""Plain statistics of one metric over the seeds of a pipeline."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def summarize(values: Sequence[float] | NDArray[np.floating]) -> dict[str, float]:
    """Describes one metric over the runs of a pipeline that differ in their seed only.

    With the finite values x₁ … xₘ the mean is x̄ = Σ xᵢ / m and the standard deviation is that of
    a sample, s = √(Σ (xᵢ − x̄)² / (m − 1)): the noise of one run, not of the mean. The replication
    unit is the run, so give one value a run.

    A run whose value is NaN or infinite has diverged. It enters no statistic, because no mean
    could stand beside it, but it does not vanish either: `num_diverged` counts it.

    Args:
        values: shape `(num_runs,)`, any real dtype, in the metric's own unit; computed in float64.

    Returns:
        A dict with `count` (the finite values), `mean`, `std`, `min`, `max` and `num_diverged`
        (the values that are not finite). Statistics that are not defined are NaN: all four
        without a finite value, `std` with a single one.

    Raises:
        ValueError: `values` is not one-dimensional.

    Example:
        >>> from keras_calibration.statistics import summarize
        >>> summary = summarize([0.25, 0.75, 0.5, float("nan")])
        >>> summary["count"], summary["mean"], summary["std"], summary["num_diverged"]
        (3, 0.5, 0.25, 1)

    Reference:
        Fan, Si, Song, Zhang, *Calibration-then-Calculation*, arXiv 2401.16692: a metric is as good
        as its spread over seeds is small beside the differences it has to show.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1:
        raise ValueError(
            f"Received `values` of shape {array.shape}; expected one dimension, `(num_runs,)`, "
            "with one value for each run; summarize one metric at one epoch at a time."
        )
    finite = array[np.isfinite(array)]
    count = finite.size
    summary = {
        "count": count,
        "mean": np.nan,
        "std": np.nan,
        "min": np.nan,
        "max": np.nan,
        "num_diverged": array.size - count,
    }
    if count == 0:
        return summary
    summary["min"], summary["max"] = float(finite.min()), float(finite.max())
    # Values beyond 1e154 or below 1e-154 would overflow or vanish when squared. A power of two
    # scales them without any rounding.
    _, exponent = np.frexp(np.abs(finite).max())
    scaled = np.ldexp(finite, -exponent)
    # Rounding can carry the mean of equal values past them, and equal values have no spread.
    mean = np.clip(scaled.mean(), scaled.min(), scaled.max())
    summary["mean"] = float(np.ldexp(mean, exponent))
    if count > 1:
        std = np.sqrt(np.sum(np.square(scaled - mean)) / (count - 1))
        with np.errstate(over="ignore"):
            summary["std"] = float(np.ldexp(std, exponent))
    return summary
