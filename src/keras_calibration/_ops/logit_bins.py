"""The bin of each logit, and its place in the bin, on tensors."""

from __future__ import annotations

from keras import ops

from calibration_records._logit_bins import FINE_END, LARGEST_LOGIT, LogitBins
from keras_calibration._typing import Tensor


def bin_numbers(bins: LogitBins, logits: Tensor) -> Tensor:
    """The number of the bin of each logit, int32; arbitrary for NaN."""
    _, fine, coarse = _clip_and_floor(bins, logits)
    fine_ends = FINE_END / bins.fine_width
    ends = FINE_END / bins.width
    # The number of fine bins between 0 and the logit, up to ±16, plus that of coarse bins beyond.
    place = ops.clip(fine, -fine_ends, fine_ends) + coarse - ops.clip(coarse, -ends, ends)
    # A cast NaN can be any integer: it must not leave its group.
    return ops.clip(ops.cast(place, "int32") + bins.num_bins // 2, 0, bins.num_bins - 1)


def bin_offsets(bins: LogitBins, logits: Tensor) -> Tensor:
    """Offsets from the centres in half widths; in the open bins, from ±88 in logits."""
    inside, fine, coarse = _clip_and_floor(bins, logits)
    is_fine = ops.logical_and(inside >= -FINE_END, inside < FINE_END)
    centre = ops.where(is_fine, (fine + 0.5) * bins.fine_width, (coarse + 0.5) * bins.width)
    per_unit = ops.where(is_fine, 2 / bins.fine_width, 2 / bins.width)
    is_open = ops.logical_or(logits < -LARGEST_LOGIT, logits >= LARGEST_LOGIT)
    centre = ops.where(is_open, ops.sign(logits) * LARGEST_LOGIT, centre)
    per_unit = ops.where(is_open, 1.0, per_unit)
    return (logits - centre) * ops.cast(per_unit, logits.dtype)


def _clip_and_floor(bins: LogitBins, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Logits clipped to the open bins, so that numbers stay small, in widths of both kinds."""
    inside = ops.clip(logits, -LARGEST_LOGIT - bins.width, LARGEST_LOGIT)
    return inside, ops.floor(inside / bins.fine_width), ops.floor(inside / bins.width)
