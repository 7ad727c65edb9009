"""The effects of a `FieldBias` as tables of weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from keras_calibration._rows.columns import LARGEST_NUMBER
from keras_calibration._rows.line import Line
from keras_calibration._rows.rows import Rows
from keras_calibration._rows.weights import are_counts
from keras_calibration._solvers.field_offsets import FieldOffsets, OffsetRows
from keras_calibration._solvers.knots import separate_quantile_knots
from keras_calibration._solvers.level import NUM_KNOTS, Level
from keras_calibration._solvers.logit_histogram import NUM_BINS, bin_numbers
from keras_calibration.layers.fit import Fit

# The fewest knots that a numeric column gets, however many columns and however few rows there are.
FEWEST_KNOTS = 16


def by_columns(curves: Sequence[np.ndarray], num_knots: int) -> np.ndarray:
    """Values of each curve at its knots and, last, for missing values, (columns, num_knots + 1).

    The value at the last knot is repeated.
    """
    # v has the values at the knots, then the value for missing numbers.
    return np.stack([np.r_[v[:-1], np.full(num_knots - len(v) + 1, v[-2]), v[-1]] for v in curves])


def rounded_numbers(columns: Iterable[np.ndarray], dtype: str) -> list[np.ndarray]:
    """Numeric columns (n,) as float64, rounded to a dtype; very large numbers become infinite."""
    # The call reads numbers in the dtype of the layer: the fit must see the same ones.
    rounded = [column.reshape(-1).astype(dtype).astype("float64") for column in columns]
    return [np.where(np.abs(v) > LARGEST_NUMBER, np.copysign(np.inf, v), v) for v in rounded]


def knots_of(
    numbers: Sequence[np.ndarray], weights: np.ndarray | None, num_knots: int
) -> list[np.ndarray]:
    """Knots of numeric columns: at most one for two rows in all columns together, or 16 each."""
    # A count of k is k rows, but a row of a large importance is only one.
    counts = weights if weights is not None and are_counts(weights) else np.ones(len(numbers[0]))
    limit = max(int(counts.sum()) // (2 * len(numbers)), FEWEST_KNOTS)
    knots = [separate_quantile_knots(column, min(num_knots, limit), weights) for column in numbers]
    # A column without any number gets a knot at 0: its curve is flat.
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
    # Times are differences to the last time, which is 0. The zeros after it fill up the table.
    places = slice(1 + int(np.argmax(np.append(times, 0.0) == 0.0)))
    return Level(*(row[places] for row in table[:3]), *map(float, table[3, :3]))


@dataclass(frozen=True)
class AdditiveFit:
    """The fitted `a η(l) + c + Σ_f u_f[z_f] + Σ_j v_j(x_j)` of a `FieldBias`.

    Args:
        solved: The fit to the values of η.
        knots: The knots of each numeric column.
        line: Without η, the line that maps the logits to those of the fit; else not used.
        inner: The fit of η, if there is one.
        last: The last value of the level over time, 0 without times.
    """

    solved: FieldOffsets
    knots: Sequence[np.ndarray]
    line: Line
    inner: Fit | None
    last: float = 0.0

    def logits(
        self, rows: Rows, ids: Sequence[np.ndarray], numbers: Sequence[np.ndarray]
    ) -> np.ndarray:
        """The calibrated logits (n,) of rows with these ids and numbers of each column."""
        curve = self.line(rows.logits) if self.inner is None else self.inner.logits(rows)
        logits = self.solved.slope * curve + self.solved.bias + self.last
        if ids:
            logits += self.offsets(ids).sum(axis=1)
        for x, k, v in zip(numbers, self.knots, self.solved.curves, strict=False):
            # `np.interp` is linear between the knots and constant outside, like the layer.
            logits += np.where(np.isnan(x), v[-1], np.interp(x, k, v[:-1]))
        return logits

    def offsets(self, ids: Sequence[np.ndarray]) -> np.ndarray:
        """The offset of each row's value of each field (n, fields); 0 for other values."""
        pairs = zip(self.solved.offsets, ids, strict=True)
        return np.stack([np.append(values, 0.0)[numbers] for values, numbers in pairs], axis=1)

    def weights(self, num_knots: int) -> dict[str, Any]:
        """The weights of the layer, with this number of knots of each numeric column."""
        fit, line = self.solved, self.line
        weights: dict[str, Any] = {
            # The fit saw a' l' + c' with l' = a l + c: written out in l.
            "_slope": fit.slope * line.scale,
            "_bias": fit.bias + self.last + fit.slope * line.shift,
            "_deviations": fit.deviations[: len(fit.offsets) + len(self.knots)],
        }
        if fit.offsets:
            weights["_offsets"] = np.concatenate([np.append(u, 0.0) for u in fit.offsets])
        if self.knots:
            weights["_knots"] = padded(self.knots, num_knots)
            weights["_curves"] = by_columns(fit.curves[: len(self.knots)], num_knots)
        return weights

    def posterior(self, data: OffsetRows, rows: Rows, num_knots: int) -> dict[str, Any] | None:
        """The values of the posterior; None for a fit to a part of the rows.

        Args:
            data: The rows as the fit saw them.
            rows: The rows.
            num_knots: Number of knots of each numeric column.
        """
        posterior, line = self.solved.posterior, self.line
        if posterior is None:
            return None
        by_line, by_one = posterior.factor
        kept: dict[str, Any] = {"is_of_counts": float(are_counts(rows.weights))}
        # The same line for F: (l', 1) F' = (l, 1) F.
        kept["factor"] = np.stack([line.scale * by_line, by_one + line.shift * by_line])
        if self.solved.offsets:
            pairs = zip(posterior.variances, posterior.spreads, strict=True)
            # The last entry of each field is for unknown values: the variance E[s²] of the prior.
            kept["offsets"] = np.concatenate([np.append(t, spread**2) for t, spread in pairs])
        if self.knots:
            kept["curves"] = by_columns(posterior.curve_variances[: len(self.knots)], num_knots)
        # The part of the spread of η that a line in η explains is in the factor already: fit it by
        # least squares, so that `logit_standard_deviation` can subtract it.
        if self.inner is not None and self.inner.spread is not None:
            kept["curve"] = line_of_spread(self.inner, rows.logits, self.solved.information(data))
        return kept


def padded(knots: Sequence[np.ndarray], num_knots: int) -> np.ndarray:
    """Knots of numeric columns as a table (columns, num_knots); the last one is repeated."""
    return np.stack([np.pad(k, (0, num_knots - len(k)), "edge") for k in knots])


def line_of_spread(curve: Fit, logits: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Weighted least-squares fit of the posterior spread of η at logits (n,) by 1 and η, (2, p).

    `curve` is the fit of η, which has a spread.
    """
    # Sum the rows by bin first: within a bin, η and its spread are straight lines, or nearly.
    bins = bin_numbers(logits if curve.histogram is None else curve.histogram.bins(logits))
    sums = np.stack([np.bincount(bins, term, NUM_BINS) for term in (weights, weights * logits)])
    totals, sums = sums[:, sums[0] > 0]
    means = sums / totals
    columns = np.stack([np.ones(len(means)), curve.logits(Rows(means, None, None))])
    # The normal equations of weighted least squares, X' W X b = X' W s, with X = (1, η).
    weighted = columns * totals
    spread = cast(Any, curve.spread)(means)
    return np.linalg.lstsq(weighted @ columns.T, weighted @ spread, rcond=None)[0]
