"""Newton's method for convex problems of a few parameters with lower bounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

# Most steps: the problems here take 5 to 30. Most halvings of a step: enough from 1e100 to 1e-17.
_LARGEST_NUM_STEPS = 200
_LARGEST_NUM_HALVINGS = 400
# Largest gain of a further step, in nats per row, at which steps end and a fit counts as converged.
_TOLERANCE = 1e-15
_CONVERGED = 1e-11


@dataclass(frozen=True)
class Solved:
    """How a fit ended.

    Args:
        log_loss: Mean log loss, in nats per row, without the priors.
        num_iterations: Number of steps, or of passes over the effects.
        converged: Whether a further step, or pass, would gain next to nothing.
    """

    log_loss: float
    num_iterations: int
    converged: bool


def newton(
    objective: Callable[[np.ndarray], tuple[float, np.ndarray]],
    derivatives: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]],
    start: np.ndarray,
    lower: np.ndarray | float = -np.inf,
    total: float = 1.0,
) -> tuple[np.ndarray, int, bool, np.ndarray, np.ndarray]:
    """Minimises a convex objective by projected Newton steps.

    A parameter at its bound stays there while it would leave, and a step is halved until the
    objective falls.

    Args:
        objective: From θ (p,) to the objective, and an array that the derivatives need too.
        derivatives: From θ and this array to the gradient (p,) and the Hessian (p, p).
        start: Where to start.
        lower: Lower bounds of θ.
        total: Number of rows that the objective sums over; 1 for a mean.

    Returns:
        θ; the number of steps; whether a further step would gain less than 1e-11 nats per row; the
        Hessian at θ; and which parameters are not held at their bounds (p,).

    Reference:
        Bertsekas (1982), *Projected Newton Methods for Optimization Problems with Simple
        Constraints*.
    """
    theta, num_steps = start, 0
    value, shared = objective(theta)
    while True:
        gradient, hessian = derivatives(theta, shared)
        step, free = bounded_step(hessian, gradient, theta <= lower)
        # The squared Newton decrement `gᵀ H⁻¹ g`, twice what the quadratic model expects to gain.
        gain = gradient @ step / total
        if gain <= _TOLERANCE or num_steps == _LARGEST_NUM_STEPS:
            break
        num_steps += 1
        # Backtracking along the projected step. Where the curve has saturated, a full step can be
        # many orders of magnitude too long.
        for _ in range(_LARGEST_NUM_HALVINGS):
            candidate = np.maximum(theta - step, lower)
            candidate_value, candidate_shared = objective(candidate)
            if candidate_value < value or np.array_equal(candidate, theta):
                break
            step *= 0.5
        if not candidate_value < value:
            break  # only rounding is left
        theta, value, shared = candidate, candidate_value, candidate_shared
    return theta, num_steps, bool(gain <= _CONVERGED), hessian, free


def bounded_step(
    hessian: np.ndarray, gradient: np.ndarray, is_at_bound: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """A Newton step (p,), to be subtracted, that crosses no lower bound; and what it may move.

    Example:
        >>> coupled = np.array([[1.0, 2.0], [2.0, 5.0]])
        >>> bounded_step(coupled, np.array([-1.0, -4.0]), np.array([True, False]))
        (array([ 0. , -0.8]), array([False,  True]))
    """
    # The active set: a parameter at its bound is held there if the objective falls beyond it.
    is_free = ~is_at_bound | (gradient < 0)
    while True:
        step = np.zeros_like(gradient)
        step[is_free] = solve_scaled(hessian[np.ix_(is_free, is_free)], gradient[is_free])
        # Where parameters depend on each other, a step may cross a bound that the gradient leaves.
        # Cut there, it would be no descent: the others take the best step without this parameter.
        crosses = is_at_bound & (step > 0)
        if not crosses.any():
            return step, is_free
        is_free &= ~crosses


def solve_scaled(matrix: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The solution of a linear system whose unknowns can differ by orders of magnitude."""
    # Scale to a unit diagonal (Jacobi preconditioning), and add a tiny ridge for directions that
    # the rows do not determine.
    scale = 1 / np.sqrt(np.maximum(np.diag(matrix), 1e-100))
    scaled = matrix * scale[:, None] * scale
    scaled[np.diag_indices_from(scaled)] += 1e-14
    # `H x = r` becomes `(D H D) (D⁻¹ x) = D r`.
    column = scale if right.ndim == 1 else scale[:, None]
    return column * np.linalg.solve(scaled, column * right)
