"""The area under the ROC curve, from labels counted in bins of the score."""

from typing import Any

from keras import ops

# Powers of two, so that the bin number is exact in float32.
_FINE_WIDTH, _WIDTH = 1 / 64, 1 / 16
_FINE_END, _END = 16, 88
NUM_BINS = int(2 * _FINE_END / _FINE_WIDTH + 2 * (_END - _FINE_END) / _WIDTH)


def label_histogram(labels: Any, logits: Any, weights: Any) -> Any:
    """Positives and negatives in 4352 bins of the logit: 1/64 wide on [-16, 16], 1/16 to ±88.

    Args:
        labels: Labels y in [0, 1], soft or not (n,), float.
        logits: Logits (n,), of the same dtype. Those beyond ±88 count in the end bins; NaN makes
            the whole histogram NaN.
        weights: Weights (n,), of the same dtype, not negative.

    Returns:
        A tensor (4352, 2) of that dtype: `Σ w y` and `Σ w (1 - y)`. Histograms add up over batches,
        replicas and shards.

    Example:
        >>> rows = ops.array([1.0, 0.0]), ops.array([0.01, 0.0]), ops.ones(2)
        >>> print(label_histogram(*rows)[2176].numpy())
        [1. 1.]
    """
    logits = ops.convert_to_tensor(logits)
    # Clipped before it is divided: the largest logits would overflow.
    inside = ops.clip(logits, -_END, _END)
    fine, coarse = ops.floor(inside / _FINE_WIDTH), ops.floor(inside / _WIDTH)
    fine_ends, ends = _FINE_END / _FINE_WIDTH, _FINE_END / _WIDTH
    position = ops.clip(fine, -fine_ends, fine_ends) + coarse - ops.clip(coarse, -ends, ends)
    position = position + NUM_BINS // 2
    is_nan = ops.isnan(logits)
    bin_number = ops.cast(ops.where(is_nan, 0.0, ops.minimum(position, NUM_BINS - 1)), "int32")
    weights = ops.where(is_nan, float("nan"), weights)
    counts = ops.stack([weights * labels, weights * (1 - labels)], axis=1)
    sums = ops.segment_sum(counts, bin_number, num_segments=NUM_BINS)
    # A NaN in one bin is a NaN in all: no later sum may pass it by.
    return sums + 0 * ops.sum(sums)


def histogram_auc(histogram: Any) -> Any:
    """Area under the ROC curve: the share of (positive, negative) pairs in the right order.

    `AUC = Σ_b positives_b (Σ_{a<b} negatives_a + negatives_b / 2) / (positives · negatives)`: pairs
    within one bin count half, as ties do. With the same bins it is exact; for rows of a continuous
    score the error is at most half the share of pairs that fall in one bin.

    Args:
        histogram: Positives and negatives in bins of rising score (bins, 2).

    Returns:
        The AUC, a scalar in [0, 1]; NaN where there are no positives or no negatives.

    Example:
        >>> round(float(histogram_auc(ops.array([[0.0, 2.0], [1.0, 1.0], [1.0, 0.0]]))), 4)
        0.9167

    Reference:
        Hanley & McNeil, *The meaning and use of the area under a receiver operating characteristic
        (ROC) curve*, Radiology 143, 1982.
    """
    positives, negatives = histogram[:, 0], histogram[:, 1]
    # Shares rather than counts: the products of large counts would overflow in float32.
    positives, negatives = positives / ops.sum(positives), negatives / ops.sum(negatives)
    below = ops.cumsum(negatives) - 0.5 * negatives
    return ops.sum(positives * below)
