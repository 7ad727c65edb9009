"""A fixed-size, mergeable summary of labelled logits, from which calibrators are fitted exactly.

Where `logit_moments` serves metrics inside compiled steps, this is its companion on the host:
NumPy, float64, one pass over arrays that are at hand, a few nanoseconds a row. Negatives and
positives of each bin are kept apart, each with its weight and the first two moments about the
centre.

Bins are 1/64 wide on [-16, 16] and grow in proportion beyond, 128 to an octave, up to ±16384; what
lies farther out counts as that. On a curve that is affine within each bin the labels enter exactly,
and `Σ w softplus` is right to second order: at most 8e-9 nats a row off at slope 1, as a rule below
1e-11. Two atoms stand for a bin, at its mean ± its standard deviation, which keeps a fit convex.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from keras_calibration.solvers.data_checks import check_rows

_INNER_LIMIT = 16.0
_BINS_PER_UNIT = 64
_BINS_PER_OCTAVE = 128
_NUM_OCTAVES = 10
LARGEST_LOGIT = _INNER_LIMIT * 2**_NUM_OCTAVES

_INNER_EDGES = np.arange(-_INNER_LIMIT * _BINS_PER_UNIT, _INNER_LIMIT * _BINS_PER_UNIT + 1)
_OUTER_EDGES = _INNER_LIMIT * 2 ** (
    np.arange(1, _NUM_OCTAVES * _BINS_PER_OCTAVE + 1) / _BINS_PER_OCTAVE
)
EDGES = np.concatenate([-_OUTER_EDGES[::-1], _INNER_EDGES / _BINS_PER_UNIT, _OUTER_EDGES])
NUM_BINS = len(EDGES) - 1
_CENTRES = 0.5 * (EDGES[:-1] + EDGES[1:])
_BIN_ABOVE_ZERO = NUM_BINS // 2

# Arrays of this many rows stay in the processor's cache from the first step to the last.
_CHUNK_SIZE = 1 << 15


@dataclass(frozen=True)
class Atoms:
    """The bins that hold weight, for a fit: two atoms each, at the mean ± the standard deviation.

    Args:
        means: Mean logit of each bin (m,).
        spreads: Standard deviation of the logits of each bin (m,).
        weights: `Σ w` (m,).
        positives: `Σ w y` (m,).
        positive_means: Mean logit of the positives of each bin (m,); the bin's mean where there is
            none.
        offsets: What is added to the curve (m,), logits; nothing by default.
    """

    means: np.ndarray
    spreads: np.ndarray
    weights: np.ndarray
    positives: np.ndarray
    positive_means: np.ndarray
    offsets: Any = 0.0


@dataclass(frozen=True)
class LogitHistogram:
    """Sums over rows by class and bin; histograms add up over batches, hours and shards.

    Args:
        moments: `Σ w`, `Σ w (l - centre)`, `Σ w (l - centre)²` of the negatives and of the
            positives
            (2, NUM_BINS, 3), float64. A soft label y is y of a positive, 1 - y of a negative.
        num_rows: Number of rows, less what was forgotten.

    Example:
        >>> histogram = logit_histogram([-1.0, 0.5, 0.5], [0, 0, 1])
        >>> histogram.num_rows, histogram.positives, histogram.negatives
        (3.0, 1.0, 2.0)
        >>> (histogram + histogram).positives
        2.0
    """

    moments: np.ndarray
    num_rows: float

    def __add__(self, other: "LogitHistogram") -> "LogitHistogram":
        return LogitHistogram(self.moments + other.moments, self.num_rows + other.num_rows)

    def scaled(self, factor: float) -> "LogitHistogram":
        """The histogram with every weight multiplied by `factor`."""
        return LogitHistogram(factor * self.moments, factor * self.num_rows)

    @property
    def positives(self) -> float:
        """`Σ w y`."""
        return float(self.moments[1, :, 0].sum())

    @property
    def negatives(self) -> float:
        """`Σ w (1 - y)`."""
        return float(self.moments[0, :, 0].sum())

    def to_arrays(self) -> dict[str, np.ndarray]:
        """The histogram as arrays to store: the bins that hold weight, and the number of rows."""
        (filled,) = np.nonzero(self.moments[..., 0].any(axis=0))
        return {
            "bin_numbers": filled,
            "moments": self.moments[:, filled],
            "num_rows": np.asarray(self.num_rows),
        }

    @classmethod
    def from_arrays(cls, bin_numbers: Any, moments: Any, num_rows: Any) -> "LogitHistogram":
        """The histogram that `to_arrays` was taken of."""
        dense = np.zeros((2, NUM_BINS, 3))
        dense[:, np.asarray(bin_numbers)] = moments
        return cls(dense, float(np.asarray(num_rows)))

    def atoms(self) -> Atoms:
        """The bins that hold weight, in the order of their logits."""
        total = self.moments.sum(axis=0)
        (filled,) = np.nonzero(total[:, 0])
        weights, first, second = total[filled].T
        offsets = first / weights
        positives, positive_first, _ = self.moments[1, filled].T
        positive_offsets = np.divide(
            positive_first, positives, out=offsets.copy(), where=positives > 0
        )
        return Atoms(
            _CENTRES[filled] + offsets,
            np.sqrt(np.maximum(second / weights - offsets**2, 0.0)),
            weights,
            positives,
            _CENTRES[filled] + positive_offsets,
        )


def logit_histogram(logits: Any, labels: Any, sample_weight: Any = None) -> LogitHistogram:
    """Sums labelled logits into a histogram and checks them, in one pass over the rows.

    float32 and float64 arrays are read as they are, chunk by chunk, without a copy of the whole.

    Args:
        logits: Uncalibrated logits (n,) or (n, 1), finite.
        labels: Labels in [0, 1] (n,) or (n, 1).
        sample_weight: Weights of the rows (n,) or (n, 1), not negative; ones by default.

    Returns:
        The histogram.

    Raises:
        ValueError: If there is no row, a logit is not finite, a label is outside [0, 1], a weight
            is negative or all are 0, or numbers of rows differ. One class only is not refused here.

    Example:
        >>> logit_histogram([[0.25], [0.75]], [[1.0], [0.0]], [2, 3]).moments[:, :, 0].sum(axis=1)
        array([3., 2.])
    """
    given = (logits, labels) if sample_weight is None else (logits, labels, sample_weight)
    columns = [_column(values) for values in given]
    num_rows = columns[0].size
    moments = np.zeros((2, NUM_BINS, 3))
    # Overflow and invalid casts come from rows that are about to be refused.
    with np.errstate(all="ignore"):
        fine = num_rows > 0 and all(column.shape == (num_rows,) for column in columns)
        for start in range(0, num_rows if fine else 0, _CHUNK_SIZE):
            chunk = [_floating(column[start : start + _CHUNK_SIZE]) for column in columns]
            if not _rows_are_fine(*chunk):
                fine = False
                break
            _add_rows(moments, *chunk)
    if not fine or not moments[..., 0].any():
        check_rows(logits, labels, sample_weight)  # says which row is wrong, and how to mend it
    return LogitHistogram(moments, float(num_rows))


def quantile_edges(histogram: LogitHistogram, num_knots: int, balanced: bool = True) -> np.ndarray:
    """Knots at quantiles `(k - ½) / K` of the logits, each moved to the nearest edge of a bin.

    On edges, a piecewise-linear curve is affine within every bin, which makes its fit exact.

    Args:
        histogram: The rows.
        num_knots: K.
        balanced: Whether positives and negatives hold half the mass each.

    Returns:
        K increasing logits, float64, at least 1/64 apart.

    Example:
        >>> rows = logit_histogram(np.linspace(-6, -2, 1000), np.arange(1000) % 10 == 0)
        >>> quantile_edges(rows, 4).round(2)
        array([-5.52, -4.52, -3.52, -2.52])
    """
    by_class = histogram.moments[:, :, 0]
    if balanced:
        by_class = by_class / by_class.sum(axis=1, keepdims=True)
    mass = by_class.sum(axis=0)
    cumulative = np.concatenate([[0.0], np.cumsum(mass)])
    levels = (np.arange(num_knots) + 0.5) / num_knots * cumulative[-1]
    # Empty bins would make the inverse of the cumulative mass ambiguous.
    bin_number = np.minimum(np.searchsorted(cumulative[1:], levels), NUM_BINS - 1)
    share = (levels - cumulative[bin_number]) / mass[bin_number]
    edge = bin_number + (share > 0.5)
    steps = np.arange(num_knots)
    edge = np.maximum.accumulate(edge - steps) + steps
    return EDGES[np.minimum(edge, NUM_BINS - steps[::-1])]


def _column(values: Any) -> np.ndarray:
    array = np.asarray(values)
    return array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array


def _floating(values: np.ndarray) -> np.ndarray:
    return values if values.dtype in (np.float32, np.float64) else values.astype(np.float64)


def _rows_are_fine(logits: Any, labels: Any, weights: Any = None) -> bool:
    # Comparisons with NaN, which minima and maxima hand on, are false.
    finite = -np.inf < logits.min() and logits.max() < np.inf
    in_range = labels.min() >= 0 and labels.max() <= 1
    weighted = weights is None or (weights.min() >= 0 and weights.max() < np.inf)
    return bool(finite and in_range and weighted)


def _add_rows(moments: np.ndarray, logits: Any, labels: Any, weights: Any = None) -> None:
    bin_number, offset = _binned(logits)
    is_positive = labels.astype(np.intp)
    if (is_positive == labels).all():
        _add_class(moments.reshape(-1, 3), bin_number + NUM_BINS * is_positive, offset, weights)
        return
    weights = np.ones(len(logits)) if weights is None else weights
    _add_class(moments[0], bin_number, offset, weights * (1 - labels))
    _add_class(moments[1], bin_number, offset, weights * labels)


def _add_class(moments: np.ndarray, cell: Any, offset: Any, weights: Any) -> None:
    """Adds the powers 0, 1 and 2 of the offsets to the cells."""
    first = offset if weights is None else weights * offset
    for power, values in enumerate((weights, first, first * offset)):
        moments[:, power] += np.bincount(cell, values, minlength=len(moments))


def _binned(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bin number of each logit and its offset from the centre, float64."""
    outside = logits.min() < -_INNER_LIMIT or logits.max() >= _INNER_LIMIT
    # A power of two: number and offset are exact in float32 too.
    position = (np.clip(logits, -_INNER_LIMIT, _INNER_LIMIT) if outside else logits) * np.float32(
        _BINS_PER_UNIT
    )
    whole = np.floor(position)
    bin_number = whole.astype(np.intp) + _BIN_ABOVE_ZERO
    position -= whole
    offset = (position.astype(np.float64) - 0.5) / _BINS_PER_UNIT
    if outside:
        (rows,) = np.nonzero((logits < -_INNER_LIMIT) | (logits >= _INNER_LIMIT))
        far = np.clip(logits[rows].astype(np.float64), -LARGEST_LOGIT, LARGEST_LOGIT)
        bin_number[rows] = np.clip(np.searchsorted(EDGES, far, side="right") - 1, 0, NUM_BINS - 1)
        offset[rows] = far - _CENTRES[bin_number[rows]]
    return bin_number, offset
