"""A logit histogram with offsets: the fit of η in `η(l) + g(x)`, with g(x) given."""

from dataclasses import dataclass, field

import numpy as np

from keras_calibration._rows.line import IDENTITY, Line
from keras_calibration._solvers.logit_histogram import (
    LARGEST_LOGIT,
    NUM_BINS,
    Atoms,
    LogitHistogram,
    bin_numbers,
    logit_histogram,
)

_CELLS_PER_UNIT = 16  # of the offset: the mean of a cell is within 1/16 of each of its rows


@dataclass(frozen=True)
class OffsetHistogram(LogitHistogram):
    """A logit histogram whose atoms have offsets o: a fit of η to it is a fit of `η(l) + o`.

    `cells` are sums over the rows by bin of the logit and of the offset. Knots depend on the bins
    of the logit alone.
    """

    cells: Atoms = field(kw_only=True)

    def atoms(self) -> Atoms:
        """The cells that have weight, in the order of their logits, as a fit sees them."""
        return self.cells.seen(self.view)


def offset_histogram(
    logits: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray,
    offsets: np.ndarray,
    bins: Line = IDENTITY,
) -> OffsetHistogram:
    """Sums rows by their logit and by the offset that is added to their curve."""
    plain = logit_histogram(logits, labels, weights, bins)
    logits = np.clip(bins(logits), -LARGEST_LOGIT, LARGEST_LOGIT)
    # Rows of a cell share their bin and their slot of the offset; the cell keeps their mean.
    slot = np.floor(np.clip(offsets, -1e6, 1e6) * _CELLS_PER_UNIT).astype(np.int64)
    _, cell = np.unique(slot * NUM_BINS + bin_numbers(logits), return_inverse=True)

    def mean(values: np.ndarray, mass: np.ndarray, otherwise: np.ndarray) -> np.ndarray:
        sums = np.bincount(cell, mass * values)
        total = np.bincount(cell, mass)
        return np.divide(sums, total, out=otherwise.copy(), where=total > 0)

    empty = np.zeros(cell.max() + 1)
    means = mean(logits, weights, empty)
    spreads = np.sqrt(mean((logits - means[cell]) ** 2, weights, empty))
    order = np.argsort(means, kind="stable")
    columns = (
        means,
        spreads,
        np.bincount(cell, weights),
        np.bincount(cell, weights * labels),
        mean(logits, weights * labels, means),
        mean(offsets, weights, empty),
    )
    return OffsetHistogram(
        plain.moments, plain.num_rows, bins, cells=Atoms(*(column[order] for column in columns))
    )
