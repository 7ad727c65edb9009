"""Bins of logits, narrow near 0 and wider farther out. Without Keras."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

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
        return len(self.edges) + 1

    @property
    def edges(self) -> np.ndarray:
        """The edges between the bins, (num_bins - 1,)."""
        outer = np.arange(FINE_END, LARGEST_LOGIT + self.width, self.width)
        inner = np.arange(-FINE_END, FINE_END, self.fine_width)
        return np.concatenate([-outer[:0:-1], inner, outer])


# `logit_moments` sums powers of the offset in the first. They are few, because each bin counts as
# eight terms at every training step. The second are for order and rates: AUC, bins of equal mass.
MOMENT_BINS = LogitBins(1 / 4, 1 / 2)
RANK_BINS = LogitBins(1 / 64, 1 / 16)
