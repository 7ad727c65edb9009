"""The part of a level that lasts: the random walk that best predicts later knots."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy import special

from keras_calibration._solvers.field_offsets import FieldOffsets, OffsetRows
from keras_calibration._solvers.level import NUM_SPREADS

# The shares of the variance of the walk's steps to try; 0 gives the mean of all knots.
_SHARES = np.append(0.25 ** np.arange(8), 0.0)
# A forecast is for a quarter of the knots. The first one is made after an eighth of them.
_HORIZON, _FIRST = 4, 8
# A smaller share is used if its error is below this part of the full walk's. In simulations with 32
# knots, 0.8 lost a step at 85 % of the rows in one of ten samples. 0.6 followed a season of two
# periods in one of five.
_EVIDENCE = 0.7


def with_lasting_level(fit: FieldOffsets, rows: OffsetRows) -> FieldOffsets:
    """The fit, whose level to come is reduced to the part that would have lasted.

    The standard deviation of a walk is estimated from the steps between neighbouring knots. A
    season of a few periods has such steps too, but its last value says nothing about the time to
    come. So the filtered level at each knot is also compared with the mean of the next knots, a
    quarter of all. If a walk with a smaller variance predicts them clearly better, its last value
    is served. The rest of the level then counts as not lasting.

    Args:
        fit: The fit; the last value of its last curve is the level to come.
        rows: The rows of the fit; their last column is the time.
    """
    column = rows.columns[-1]
    probability = special.expit(fit.logits(rows))
    weights, walk, noise = rows.row_weights, *fit.spreads.deviations[-NUM_SPREADS:]
    information = column.sums(weights * probability * (1 - probability))[:-1]
    score = column.sums(weights * (rows.labels - probability))[:-1]
    # The fitted level is shrunk by its priors. One Newton step on the likelihood alone,
    # `l'(v) / -l''(v)`, undoes this, and gives each knot an unbiased level with its variance.
    variance = 1 / np.maximum(information, 1e-12)
    level = fit.curves[-1][:-1] + variance * score
    # Variance of the walk's step between neighbouring knots, for the whole walk.
    steps = walk**2 * np.sum(np.diff(column.basis[:-1, column.group == 0], axis=0) ** 2, axis=1)
    path = _filter_level(level, variance + noise**2, steps)
    # A smaller share must predict clearly better than the full walk, the first one.
    errors = _sum_forward_errors(level, variance + noise**2, path)
    best = int(np.argmin(errors))
    if errors[best] >= _EVIDENCE * errors[0]:
        return fit
    # What the smaller walk leaves unexplained, beyond the sampling variance, is noise.
    excess = np.average((level - path[:, best]) ** 2 - variance, weights=information)
    curve = np.append(fit.curves[-1][:-1], path[-1, best])
    lasting = walk * _SHARES[best] ** 0.5, max(noise, np.sqrt(max(excess, 0.0)))
    deviations = np.append(fit.spreads.deviations[:-NUM_SPREADS], lasting)
    return replace(
        fit,
        curves=[*fit.curves[:-1], curve],
        spreads=fit.spreads._replace(deviations=deviations),
    )


def _filter_level(level: np.ndarray, variance: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """The level (K, shares) at each knot, estimated from the knots up to it."""
    # The Kalman filter of a local level model, for all shares at once: predict, then correct by the
    # gain `P / (P + R)`.
    mean = np.full(len(_SHARES), level[0])
    mean_variance = np.full(len(_SHARES), variance[0])
    path = [mean]
    for value, noise, step in zip(level[1:], variance[1:], steps, strict=True):
        mean_variance = mean_variance + _SHARES * step
        gain = mean_variance / (mean_variance + noise)
        mean = mean + gain * (value - mean)
        mean_variance = (1 - gain) * mean_variance
        path.append(mean)
    return np.stack(path)


def _sum_forward_errors(level: np.ndarray, variance: np.ndarray, path: np.ndarray) -> np.ndarray:
    """Sums of squared errors (shares,) if the path at each knot predicts the next knots."""
    num_knots = len(level)
    errors = np.zeros(path.shape[1])
    horizon = max(num_knots // _HORIZON, 1)
    for knot in range(max(num_knots // _FIRST, 1) - 1, num_knots - 1):
        later = slice(knot + 1, knot + 1 + horizon)
        mean = np.average(level[later], weights=1 / variance[later])
        # Near the end, fewer knots are left to predict, and the forecast counts for less.
        errors += len(level[later]) / horizon * (mean - path[knot]) ** 2
    return errors
