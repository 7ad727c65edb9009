"""Sums over the rows of each bin of probabilities, and the calibration error computed from them."""

from __future__ import annotations

import numpy as np
from keras import ops

from keras_calibration._typing import Tensor


def bin_sums(
    labels: Tensor, probabilities: Tensor, weights: Tensor, bin_number: Tensor, num_bins: int
) -> Tensor:
    """Sums of each bin, (num_bins, 3): `Σ w`, `Σ w p`, `Σ w y`."""
    rows = ops.stack([weights, weights * probabilities, weights * labels], axis=1)
    return ops.segment_sum(rows, bin_number, num_segments=num_bins)


def equal_width_edges(num_bins: int, dtype: str = "float64") -> np.ndarray:
    """Edges k / num_bins of bins on [0, 1], rounded to the dtype of the predictions.

    A float32 prediction of 0.3 is slightly above 3 / 10. With the same rounding it lies on the
    edge.
    """
    edges = np.arange(num_bins + 1) / num_bins
    return edges.astype(dtype).astype(np.float64) if "float" in dtype else edges


def equal_width_bins(probabilities: Tensor, edges: np.ndarray) -> Tensor:
    """Bins of probabilities, int32: bin k is (edge k, edge k + 1], and bin 0 includes 0 and NaN."""
    # NaN has no place in order. Its sums make the result NaN from any bin.
    numbers = ops.where(ops.isnan(probabilities), 0.0, probabilities)
    return ops.searchsorted(ops.cast(edges[1:-1], numbers.dtype), numbers, side="left")


def expected_calibration_error(sums: Tensor) -> Tensor:
    """Expected calibration error: `Σ_b |Σ w (y - p)| / Σ w`, the inner sums over the rows of a bin.

    Args:
        sums: `Σ w`, `Σ w p` and `Σ w y` of each bin, shape `(num_bins, 3)`, summed over all
            batches.

    Returns:
        A scalar. NaN if there are no rows.

    Example:
        >>> float(expected_calibration_error(ops.array([[2.0, 1.0, 2.0], [2.0, 1.0, 1.0]])))
        0.25

    Reference:
        Naeini, Cooper, Hauskrecht, *Obtaining Well Calibrated Probabilities Using Bayesian
        Binning*, AAAI 2015.
    """
    return ops.sum(ops.abs(sums[:, 2] - sums[:, 1])) / ops.sum(sums[:, 0])
