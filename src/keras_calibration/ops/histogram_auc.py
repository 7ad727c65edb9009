"""The area under the ROC curve, from a histogram of positives and negatives over the score."""

from __future__ import annotations

from keras import ops

from keras_calibration._typing import Tensor

# Powers of two, so that the bin number is exact in float32.
_FINE_WIDTH, _WIDTH = 1 / 64, 1 / 16
_FINE_END, _END = 16, 88
NUM_BINS = int(2 * _FINE_END / _FINE_WIDTH + 2 * (_END - _FINE_END) / _WIDTH)


def label_histogram(labels: Tensor, logits: Tensor, weights: Tensor) -> Tensor:
    """Positives `Σ w y` and negatives `Σ w (1 - y)` in 4352 bins of the logit, shape (4352, 2).

    Bins are 1/64 wide on [-16, 16) and 1/16 up to ±88; logits beyond count in the end bins. NaN
    makes the whole histogram NaN. Histograms add up over batches, replicas and shards.
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
    # A NaN in one bin makes all bins NaN, so that no later sum can miss it.
    return sums + 0 * ops.sum(sums)


def histogram_auc(histogram: Tensor) -> Tensor:
    """Area under the ROC curve of (bins, 2) positives and negatives, in bins of ascending score.

    `AUC = Σ_b positives_b (Σ_{a<b} negatives_a + negatives_b / 2) / (positives · negatives)`. Pairs
    within one bin count half, as ties do: for a continuous score, the error is at most half the
    share of the pairs that fall into one bin. NaN if there are no positives or no negatives.

    Reference:
        Hanley & McNeil, *The meaning and use of the area under a receiver operating characteristic
        (ROC) curve*, Radiology 143, 1982.
    """
    positives, negatives = histogram[:, 0], histogram[:, 1]
    # Shares instead of counts: products of large counts would overflow in float32.
    positives, negatives = positives / ops.sum(positives), negatives / ops.sum(negatives)
    below = ops.cumsum(negatives) - 0.5 * negatives
    return ops.sum(positives * below)
