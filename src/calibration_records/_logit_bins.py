"""Bins of logits, narrow near 0 and wider farther out, and terms of sums by bin. Free of Keras."""

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
        num_outer = int(2 * (LARGEST_LOGIT - FINE_END) / self.width)
        return int(2 * FINE_END / self.fine_width) + num_outer + 2

    @property
    def edges(self) -> np.ndarray:
        """The edges between the bins, (num_bins - 1,)."""
        outer = np.arange(FINE_END, LARGEST_LOGIT + self.width, self.width)
        inner = np.arange(-FINE_END, FINE_END, self.fine_width)
        return np.concatenate([-outer[:0:-1], inner, outer])


# `logit_moments` sums powers of the offset in the former, which are few, because each acts as eight
# terms at every training step. The latter are for order and rates: AUC, bins of equal mass.
MOMENT_BINS = LogitBins(1 / 4, 1 / 2)
RANK_BINS = LogitBins(1 / 64, 1 / 16)

# The terms of a summary of logits (`_ops.logit_moments`).
NUM_BINS = MOMENT_BINS.num_bins
# Columns: Σ w (1 - y), Σ w y, Σ w (1 - y) u, Σ w y u, Σ w Tₖ(u) for k = 2 … 5.
NUM_COLUMNS = 8

_EDGES = MOMENT_BINS.edges
CENTRES = np.concatenate([_EDGES[:1], (_EDGES[1:] + _EDGES[:-1]) / 2, _EDGES[-1:]])[:, None]
HALF_WIDTHS = np.concatenate([[1.0], np.diff(_EDGES) / 2, [1.0]])[:, None]

_IS_END = np.isin(np.arange(NUM_BINS), (0, NUM_BINS - 1))[:, None]

# The eight terms of a bin: six nodes, the labels at its centre, and the offsets of the labels.
_NUM_NODES = 6
_NODES = np.cos(np.pi * (np.arange(_NUM_NODES) + 0.5) / _NUM_NODES)
_CHEBYSHEV = np.cos(np.arange(_NUM_NODES)[:, None] * np.arccos(_NODES)) * 2 / _NUM_NODES
_CHEBYSHEV[0] /= 2
_TO_NODES = _CHEBYSHEV.T[:, [0, 0, 1, 1, 2, 3, 4, 5]]
# From the columns to the terms, with the labels 0 or the labels 1.
TO_TERMS = [np.concatenate([_TO_NODES, np.eye(NUM_COLUMNS)[label:4:2]]) for label in (0, 1)]


def _by_term(
    nodes: np.ndarray | int, labels: np.ndarray | int, offsets: np.ndarray | int
) -> np.ndarray:
    """Constants of shape (418 · 8,), given for each bin (418, 1) or for all bins."""
    table = np.zeros((NUM_BINS, NUM_COLUMNS))
    table[:, :_NUM_NODES], table[:, -2:-1], table[:, -1:] = nodes, labels, offsets
    return table.reshape(-1)


# x = a l + c for a node and for the centre, and a h / 2 for the offsets.
LOGITS = _by_term(CENTRES + _NODES * HALF_WIDTHS, CENTRES, HALF_WIDTHS)
HAS_BIAS = _by_term(1, 1, 0)
CENTRE, REACH, IS_OPEN = (
    _by_term(values, values, values) for values in (CENTRES, HALF_WIDTHS, _IS_END)
)
IS_NODE, IS_CENTRE = _by_term(~_IS_END, 0, 0) > 0, _by_term(0, 1, 0) > 0
IS_LINEAR = _by_term(0, 1, 1) > 0
IS_OPEN = IS_OPEN > 0
