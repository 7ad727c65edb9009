"""A fixed-size, mergeable summary of labelled logits, to which calibrators are fitted exactly.

This is the counterpart of `_ops.logit_moments` on the host: NumPy, float64, one pass over whole
arrays, a few nanoseconds a row. For each bin, it keeps the weight and the first two moments about
the centre, separately for negatives and positives.

Bins are 1/64 wide on [-16, 16]. Beyond, they grow in proportion, 128 to an octave, up to ±16384;
logits farther out count as ±16384. For a curve that is affine within each bin, the labels count
exactly, and `Σ w softplus` is accurate to second order: at slope 1 the error is at most 8e-9 nats
per row, and typically below 1e-11. Each bin acts as two atoms, at its mean ± its standard
deviation, which keeps a fit convex.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from calibration_records._check import refused
from calibration_records._limits import BINS_PER_OCTAVE, INNER_LIMIT, NUM_OCTAVES
from calibration_records._warn import warn
from keras_calibration._rows.line import IDENTITY, Line
from keras_calibration._rows.weights import are_counts

BINS_PER_UNIT = 64
LARGEST_LOGIT = INNER_LIMIT * 2.0**NUM_OCTAVES


def bin_edges(bins_per_unit: int = BINS_PER_UNIT) -> np.ndarray:
    """The edges of the bins. Bins within ±16 have the width 1 / bins_per_unit."""
    end = INNER_LIMIT * bins_per_unit
    steps = np.arange(1, NUM_OCTAVES * BINS_PER_OCTAVE + 1)
    outer = INNER_LIMIT * 2 ** (steps / BINS_PER_OCTAVE)
    return np.concatenate([-outer[::-1], np.arange(-end, end + 1) / bins_per_unit, outer])


EDGES = bin_edges()
NUM_BINS = len(EDGES) - 1
_CENTRES = 0.5 * (EDGES[:-1] + EDGES[1:])
_BIN_ABOVE_ZERO = NUM_BINS // 2

# From this many rows on, weights that differ by more than this factor hardly have the same unit.
_FEW_ROWS, _LARGEST_RATIO = 20, 100.0

# Arrays of this many rows fit into the processor's cache.
_CHUNK_SIZE = 1 << 16


@dataclass(frozen=True)
class Atoms:
    """The bins that have weight, as input of a fit: two atoms each, at mean ± standard deviation.

    `positive_means` are the mean logits of the positives (the mean of the bin if there are none),
    and `offsets` are added to the curve.
    """

    means: np.ndarray
    spreads: np.ndarray
    weights: np.ndarray
    positives: np.ndarray
    positive_means: np.ndarray
    offsets: np.ndarray | float = 0.0

    def seen(self, line: Line) -> Atoms:
        """The same atoms, with logits mapped by a line."""
        return replace(
            self,
            means=line(self.means),
            spreads=line.scale * self.spreads,
            positive_means=line(self.positive_means),
        )


@dataclass(frozen=True)
class LogitHistogram:
    """Sums over rows by class and bin. Histograms add up over batches and shards.

    Args:
        moments: `Σ w`, `Σ w (l - centre)`, `Σ w (l - centre)²` of the negatives and of the
            positives, float64, shape `(2, NUM_BINS, 3)`. A soft label y counts as y of a positive
            and 1 - y of a negative.
        num_rows: Number of rows, reduced by forgetting.
        bins: The line that maps the logits of the rows to logits on the bins.
        view: The line that maps logits on the bins to the logits that a fit sees.
        unit: The sample weight of one row, `Σ w² / Σ w` of importances and 1 of counts. The weights
            in the moments are divided by it, so that they are numbers of rows.

    Example:
        >>> histogram = logit_histogram([-1.0, 0.5, 0.5], [0, 0, 1])
        >>> histogram.num_rows, histogram.positives, histogram.negatives
        (3.0, 1.0, 2.0)
        >>> (histogram + histogram).positives
        2.0
    """

    moments: np.ndarray
    num_rows: float
    bins: Line = IDENTITY
    view: Line = IDENTITY
    unit: float = 1.0

    def __add__(self, other: LogitHistogram) -> LogitHistogram:
        if self.bins != other.bins:
            raise refused("other", f"a histogram on the same bins, {self.bins}", other.bins)
        # Each side counts rows in its own unit. Bring both to the unit of all rows together;
        # dividing by the larger unit first keeps extreme weights from overflowing.
        largest = max(self.unit, other.unit)
        units = np.array([self.unit, other.unit]) / largest
        sums = units * [part.moments[..., 0].sum() for part in (self, other)]  # Σ w
        unit = units @ sums / sums.sum() if sums.any() else 1.0  # Σ w² / Σ w
        mine, others = units / unit
        return replace(
            self,
            moments=mine * self.moments + others * other.moments,
            num_rows=self.num_rows + other.num_rows,
            unit=float(largest * unit),
        )

    def scaled(self, factor: float) -> LogitHistogram:
        """The histogram with every number of rows multiplied by `factor`."""
        return replace(self, moments=factor * self.moments, num_rows=factor * self.num_rows)

    def on_bins(self, bins: Line) -> LogitHistogram:
        """The histogram on other bins; each bin counts as two atoms of either class."""
        if bins == self.bins:
            return self
        moments = np.zeros_like(self.moments)
        for old, new in zip(self.moments, moments, strict=True):
            (filled,) = np.nonzero(old[:, 0])
            weights, first, second = old[filled].T
            spreads = np.sqrt(np.maximum(second / weights - (first / weights) ** 2, 0.0))
            # Two atoms with the bin's mean and variance keep its first two moments on the new bins.
            for side in (-1, 1):
                logits = self.bins.inverse(_CENTRES[filled] + first / weights + side * spreads)
                _add_class(new, *_locate_in_bins(_map_to_bins(logits, bins)), 0.5 * weights)
        return LogitHistogram(moments, self.num_rows, bins, unit=self.unit)

    @property
    def line(self) -> Line:
        """The line that maps the logits of the rows to the logits that a fit sees."""
        return self.bins.then(self.view)

    @property
    def positives(self) -> float:
        """`Σ w y`."""
        return float(self.moments[1, :, 0].sum())

    @property
    def negatives(self) -> float:
        """`Σ w (1 - y)`."""
        return float(self.moments[0, :, 0].sum())

    @property
    def is_of_counts(self) -> bool:
        """Whether the weights of the rows can be counts: the sum of each bin is a whole number."""
        return are_counts(self.moments[..., 0].sum(axis=0))

    def to_arrays(self) -> dict[str, np.ndarray]:
        """The histogram as arrays to store: the bins that have weight, and the number of rows."""
        (filled,) = np.nonzero(self.moments[..., 0].any(axis=0))
        return {
            "bin_numbers": filled,
            "moments": self.moments[:, filled],
            "num_rows": np.asarray(self.num_rows),
            "bins": np.array([self.bins.scale, self.bins.shift]),
            "unit": np.asarray(self.unit),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, ArrayLike]) -> LogitHistogram:
        """The histogram from the arrays of `to_arrays`."""
        read = {name: np.asarray(array) for name, array in arrays.items()}
        moments = np.zeros((2, NUM_BINS, 3))
        moments[:, read["bin_numbers"]] = read["moments"]
        return cls(
            moments=moments,
            num_rows=float(read["num_rows"]),
            bins=Line(*read["bins"].tolist()),
            unit=float(read["unit"]),
        )

    def atoms(self) -> Atoms:
        """The bins that have weight, in the order of their logits, as a fit sees them."""
        total = self.moments.sum(axis=0)
        (filled,) = np.nonzero(total[:, 0])
        weights, first, second = total[filled].T
        # Moments about the centre give mean and variance without cancellation far from 0.
        offsets = first / weights
        positives, sums, _ = self.moments[1, filled].T
        positive_offsets = np.divide(sums, positives, out=offsets.copy(), where=positives > 0)
        centres = _CENTRES[filled]
        return Atoms(
            means=centres + offsets,
            spreads=np.sqrt(np.maximum(second / weights - offsets**2, 0.0)),
            weights=weights,
            positives=positives,
            positive_means=centres + positive_offsets,
        ).seen(self.view)


def logit_histogram(
    logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None, bins: Line = IDENTITY
) -> LogitHistogram:
    """Sums the logits of checked rows into a histogram, by label, in one pass.

    float32 and float64 arrays are read chunk by chunk, without a copy.
    """
    columns = [np.asarray(logits), np.asarray(labels)]
    columns += [] if weights is None else [np.asarray(weights)]
    moments = np.zeros((2, NUM_BINS, 3))
    for start in range(0, len(columns[0]), _CHUNK_SIZE):
        chunk = [column[start : start + _CHUNK_SIZE] for column in columns]
        chunk = [part.astype(np.result_type(part, np.float32), copy=False) for part in chunk]
        _add_rows(moments, _map_to_bins(chunk[0], bins), *chunk[1:])
    return LogitHistogram(moments, float(len(columns[0])), bins)


def warn_of_other_unit(old: LogitHistogram, new: LogitHistogram) -> None:
    """Warns if the weights of new and old rows hardly have the same unit."""
    num_rows = min(part.moments[..., 0].sum() for part in (old, new))
    if num_rows >= _FEW_ROWS and not 1 / _LARGEST_RATIO <= new.unit / old.unit <= _LARGEST_RATIO:
        warn(
            f"The sample weights of the new rows are in another unit: about {new.unit:g}, where "
            f"those of the rows before are about {old.unit:g} (a row without a weight has 1). Rows "
            "of smaller weights hardly count. Pass weights in the same unit in every update."
        )


def quantile_edges(histogram: LogitHistogram, num_knots: int, balanced: bool = True) -> np.ndarray:
    """K knots at quantiles `(k - ½) / K` of the logits, each moved to the nearest edge of a bin.

    A piecewise-linear curve with knots on edges is affine within every bin, so its fit is exact.
    With `balanced=True`, positives and negatives have half the mass each.
    """
    by_class = histogram.moments[:, :, 0]
    if balanced:
        by_class = by_class / by_class.sum(axis=1, keepdims=True)
    mass = by_class.sum(axis=0)
    cumulative = np.concatenate([[0.0], np.cumsum(mass)])
    levels = (np.arange(num_knots) + 0.5) / num_knots * cumulative[-1]
    # `searchsorted` finds the first bin that reaches the level: never an empty one, in which any
    # place would have the same cumulative mass.
    bin_number = np.minimum(np.searchsorted(cumulative[1:], levels), NUM_BINS - 1)
    share = (levels - cumulative[bin_number]) / mass[bin_number]
    edge = bin_number + (share > 0.5 + 1e-9)  # whatever the unit of the weights
    steps = np.arange(num_knots)
    # Edges must differ and leave room for those to their right.
    edge = np.maximum.accumulate(edge - steps) + steps
    return histogram.view(EDGES[np.minimum(edge, NUM_BINS - steps[::-1])])


def bin_numbers(logits: np.ndarray) -> np.ndarray:
    """The number of the bin of each logit (n,), between `EDGES[number]` and `EDGES[number + 1]`.

    Example:
        >>> numbers = bin_numbers(np.array([-0.01, 0.02]))
        >>> EDGES[numbers], EDGES[numbers + 1]
        (array([-0.015625,  0.015625]), array([0.      , 0.03125]))
    """
    return _locate_in_bins(logits)[0]


FAR_LOGITS_ADVICE = (
    "Leave them out if they are few; else divide all logits by one number, in the fit and in every "
    "call."
)


def _map_to_bins(logits: np.ndarray, bins: Line) -> np.ndarray:
    """The logits as the bins hold them."""
    if bins == IDENTITY and max(-logits.min(), logits.max()) <= LARGEST_LOGIT:
        return logits
    return np.clip(bins(np.asarray(logits, np.float64)), -LARGEST_LOGIT, LARGEST_LOGIT)


def _add_rows(
    moments: np.ndarray, logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None
) -> None:
    bin_number, offset = _locate_in_bins(logits)
    is_positive = labels.astype(np.intp)
    # Hard labels need one pass over cells of class and bin, soft labels a pass for each class.
    if (is_positive == labels).all():
        _add_class(moments.reshape(-1, 3), bin_number + NUM_BINS * is_positive, offset, weights)
        return
    weights = np.ones(len(logits)) if weights is None else weights
    _add_class(moments[0], bin_number, offset, weights * (1 - labels))
    _add_class(moments[1], bin_number, offset, weights * labels)


def _add_class(
    moments: np.ndarray, cell: np.ndarray, offset: np.ndarray, weights: np.ndarray | None
) -> None:
    """Adds the powers 0, 1 and 2 of the offsets to the cells."""
    first = offset if weights is None else weights * offset
    for power, values in enumerate((weights, first, first * offset)):
        moments[:, power] += np.bincount(cell, values, minlength=len(moments))


def _locate_in_bins(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bin number of each logit, and its offset from the centre as float64."""
    outside = logits.min() < -INNER_LIMIT or logits.max() >= INNER_LIMIT
    inside = np.clip(logits, -INNER_LIMIT, INNER_LIMIT) if outside else logits
    # The factor is a power of two, so that number and offset are exact in float32 too.
    position = inside * np.float32(BINS_PER_UNIT)
    whole = np.floor(position)
    bin_number = whole.astype(np.intp) + _BIN_ABOVE_ZERO
    position -= whole
    offset = (np.asarray(position, np.float64) - 0.5) / BINS_PER_UNIT
    # Outer bins grow by powers, so they take a search; such logits are rare.
    if outside:
        (rows,) = np.nonzero((logits < -INNER_LIMIT) | (logits >= INNER_LIMIT))
        far = np.clip(logits[rows].astype(np.float64), -LARGEST_LOGIT, LARGEST_LOGIT)
        bin_number[rows] = np.clip(np.searchsorted(EDGES, far, side="right") - 1, 0, NUM_BINS - 1)
        offset[rows] = far - _CENTRES[bin_number[rows]]
    return bin_number, offset
