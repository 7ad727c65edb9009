"""The exact fit of ILPS: a convex problem in the level and the slopes of the curve."""

import dataclasses

import numpy as np

from keras_calibration._solvers.logistic_fit import (
    LogisticFit,
    fit_logistic,
    starting_bias,
    starting_scale,
)
from keras_calibration._solvers.logit_histogram import LogitHistogram

# Lower bound of the slopes: it keeps the ranking, and costs nothing.
SMALLEST_SLOPE = 1e-6
# Precision of a Gaussian prior about slope 1, in units of summed log likelihood. It matters only
# where a threshold separates positives from negatives: the slope is then about 10.
_SLOPE_PRECISION = 0.1
# Candidates for `smoothness="auto"`, the straightest first.
SMOOTHNESS_CHOICES = (10_000.0, 1_000.0, 100.0, 10.0, 1.0, 0.1)


def fit_ilps(
    histogram: LogitHistogram,
    knots: np.ndarray,
    smoothness: float | str = 1.0,
    extrapolation: str = "linear",
) -> tuple[np.ndarray, LogisticFit]:
    """Values b at the knots that minimise the penalised log loss, and the fit, with b's factor.

    The objective is `Σ w log loss(y, σ(η(l))) + τ/2 Σ (s_{k+1} - s_k)² + κ/2 mean (s_k - 1)²`,
    where the slopes s of the curve are at least 1e-6. The last term, with κ = 0.1, is a weak prior
    that a few positives outweigh; it keeps the slopes finite where the labels do not. With
    `smoothness="auto"`, τ is the value among 10⁴, 10³ … 0.1 with the lowest estimate of the log
    loss on rows left out, and the larger one if two are equal. If the knots lie on
    `logit_histogram.EDGES`, the fit to the histogram equals the fit to the rows; otherwise the rows
    of a bin with a knot inside count to first order.

    Reference:
        Pan et al., *Field-aware Calibration*, WWW 2020, eq. 8–11.
    """
    knots = np.asarray(knots, np.float64)
    gaps = np.diff(knots)
    pivot = len(knots) // 2
    # The level is the value at a knot in the middle, on which the slopes hardly depend.
    below_pivot = np.where(np.arange(len(gaps)) < pivot, gaps, 0.0)

    # Row of X: the level, and the length that the logit has passed of each segment (η = level + Σ
    # slopes × lengths), so that a bound on a slope is a bound on a parameter.
    def design(logits: np.ndarray, means: np.ndarray) -> np.ndarray:
        if extrapolation == "constant":
            inside = (means > knots[0]) & (means < knots[-1])
            logits = np.where(inside, logits, np.clip(means, knots[0], knots[-1]))
        segment = np.clip(np.searchsorted(knots, means, side="right") - 1, 0, len(gaps) - 1)
        runs = np.clip(logits[:, None] - knots[:-1], 0.0, gaps)
        # A segment continues beyond its knots: at the ends, and for atoms just outside their bin.
        runs[np.arange(len(logits)), segment] = logits - knots[segment]
        return np.concatenate([np.ones((len(logits), 1)), runs - below_pivot], axis=1)

    # As matrices: differences of neighbouring slopes, and distances of the slopes from 1.
    changes = np.zeros((len(gaps) - 1, len(gaps) + 1))
    changes[:, 1:] = np.diff(np.eye(len(gaps)), axis=0)
    to_slope_one = np.diag(np.r_[0.0, np.full(len(gaps), _SLOPE_PRECISION / len(gaps))])
    scale = starting_scale(histogram)
    bias = starting_bias(histogram, scale)
    theta = np.r_[bias + scale * knots[pivot], np.full(len(gaps), scale)]
    fits: list[LogisticFit] = []
    # Each fit starts from the one before (a warm start); the straightest comes first, so that `min`
    # takes it if two are equal.
    for choice in SMOOTHNESS_CHOICES if smoothness == "auto" else (float(smoothness),):
        fit = fit_logistic(
            histogram,
            design,
            theta,
            lower=np.r_[-np.inf, np.full(len(gaps), SMALLEST_SLOPE)],
            precision=choice * changes.T @ changes + to_slope_one,
            centre=np.r_[0.0, np.ones(len(gaps))],
        )
        theta = fit.parameters
        fits.append(fit)
    best = min(fits, key=lambda fit: fit.leave_one_out)
    # From level and slopes back to values at the knots. This map is linear, so it also carries the
    # factor of the covariance over.
    heights = np.r_[0.0, np.cumsum(best.parameters[1:] * gaps)]
    rises = np.where(np.arange(len(gaps)) < np.arange(len(knots))[:, None], gaps, 0.0)
    by_theta = np.concatenate([np.ones((len(knots), 1)), rises - below_pivot], axis=1)
    values = best.parameters[0] + heights - heights[pivot]
    return values, dataclasses.replace(best, factor=by_theta @ best.factor)


def strictly_increasing(values: np.ndarray) -> np.ndarray:
    """Moves values up by as little as their dtype allows, so that each is above the one before."""
    increasing = values.copy()
    for k in range(1, len(values)):
        above = np.nextafter(increasing[k - 1], values.dtype.type(np.inf))
        increasing[k] = max(increasing[k], above)
    return increasing
