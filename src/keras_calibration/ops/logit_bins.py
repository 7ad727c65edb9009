"""LogitBins: bins of logits, narrow near 0 and wider farther out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from keras import ops

from keras_calibration._typing import Tensor

# Within ±FINE_END, bins are narrow; the two bins beyond ±LARGEST_LOGIT are open.
FINE_END, LARGEST_LOGIT = 16, 88


@dataclass(frozen=True)
class LogitBins:
    """Bins `fine_width` wide on [-16, 16), `width` wide from there to ±88, and two open bins.

    Widths that are powers of two make bin number, centre and offset exact in float32.

    Args:
        fine_width: Width of the bins on [-16, 16).
        width: Width of the bins beyond.

    Example:
        >>> bins = LogitBins(1 / 4, 1 / 2)
        >>> bins.num_bins, bins.edges[[0, -1]].tolist()
        (418, [-88.0, 88.0])
    """

    fine_width: float
    width: float

    @property
    def num_bins(self) -> int:
        """Number of bins, with the two open ones."""
        num_outer = int(2 * (LARGEST_LOGIT - FINE_END) / self.width)
        return int(2 * FINE_END / self.fine_width) + num_outer + 2

    @property
    def edges(self) -> np.ndarray:
        """The edges between the bins, (num_bins - 1,)."""
        outer = np.arange(FINE_END, LARGEST_LOGIT + self.width, self.width)
        inner = np.arange(-FINE_END, FINE_END, self.fine_width)
        return np.concatenate([-outer[:0:-1], inner, outer])

    def numbers(self, logits: Tensor) -> Tensor:
        """The number of the bin of each logit, int32; of NaN, any."""
        _, fine, coarse = self._floors(logits)
        fine_ends, ends = FINE_END / self.fine_width, FINE_END / self.width
        place = ops.clip(fine, -fine_ends, fine_ends) + coarse - ops.clip(coarse, -ends, ends)
        # A cast NaN can be any integer: it must not leave its group.
        number = ops.cast(place, "int32") + self.num_bins // 2
        return ops.clip(number, 0, self.num_bins - 1)

    def offsets(self, logits: Tensor) -> Tensor:
        """Offsets from the centres in half widths; in the open bins, from ±88 in logits."""
        inside, fine, coarse = self._floors(logits)
        is_fine = ops.logical_and(inside >= -FINE_END, inside < FINE_END)
        centre = ops.where(is_fine, (fine + 0.5) * self.fine_width, (coarse + 0.5) * self.width)
        per_unit = ops.where(is_fine, 2 / self.fine_width, 2 / self.width)
        is_open = ops.logical_or(logits < -LARGEST_LOGIT, logits >= LARGEST_LOGIT)
        centre = ops.where(is_open, ops.sign(logits) * LARGEST_LOGIT, centre)
        per_unit = ops.where(is_open, 1.0, per_unit)
        return (logits - centre) * ops.cast(per_unit, logits.dtype)

    def _floors(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits clipped to the open bins, so that numbers stay small, in widths of both kinds."""
        inside = ops.clip(logits, -LARGEST_LOGIT - self.width, LARGEST_LOGIT)
        return inside, ops.floor(inside / self.fine_width), ops.floor(inside / self.width)


# `logit_moments` sums powers of the offset in the former, which are few, because each acts as eight
# terms at every training step. The latter are for order and rates: AUC, bins of equal mass.
MOMENT_BINS = LogitBins(1 / 4, 1 / 2)
RANK_BINS = LogitBins(1 / 64, 1 / 16)
