"""The effects of a `FieldBias` as tables of weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from keras_calibration._rows.columns import LARGEST_NUMBER
from keras_calibration._rows.weights import are_counts
from keras_calibration._solvers.knots import separate_quantile_knots
from keras_calibration._solvers.level import NUM_KNOTS, Level
from keras_calibration._solvers.logit_histogram import NUM_BINS, bin_numbers
from keras_calibration.layers.head_logits import head_logits
from keras_calibration.layers.histogram_head import HistogramHead

# The fewest knots that a numeric column gets, however many columns and however few rows there are.
FEWEST_KNOTS = 16


def by_columns(curves: Sequence[np.ndarray], num_knots: int) -> np.ndarray:
    """Values of each curve at its knots and, last, for missing values, (columns, num_knots + 1).

    The value at the last knot is repeated.
    """
    return np.stack([np.r_[v[:-1], np.full(num_knots - len(v) + 1, v[-2]), v[-1]] for v in curves])


def rounded_numbers(columns: Iterable[np.ndarray], dtype: str) -> list[np.ndarray]:
    """Numeric columns (n,) as float64, rounded to a dtype; very large numbers become infinite."""
    rounded = [column.reshape(-1).astype(dtype).astype("float64") for column in columns]
    return [np.where(np.abs(v) > LARGEST_NUMBER, np.copysign(np.inf, v), v) for v in rounded]


def knots_of(
    numbers: Sequence[np.ndarray], weights: np.ndarray | None, num_knots: int
) -> list[np.ndarray]:
    """Knots of numeric columns: of all columns together, at most half as many as rows."""
    counts = weights if weights is not None and are_counts(weights) else np.ones(len(numbers[0]))
    limit = max(int(counts.sum()) // (2 * len(numbers)), FEWEST_KNOTS)
    knots = [separate_quantile_knots(column, min(num_knots, limit), weights) for column in numbers]
    return [column_knots if len(column_knots) else np.zeros(1) for column_knots in knots]


def table_of_level(level: Level) -> np.ndarray:
    """A level as a table (4, NUM_KNOTS): times, values, errors; then last, walk and noise."""
    rows = level.times, level.values, level.errors, [level.last, level.walk, level.noise]
    return np.stack([np.pad(row, (0, NUM_KNOTS - len(row))) for row in rows])


def level_of_table(table: np.ndarray) -> Level | None:
    """The level, from `table_of_level`; None before a fit."""
    times = table[0]
    if not times.any():
        return None
    places = slice(1 + int(np.argmax(np.append(times, 0.0) == 0.0)))
    return Level(*(row[places] for row in table[:3]), *map(float, table[3, :3]))


def line_of_spread(
    calibrator: HistogramHead, logits: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """Weighted least-squares fit of the posterior spread of η at logits (n,) by 1 and η, (2, p)."""
    # Within a bin, η and its spread are straight lines, or nearly.
    histogram = calibrator.histogram
    bins = bin_numbers(logits if histogram is None else histogram.bins(logits))
    sums = np.stack([np.bincount(bins, term, NUM_BINS) for term in (weights, weights * logits)])
    totals, sums = sums[:, sums[0] > 0]
    means = sums / totals
    curve = head_logits(calibrator, means, {})
    columns = np.stack([np.ones(len(means)), curve])
    weighted = columns * totals
    spread = np.asarray(calibrator.posterior_spread(means)).astype("float64")
    return np.linalg.lstsq(weighted @ columns.T, weighted @ spread, rcond=None)[0]
