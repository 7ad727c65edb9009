"""Residuals on a grid of probabilities, and the smooth calibration error computed from them."""

from __future__ import annotations

import math

from keras import ops

from keras_calibration._typing import Tensor

# Each halves the interval of the bandwidth.
_NUM_STEPS = 32


def residuals_on_grid(
    labels: Tensor, probabilities: Tensor, weights: Tensor, num_cells: int
) -> Tensor:
    """Sums of the residuals at the points j / num_cells: `Σ w (y - p)`, shape `(num_cells + 1,)`.

    The residual of a row is divided between the two points around its probability, in proportion to
    how near they are, so that its mean place is exact.
    """
    # NaN has no place. Its residual makes the result NaN from any point.
    known = ops.where(ops.isnan(probabilities), 0.0, probabilities)
    position = known * num_cells
    below = ops.clip(ops.floor(position), 0, num_cells - 1)
    share_above = position - below
    point = ops.cast(below, "int32")
    residuals = weights * (labels - probabilities)
    return ops.segment_sum(
        ops.concatenate([residuals * (1 - share_above), residuals * share_above]),
        ops.concatenate([point, point + 1]),
        num_segments=num_cells + 1,
    )


def smooth_ece_from_sums(residuals: Tensor, total_weight: Tensor) -> Tensor:
    """Smooth calibration error: the σ at which `∫ |r_σ(t)| dt = σ`.

    `r_σ(t) = Σ_j r_j K_σ(t, t_j) / Σ w` are the residuals smoothed by a Gaussian kernel of
    bandwidth σ that is reflected at 0 and 1. With the reflections, the residuals are an even and
    periodic function, and smoothing multiplies its cosine coefficient k by `exp(-(π k σ)² / 2)`.
    The integral falls as σ rises. It lies between `|Σ r| / Σ w` and `Σ |r| / Σ w`, and between
    these two the σ sought is found by bisection.

    Args:
        residuals: `Σ w (y - p)` of the rows at each point `t_j = j / num_cells`, shape
            `(num_cells + 1,)`.
        total_weight: `Σ w` of all rows, a scalar.

    Returns:
        A scalar. NaN if there are no rows.

    Example:
        >>> import numpy as np
        >>> residuals = np.zeros(1025)
        >>> residuals[[300, 800]] = 6.0, -5.0  # far apart
        >>> near = np.zeros(1025)
        >>> near[[500, 502]] = 6.0, -5.0  # nearly cancel
        >>> [round(float(smooth_ece_from_sums(each, 100.0)), 3) for each in (residuals, near)]
        [0.107, 0.011]

    Reference:
        Błasiok, Nakkiran, *Smooth ECE: Principled Reliability Diagrams via Kernel Smoothing*, arXiv
        2309.12236, definition 3 and section 4.
    """
    residuals = ops.convert_to_tensor(residuals) / total_weight
    num_cells = residuals.shape[0] - 1
    first, inner, last = residuals[:1], residuals[1:-1], residuals[-1:]
    # A residual at an end meets its own reflection there.
    reflected = ops.concatenate([2 * first, inner, 2 * last, ops.flip(inner)])
    coefficients, _ = ops.rfft(reflected)
    frequencies = math.pi * ops.arange(num_cells + 1, dtype=residuals.dtype)

    def integral(bandwidth: Tensor) -> Tensor:
        kept = coefficients * ops.exp(-0.5 * ops.square(frequencies * bandwidth))
        smooth = ops.abs(ops.irfft((kept, ops.zeros_like(kept)), 2 * num_cells))
        return ops.sum(smooth[1:num_cells]) + 0.5 * (smooth[0] + smooth[num_cells])

    def halve(_: Tensor, interval: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        low, high = interval
        middle = 0.5 * (low + high)
        is_above = integral(middle) > middle
        return ops.where(is_above, middle, low), ops.where(is_above, high, middle)

    interval = ops.abs(ops.sum(residuals)), ops.sum(ops.abs(residuals))
    low, high = ops.fori_loop(0, _NUM_STEPS, halve, interval)
    return 0.5 * (low + high)
