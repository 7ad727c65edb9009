"""The posterior of effects as tables of weights: what `FieldBias` looks up for its intervals."""

from __future__ import annotations

import numpy as np
from keras import ops

from keras_calibration._rows.line import Line
from keras_calibration._solvers.field_posterior import CURVE_RANK, FieldPosterior
from keras_calibration._solvers.level import NUM_KNOTS, Level
from keras_calibration._solvers.logit_histogram import NUM_BINS, bin_numbers
from keras_calibration.layers.histogram_head import HistogramHead
from keras_calibration.layers.logits import LARGEST_SCORE

# Of each value: t, two columns of r, and V.
_WIDTH = CURVE_RANK + 3
LEVEL_SHAPES = {"level": (3, NUM_KNOTS), "level_figures": (3,), "last": (_WIDTH,)}


def factor_of_logit(found: FieldPosterior, line: Line) -> np.ndarray:
    """F of slope and bias of the logit, from that of η seen through a line (2, 2)."""
    by_line, by_one = found.factor
    return np.stack([line.scale * by_line, by_one + line.shift * by_line])


def offset_table(found: FieldPosterior, line: Line) -> np.ndarray:
    """T and r of each value of each field, and "other", (values, 3), from η through a line."""
    tables = [
        np.vstack([np.column_stack([t, _of_logit(r, line)]), [spread**2, 0.0, 0.0]])
        for spread, t, r in zip(found.spreads, found.variances, found.responses, strict=True)
    ]
    return np.concatenate(tables)


def curve_tables(found: FieldPosterior, line: Line, num_columns: int, num_knots: int) -> np.ndarray:
    """For each numeric column and knot, and for missing values: t, r and V, (columns, K + 1, R)."""
    return np.stack([_table(found, line, number, num_knots) for number in range(num_columns)])


def level_tables(shown: Level, found: FieldPosterior | None, line: Line) -> dict[str, np.ndarray]:
    """The level of a fit, to be shown, and t, r and V of what is served of it, the last curve."""
    rows = np.stack([shown.times, shown.values, shown.errors])
    last = np.zeros(_WIDTH) if found is None else _table(found, line, -1, NUM_KNOTS)[-1]
    # What does not persist is there at any time to come, and is not known.
    last[0] += shown.noise**2
    return {
        "level": np.pad(rows, ((0, 0), (0, NUM_KNOTS - rows.shape[1]))),
        "level_figures": np.array([shown.last, shown.walk, shown.noise]),
        "last": last,
    }


def level_of_tables(shown: np.ndarray, figures: np.ndarray) -> Level | None:
    """The level, from the first two of `level_tables`; None before a fit."""
    times = shown[0]
    if not times.any():
        return None
    places = slice(1 + int(np.argmax(np.append(times, 0.0) == 0.0)))
    return Level(*(row[places] for row in shown), *map(float, figures))


def padded(curve: np.ndarray, num_knots: int) -> np.ndarray:
    """Values at the knots and, last, of missing values, with that of the last knot repeated."""
    repeated = np.repeat(curve[-2:-1], num_knots - len(curve) + 1, axis=0)
    return np.concatenate([curve[:-1], repeated, curve[-1:]])


def line_of_spread(
    calibrator: HistogramHead, logits: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """Weighted least squares of the posterior spread of η at logits (n,) by 1 and η, (2, p)."""
    # Within a bin, η and its spread are straight lines, or nearly.
    histogram = calibrator.histogram
    bins = bin_numbers(logits if histogram is None else histogram.bins(logits))
    sums = np.stack([np.bincount(bins, each, NUM_BINS) for each in (weights, weights * logits)])
    totals, sums = sums[:, sums[0] > 0]
    means = sums / totals
    curve = ops.convert_to_numpy(calibrator(means)).astype("float64")
    columns = np.stack([np.ones(len(means)), np.clip(curve, -LARGEST_SCORE, LARGEST_SCORE)])
    weighted = columns * totals
    spread = ops.convert_to_numpy(calibrator.posterior_spread(means)).astype("float64")
    return np.linalg.lstsq(weighted @ columns.T, weighted @ spread, rcond=None)[0]


def _table(found: FieldPosterior, line: Line, number: int, num_knots: int) -> np.ndarray:
    """t, r and V of a curve at its knots and, last, of missing values, (K + 1, R)."""
    responses = _of_logit(found.curve_responses[number], line)
    parts = found.curve_variances[number], responses, found.curve_factors[number]
    table = padded(np.column_stack(parts), num_knots)
    return np.pad(table, ((0, 0), (0, _WIDTH - table.shape[1])))


def _of_logit(responses: np.ndarray, line: Line) -> np.ndarray:
    """Responses (k, 2) of effects to η and to the constant, for η in place of its line."""
    return np.stack(
        [(responses[:, 0] - line.shift * responses[:, 1]) / line.scale, responses[:, 1]], axis=1
    )
