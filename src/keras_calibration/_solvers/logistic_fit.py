"""Exact logistic fits of a few parameters to a logit histogram, by Newton's method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike
from scipy import special
from threadpoolctl import ThreadpoolController

from calibration_records._warn import warn
from keras_calibration._rows.line import IDENTITY
from keras_calibration._solvers.covariance import covariance_factor
from keras_calibration._solvers.logit_histogram import LogitHistogram
from keras_calibration._solvers.newton import Solved, newton, solve_scaled

# Range of the scale of the logit that a fit may end at.
SMALLEST_SCALE = 1e-6
_LARGEST_SCALE = 64.0  # a change of 1 within a bin: the histogram is too coarse for more
# A positive below a negative costs 2 log 2 at the least, in nats; separated classes nothing.
_LEAST_LOSS = 0.5

# Products of small matrices gain nothing by further threads, which would wait for work busily.
_F = TypeVar("_F", bound=Callable[..., Any])
one_thread: Callable[[_F], _F] = ThreadpoolController().wrap(limits=1, user_api="blas")


@dataclass(frozen=True)
class LogisticFit(Solved):
    """The minimum of a penalised log loss.

    Args:
        parameters: θ (p,).
        leave_one_out: Estimate of the mean log loss on rows left out of the fit: the log loss plus
            `tr(H⁻¹ G) / Σ w`, with the Hessian H and the sum G of the rows' squared gradients.
        factor: F (p, p): in the Laplace approximation, the posterior covariance of θ is
            `F Fᵀ = H⁻¹`, with rows of zeros for the parameters at their bounds.
    """

    parameters: np.ndarray
    leave_one_out: float
    factor: np.ndarray


@one_thread
def fit_logistic(
    histogram: LogitHistogram,
    design: Callable[[np.ndarray, np.ndarray], np.ndarray],
    start: ArrayLike,
    lower: ArrayLike = -np.inf,
    precision: np.ndarray | None = None,
    centre: np.ndarray | Sequence[float] | float = 0.0,
    offset: float = 0.0,
) -> LogisticFit:
    """`argmin_θ Σ w log loss(y, σ(η)) + ½ (θ - μ)ᵀ P (θ - μ)`, θ ≥ lower, `η = X θ + s l + o`.

    X are the rows that `design` returns for logits within the bins of given means; they are affine
    in the logits of one bin. μ is `centre`, P `precision` (0 by default), s `offset`, and o are the
    offsets of the histogram. The problem is convex, and solved by `newton`.

    Reference:
        Takeuchi (1976), for `leave_one_out`.
    """
    atoms = histogram.atoms()
    # Each bin acts as two atoms of half its weight, at mean ± standard deviation: they have the
    # bin's first two moments, so that the sum of softplus is right to second order.
    logits = np.concatenate([atoms.means - atoms.spreads, atoms.means + atoms.spreads])
    rows = design(logits, np.tile(atoms.means, 2))
    weights = 0.5 * np.concatenate([atoms.weights, atoms.weights])
    total = atoms.weights.sum()
    # The loss is softplus(η) - y η. The labels enter only through `Σ w y x`, which the mean logit
    # of the positives of each bin gives exactly, as X is affine within a bin.
    by_label = atoms.positives @ design(atoms.positive_means, atoms.means)
    offsets = np.broadcast_to(atoms.offsets, atoms.means.shape)
    fixed_by_label = atoms.positives @ (offset * atoms.positive_means + offsets)
    fixed = offset * logits + np.concatenate([offsets, offsets])
    precision = np.zeros((len(by_label), len(by_label))) if precision is None else precision

    def loss_sum(theta: np.ndarray, curve: np.ndarray) -> float:
        return float(weights @ np.logaddexp(0.0, curve) - by_label @ theta - fixed_by_label)

    def objective(theta: np.ndarray) -> tuple[float, np.ndarray]:
        curve = rows @ theta + fixed
        away = theta - centre
        return loss_sum(theta, curve) + 0.5 * float(away @ precision @ away), curve

    def derivatives(theta: np.ndarray, curve: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        one = special.expit(curve)
        gradient = rows.T @ (weights * one) - by_label + precision @ (theta - centre)
        return gradient, rows.T @ (rows * (weights * one * (1 - one))[:, None]) + precision

    theta, num_steps, converged, hessian, free = newton(
        objective, derivatives, np.array(start, np.float64), np.asarray(lower, np.float64), total
    )
    curve = rows @ theta + fixed
    one = special.expit(curve)
    rate = np.tile(atoms.positives / atoms.weights, 2)
    # Takeuchi's information criterion. G is `Σ w (y - σ)² x xᵀ`, the sum of the squared gradients
    # of the rows; `tr(H⁻¹ G)`, the effective number of parameters, is what leaving rows out costs.
    squares = weights * (rate * (1 - one) ** 2 + (1 - rate) * one**2)
    spread = (rows.T @ (rows * squares[:, None]))[np.ix_(free, free)]
    effective = np.trace(solve_scaled(hessian[np.ix_(free, free)], spread))
    log_loss = float(loss_sum(theta, curve) / total)
    return LogisticFit(
        log_loss=log_loss,
        num_iterations=num_steps,
        converged=converged,
        parameters=theta,
        leave_one_out=float(log_loss + effective / total),
        factor=covariance_factor(hessian, free),
    )


def warn_of_no_ranking(scale: float, taker: str) -> None:
    """Warns if the fitted scale of the logit is at its lower bound."""
    if scale <= SMALLEST_SCALE:
        warn(
            f"{taker}: the best scale of the logit is not above 0, because the logits do not "
            "separate the classes. It is set to nearly 0, which keeps the ranking. Check the "
            "meaning of the labels and the order of the rows."
        )


def check_scale(fit: LogisticFit, histogram: LogitHistogram, taker: str) -> float:
    """The scale, last of the parameters; warns at its lower bound, raises if it has no optimum."""
    scale = float(fit.parameters[-1])
    warn_of_no_ranking(scale, taker)
    # If a threshold separates the classes, the loss falls towards 0 as the scale grows without end.
    is_separated = fit.log_loss * (histogram.positives + histogram.negatives) < _LEAST_LOSS
    if is_separated or not scale * histogram.view.scale < _LARGEST_SCALE:
        raise ValueError(
            f"{taker} fits a finite scale of the logit. Received: rows whose best scale is too "
            "large or infinite, because a threshold on the logit separates, or nearly separates, "
            "positives and negatives. Use more rows, or use ILPS or BiasCorrection."
        )
    return scale


def mean_log_loss(histogram: LogitHistogram) -> float:
    """The mean log loss of the uncalibrated probabilities σ(l), in nats per row."""
    atoms, line = replace(histogram, view=IDENTITY).atoms(), histogram.bins
    # Two atoms a bin, as in `fit_logistic`, on the logits of the rows.
    softplus = np.logaddexp(0.0, line.inverse(atoms.means - atoms.spreads))
    softplus += np.logaddexp(0.0, line.inverse(atoms.means + atoms.spreads))
    labels = atoms.positives @ line.inverse(atoms.positive_means)
    return float((0.5 * atoms.weights @ softplus - labels) / atoms.weights.sum())


def row_log_losses(labels: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """Log loss of each row in nats, `softplus(l) - y l`."""
    # `np.logaddexp` takes three times as long.
    return np.maximum(logits, 0.0) + np.log1p(np.exp(-np.abs(logits))) - labels * logits


def starting_scale(histogram: LogitHistogram, with_bias: bool = True) -> float:
    """A scale in (0, 1] to start a fit from, below 1 for logits so wide that they saturate."""
    atoms = histogram.atoms()
    share = atoms.weights / atoms.weights.sum()
    centre = share @ atoms.means if with_bias else 0.0
    # Newton's method starts slowly where sigmoids are saturated: bring the logits to a width of 4.
    width = float(np.sqrt(share @ (atoms.means - centre) ** 2))
    return 1.0 if width <= 4.0 else 4.0 / width


def starting_bias(histogram: LogitHistogram, scale: float) -> float:
    """A bias to start a fit from: `σ(scale l + bias)` sums to the labels, to within 1e-3."""
    atoms = histogram.atoms()
    logits = scale * atoms.means
    share = atoms.weights / atoms.weights.sum()
    positives, negatives = histogram.positives, histogram.negatives
    target = positives / (positives + negatives)
    rate = np.log(positives) - np.log(negatives)
    # Bisection. At both ends, all predictions are on one side of the positive rate.
    low = rate - logits.max()
    high = rate - logits.min()
    while high - low > 1e-3:
        middle = 0.5 * (low + high)
        above = share @ special.expit(logits + middle) > target
        low, high = (low, middle) if above else (middle, high)
    return float(0.5 * (low + high))
