"""Mean, spread and range of a metric over the seeds of a pipeline."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def summarize(values: Sequence[float] | NDArray[np.floating]) -> dict[str, float]:
    """Summarizes a metric over runs that differ only in their seed.

    With the finite values x₁ … xₘ, the mean is x̄ = Σ xᵢ / m and the standard deviation is
    s = √(Σ (xᵢ − x̄)² / (m − 1)): the noise of one run, not of the mean. Values that are NaN or
    infinite are from diverged runs; they are excluded and counted.

    Args:
        values: One value for each run, shape `(num_runs,)`.

    Returns:
        A dict with `count` (finite values), `mean`, `std`, `min`, `max` and `num_diverged` (other
        values). Undefined statistics are NaN: all four without a finite value, `std` with one.

    Raises:
        ValueError: `values` is not one-dimensional.

    Example:
        >>> from keras_calibration.statistics import summarize
        >>> summary = summarize([0.25, 0.75, 0.5, float("nan")])
        >>> summary["count"], summary["mean"], summary["std"], summary["num_diverged"]
        (3, 0.5, 0.25, 1)

    Reference:
        Fan, Si, Song, Zhang, *Calibration-then-Calculation*, arXiv 2401.16692.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1:
        raise ValueError(
            "Argument `values` must have shape (num_runs,), with one value for each run. Received: "
            f"values.shape={array.shape}."
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
    # Squares of values beyond 1e154 or below 1e-154 would overflow or vanish; scaling by a power
    # of two is exact.
    _, exponent = np.frexp(np.abs(finite).max())
    scaled = np.ldexp(finite, -exponent)
    # Rounding can move the mean of equal values past them; their spread is 0.
    mean = np.clip(scaled.mean(), scaled.min(), scaled.max())
    summary["mean"] = float(np.ldexp(mean, exponent))
    if count > 1:
        std = np.sqrt(np.sum(np.square(scaled - mean)) / (count - 1))
        with np.errstate(over="ignore"):
            summary["std"] = float(np.ldexp(std, exponent))
    return summary
