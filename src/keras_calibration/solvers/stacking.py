"""Stacking: the weights with which cross-fitted logits of several fits predict best together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import optimize, special

from keras_calibration.solvers.data_checks import Rows
from keras_calibration.solvers.logistic_fit import row_log_losses
from keras_calibration.solvers.softmax_fit import losses_and_probabilities

# The first fit is the model as it is; all weight on others costs this log likelihood, in nats.
_COST_OF_CHANGE = 3.0
# Smaller weights are left out.
_SMALLEST_WEIGHT = 0.01


def stacked_weights(
    logits: Sequence[np.ndarray], rows: Rows, num_independent: float | None = None
) -> np.ndarray:
    """Weights v of cross-fitted logits, not negative, with the sum 1.

    They minimize `n · loss(Σ_k v_k η_k) + 3 (1 - v_0)`, where the loss is the weighted mean log
    loss: to leave the first fit, the model as it is, costs three nats. So with few rows, of which
    nobody can tell what helps, the model stays nearly as it is.

    Args:
        logits: Cross-fitted logits η of each fit, each (n,) or (n, K), finite.
        rows: Labels and weights; its logits are not read.
        num_independent: n, the number of rows that count as independent; by default, the effective
            number for the weights.

    Returns:
        The weights (m,).

    Example:
        >>> labels = np.arange(1000) % 4 == 0
        >>> rows = Rows(np.zeros(1000), labels.astype(float), None)
        >>> stacked_weights([np.zeros(1000), np.full(1000, -2.0)], rows).round(2)
        array([0.45, 0.55])

    Reference:
        Breiman (1996), *Stacked regressions*; van der Laan, Polley and Hubbard (2007), *Super
        Learner*.
    """
    weights = rows.row_weights
    if num_independent is None:
        num_independent = float(weights.sum() ** 2 / (weights @ weights))
    shares = weights / weights.sum()
    columns = np.stack(logits).astype("float64")
    costs = np.full(len(columns), _COST_OF_CHANGE / num_independent)
    costs[0] = 0.0

    def objective(v: np.ndarray) -> tuple[float, np.ndarray]:
        combined = np.tensordot(v, columns, axes=1)
        losses, residual = _losses_and_residuals(rows.labels, combined)
        weighted = residual * shares.reshape(-1, *[1] * (residual.ndim - 1))
        gradient = columns.reshape(len(v), -1) @ weighted.reshape(-1)
        return float(shares @ losses + costs @ v), gradient + costs

    # The best of them alone is a vertex, from which the gradient leads inwards if others help.
    alone = [objective(vertex)[0] for vertex in np.eye(len(columns))]
    best = np.eye(len(columns))[int(np.argmin(alone))]
    found = optimize.minimize(
        objective,
        0.5 * best + 0.5 / len(columns),
        jac=True,
        method="SLSQP",
        bounds=[(0.0, 1.0)] * len(columns),
        constraints={"type": "eq", "fun": lambda v: v.sum() - 1, "jac": np.ones_like},
        options={"maxiter": 200, "ftol": 1e-10},
    ).x
    found = np.where(found < _SMALLEST_WEIGHT, 0.0, found)
    found /= found.sum()
    return found if objective(found)[0] < min(alone) else best


def _losses_and_residuals(labels: np.ndarray, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log loss of each row, and its derivative by the logits."""
    if logits.ndim == 2:
        losses, probabilities = losses_and_probabilities(labels, logits)
        return losses, labels.sum(axis=1, keepdims=True) * probabilities - labels
    return row_log_losses(labels, logits), special.expit(logits) - labels
