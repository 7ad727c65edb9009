"""The area under the ROC curve, from a histogram of positives and negatives over the score."""

from __future__ import annotations

from keras import ops

from calibration_records._logit_bins import RANK_BINS
from keras_calibration._ops.logit_bins import bin_numbers
from keras_calibration._typing import Tensor


def label_histogram(labels: Tensor, logits: Tensor, weights: Tensor) -> Tensor:
    """Positives `Σ w y` and negatives `Σ w (1 - y)` in 4354 bins of the logit, shape (4354, 2).

    The bins are `RANK_BINS`. NaN makes the whole histogram NaN. Histograms add up over batches,
    replicas and shards.
    """
    logits = ops.convert_to_tensor(logits)
    weights = ops.where(ops.isnan(logits), float("nan"), weights)
    counts = ops.stack([weights * labels, weights * (1 - labels)], axis=1)
    sums = ops.segment_sum(counts, bin_numbers(RANK_BINS, logits), num_segments=RANK_BINS.num_bins)
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
    # Shares instead of counts: products of large counts would overflow in float32.
    positives, negatives = (histogram[:, n] / ops.sum(histogram[:, n]) for n in (0, 1))
    # The negatives below the middle of each bin: all of the lower bins, and half of its own.
    return ops.sum(positives * (ops.cumsum(negatives) - 0.5 * negatives))
