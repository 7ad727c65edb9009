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
        values). Without a finite value, the four statistics are NaN; with one, `std` is.

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
            f"Argument `values` must have shape (num_runs,). Received: values.shape={array.shape}."
        )
    finite = array[np.isfinite(array)]
    count = finite.size
    figures = (np.nan,) * 4
    if count:
        figures = (*mean_and_std(finite), float(finite.min()), float(finite.max()))
    return {
        "count": count,
        **dict(zip(("mean", "std", "min", "max"), figures, strict=True)),
        "num_diverged": array.size - count,
    }


@np.errstate(over="ignore", divide="ignore", invalid="ignore")
def mean_and_std(values: NDArray[np.float64]) -> tuple[float, float]:
    """The mean of finite values of any size, and their sample standard deviation; NaN of one.

    Example:
        >>> mean, std = mean_and_std(np.array([1e-170, 2e-170, 3e-170]))
        >>> print(f"{mean:.3g} {std:.3g}")
        2e-170 1e-170
    """
    # Squares of values beyond 1e154 or below 1e-154 would overflow or vanish, so scale by a power
    # of two, which is exact.
    _, exponent = np.frexp(np.abs(values).max())
    scaled = np.ldexp(values, -exponent)
    # Rounding can move the mean of equal values past them; the clip keeps their spread at 0.
    centre = np.clip(scaled.mean(), scaled.min(), scaled.max())
    spread = np.sqrt(np.sum(np.square(scaled - centre)) / np.float64(values.size - 1))
    return float(np.ldexp(centre, exponent)), float(np.ldexp(spread, exponent))
