"""The level of all rows over time: the part that persists, and the part that does not."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from scipy import special

from keras_calibration._rows.line import Line
from keras_calibration._solvers.field_offsets import FieldOffsets, OffsetRows
from keras_calibration._solvers.knots import separate_quantile_knots
from keras_calibration._solvers.numeric_column import (
    NumericColumn,
    numeric_column,
    random_walk_basis,
)

# With 64 knots, a fit to few rows took the last few rows for the level to come. With 16, it missed
# single days.
NUM_KNOTS = 32
# Median of the prior standard deviation of the walk over all rows, as a share of `prior_scale`.
# With 1, fits to a sixteenth of four public tables lost up to 0.03 on the rows to come.
_WALK_SCALE = 0.1
NUM_SPREADS = 2
_NUM_POINTS = 32  # of the quadrature and of the grid


@dataclass(frozen=True)
class Level:
    """The level over time: what all logits share at a time, apart from the curve and the offsets.

    Args:
        times: Times (K,), increasing, as differences to the last one.
        values: The level at these times, in logits, without its mean over the rows of the fit.
        errors: Their standard errors.
        last: The part of the level at the last time that persists, in logits. It is served.
        walk: Standard deviation of the change of the persistent part in a unit of time.
        noise: Standard deviation of the part that does not persist.

    Example:
        >>> level = Level(np.array([-9.0, 0.0]), np.array([0.3, 0.5]), np.full(2, 0.1), 0.5, 0.1, 0)
        >>> level.last
        0.5
    """

    times: np.ndarray
    values: np.ndarray
    errors: np.ndarray
    last: float
    walk: float
    noise: float

    @property
    def drift(self) -> tuple[float, float]:
        """The slope of the level over these times, in logits a unit of time, and its error."""
        # Weighted least squares of the level on the time, weighted by inverse variances.
        weights = 1 / (self.errors**2 + self.noise**2)
        centred = self.times - np.average(self.times, weights=weights)
        information = float(weights @ centred**2)
        if not information:
            return 0.0, float("inf")
        return float(weights @ (centred * self.values)) / information, information**-0.5

    def to_dict(self) -> dict[str, Any]:
        """The level as plain Python values."""
        return {name: np.asarray(value).tolist() for name, value in asdict(self).items()}


def line_of_means(logits: np.ndarray, weights: np.ndarray, noise: float) -> Line:
    """The line from logits to the logits of the mean probability under noise, by least squares.

    With ε ~ N(0, noise²), `E σ(η + ε)` is nearer to one half than σ(η): if a small rate varies from
    day to day, its mean is above its median. Rows are weighted by the variance of their labels.

    Args:
        logits: η of the rows (n,).
        weights: Sample weights (n,).
        noise: The standard deviation of ε.

    Example:
        >>> line = line_of_means(np.array([-6.0, -5.0]), np.ones(2), 1.0)
        >>> line(np.array([-6.0, -5.0])).round(2)
        array([-5.51, -4.52])
    """
    # Gauss-Hermite quadrature of E σ(η + ε) on a grid of logits; in between, interpolation.
    points, shares = np.polynomial.hermite_e.hermegauss(_NUM_POINTS)
    grid = np.unique(np.linspace(logits.min(), logits.max(), _NUM_POINTS))
    noisy = grid[:, None] + noise * points
    # The logit as a difference, log E σ(η) - log E σ(-η): a probability near 1 has no digits left.
    means = np.interp(
        logits, grid, _compute_log_means(noisy, shares) - _compute_log_means(-noisy, shares)
    )
    probabilities = special.expit(means)
    information = weights * probabilities * (1 - probabilities)
    # Weighted least squares of `means - logits` on the logits, centred for its digits.
    total = information.sum()
    centre = information @ logits / total
    shift = information @ (means - logits) / total
    centred = logits - centre
    square = information @ centred**2
    change = information @ (centred * (means - logits)) / square if square > 0 else 0.0
    return Line(1 + change, shift - change * centre)


def line_of_fit(fit: FieldOffsets, rows: OffsetRows) -> Line:
    """`line_of_means` of a fit at the last value of its level."""
    logits = fit.logits(replace(rows, columns=rows.columns[:-1])) + fit.curves[-1][-1]
    return line_of_means(logits, rows.row_weights, fit.spreads.deviations[-1])


def _compute_log_means(logits: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Logarithms of weighted means of `σ(logits)` over the last axis, up to a constant."""
    return special.logsumexp(special.log_expit(logits), axis=-1, b=shares)


def level_column(
    times: np.ndarray, weights: np.ndarray | None
) -> tuple[np.ndarray, NumericColumn] | None:
    """The level over time: a random walk, and a deviation from it at each knot.

    The level has two parts: a random walk with standard deviation s₁, whose last value is the
    forecast; and independent deviations with standard deviation s₂, such as those of a day or of a
    session, which are not forecast. Without the second part, the walk would follow each deviation.
    The column takes the forecast, the walk at the last knot, as its value where the time is
    missing: so rows to come are scored without a time.

    Args:
        times: The times (n,), float64.
        weights: Sample weights (n,), or None.

    Returns:
        Its knots and the column; None if all rows have one time: their level is the constant.

    Example:
        >>> level_column(np.array([0.0, 5.0]), None)[1].basis
        array([[-0.1,  1. ,  0. ],
               [ 0.1,  0. ,  1. ],
               [ 0.1,  0. ,  0. ]])
    """
    knots = separate_quantile_knots(times, NUM_KNOTS, weights)
    if len(knots) == 1:
        return None
    num_knots = len(knots)
    walk = _WALK_SCALE * random_walk_basis(knots)
    # Rows are the knots and the missing value; columns the walk's directions and a deviation a
    # knot.
    basis = np.zeros((num_knots + 1, 2 * num_knots - 1))
    basis[:-1] = np.hstack([walk, np.eye(num_knots)])
    basis[-1, : num_knots - 1] = walk[-1]
    group = np.repeat(np.arange(NUM_SPREADS), [num_knots - 1, num_knots])
    return knots, replace(numeric_column(times, knots), basis=basis, group=group)


def level_of(knots: np.ndarray, column: NumericColumn, fit: FieldOffsets) -> Level:
    """The level of a fit, its last curve; errors are NaN if the fit has no posterior."""
    walk, noise = map(float, fit.spreads.deviations[-NUM_SPREADS:])
    # Variances of independent steps add up, so their sum over all knots divided by the whole time
    # is the variance of a unit of time.
    steps = np.diff(column.basis[:-1, : len(knots) - 1], axis=0)
    step = float(np.sqrt(np.sum(steps**2) / (knots[-1] - knots[0])))
    variances = (
        fit.posterior.curve_variances[-1] if fit.posterior else np.full(len(knots) + 1, np.nan)
    )
    return Level(
        times=knots - knots[-1],
        values=fit.curves[-1][:-1],
        errors=np.sqrt(variances[:-1]),
        last=float(fit.curves[-1][-1]),
        walk=walk * step,
        noise=noise,
    )
