"""Sums over the rows of each bin of probabilities, and the calibration error that they give."""

from typing import Any

import numpy as np
from keras import ops

# Fine bins of logits. A width that is a power of two makes bin numbers exact in float32.
NUM_BINS = 2048
BIN_WIDTH = 1 / 64


def bin_sums(labels: Any, probabilities: Any, weights: Any, bin_number: Any, num_bins: int) -> Any:
    """Per bin: `Σ w`, `Σ w p`, `Σ w y`. They add up over batches, replicas and shards.

    Args:
        labels: Labels y (n,), float.
        probabilities: Probabilities p (n,), of the same dtype.
        weights: Weights w (n,), of the same dtype.
        bin_number: Bins (n,), int32 in [0, num_bins).
        num_bins: Number of bins.

    Returns:
        A tensor (num_bins, 3).

    Example:
        >>> labels, ones, bins = ops.array([1.0, 0.0, 1.0]), ops.ones(3), ops.array([0, 1, 1])
        >>> print(bin_sums(labels, 0.5 * ones, ones, bins, 2).numpy())
        [[1.  0.5 1. ]
         [2.  1.  1. ]]
    """
    rows = ops.stack([weights, weights * probabilities, weights * labels], axis=1)
    return ops.segment_sum(rows, bin_number, num_segments=num_bins)


def equal_width_edges(num_bins: int, dtype: str = "float64") -> np.ndarray:
    """Edges k / num_bins of bins of equal width on [0, 1], rounded to the dtype of predictions.

    A float32 prediction of 0.3 is a little more than 3 / 10; rounded alike, it is on the edge.

    Args:
        num_bins: Number of bins.
        dtype: Dtype of the predictions as they came; edges keep full precision where it is no
            floating dtype.

    Returns:
        Edges (num_bins + 1,), float64.

    Example:
        >>> equal_width_edges(4).tolist()
        [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    edges = np.arange(num_bins + 1) / num_bins
    return edges.astype(dtype).astype(np.float64) if "float" in dtype else edges


def equal_width_bins(probabilities: Any, edges: np.ndarray) -> Any:
    """Bins of probabilities: bin k is (edge k, edge k + 1]; the first is closed at 0 too.

    Args:
        probabilities: Probabilities (n,), float. NaN goes to bin 0.
        edges: Edges (num_bins + 1,), ascending from 0 to 1.

    Returns:
        Bins (n,), int32 in [0, num_bins).

    Example:
        >>> edges = equal_width_edges(4)
        >>> print(equal_width_bins(ops.array([0.0, 0.25, 0.26, 1.0]), edges).numpy())
        [0 0 1 3]
    """
    # NaN compares as no number does; its sums make the result NaN from whichever bin.
    known = ops.where(ops.isnan(probabilities), 0.0, probabilities)
    inner = ops.cast(edges[1:-1], known.dtype)
    return ops.searchsorted(inner, known, side="left")


def logit_bins(logits: Any) -> Any:
    """Bins of logits: 2048 of width 1/64 on [-16, 16), the outer ones open.

    Args:
        logits: Logits (n,), float. NaN goes to bin 0.

    Returns:
        Bins (n,), int32 in [0, 2048).

    Example:
        >>> print(logit_bins(ops.array([-100.0, 0.0, 0.02, 100.0])).numpy())
        [   0 1024 1025 2047]
    """
    position = ops.floor(logits / BIN_WIDTH) + NUM_BINS // 2
    position = ops.where(ops.isnan(position), 0.0, ops.clip(position, 0, NUM_BINS - 1))
    return ops.cast(position, "int32")


def equal_mass_groups(weights: Any, num_bins: int) -> Any:
    """Takes adjacent fine bins together to bins of nearly equal weight.

    A fine bin goes where the middle of its weight lies among all the weight, so that each bound is
    off by at most half the weight of one fine bin. A fine bin that holds more than a bin's share
    leaves others empty.

    Args:
        weights: Weights of the fine bins (m,), ascending by prediction.
        num_bins: Number of bins to make.

    Returns:
        For each fine bin its bin (m,), int32 in [0, num_bins), ascending.

    Example:
        >>> print(equal_mass_groups(ops.array([1.0, 1.0, 0.0, 2.0]), 2).numpy())
        [0 0 1 1]
    """
    middle = ops.cumsum(weights) - 0.5 * weights
    share = ops.divide_no_nan(middle, ops.sum(weights))
    # A NaN weight makes the result NaN from whichever bin.
    share = ops.where(ops.isnan(share), 0.0, share)
    return ops.cast(ops.clip(ops.floor(share * num_bins), 0, num_bins - 1), "int32")


def expected_calibration_error(sums: Any) -> Any:
    """Expected calibration error: `Σ_b |Σ w (y - p)| / Σ w`, the inner sums over the rows of a bin.

    Args:
        sums: What `bin_sums` returns, added up over all batches.

    Returns:
        A scalar; NaN where there is no row.

    Example:
        >>> float(expected_calibration_error(ops.array([[2.0, 1.0, 2.0], [2.0, 1.0, 1.0]])))
        0.25

    Reference:
        Naeini, Cooper, Hauskrecht, *Obtaining Well Calibrated Probabilities Using Bayesian
        Binning*, AAAI 2015.
    """
    return ops.sum(ops.abs(sums[:, 2] - sums[:, 1])) / ops.sum(sums[:, 0])
