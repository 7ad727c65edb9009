"""Stacking: the weights with which cross-fitted logits of several fits predict best together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import optimize, special

from keras_calibration._rows.rows import Rows
from keras_calibration._solvers.logistic_fit import row_log_losses
from keras_calibration._solvers.repeated_rows import clusters_of
from keras_calibration._solvers.softmax_fit import log_losses, losses_and_probabilities
from keras_calibration._solvers.standard_errors import mean_and_error

# The first fit is the model as it is. All weight on others costs this log likelihood, in nats. The
# prior odds of the first fit against each other fit are e to this power.
_COST_OF_CHANGE = 1.0
_PRIOR_OF_NO_CHANGE = 2.0
_NUM_DRAWS = 1000
# Smaller weights are left out.
SMALLEST_WEIGHT = 0.02


def cross_fitted_weights(
    logits: Sequence[np.ndarray], rows: Rows, fold: np.ndarray, clusters: np.ndarray | None = None
) -> np.ndarray:
    """For each fold, the `combined_weights` of all rows outside it: (folds, m).

    Each fold is scored with its own weights. The model gets their mean (`mean_weights`). The log
    loss is convex, so the mean predicts at least as well as the scored weights do on average. The
    model changes exactly if some fold is scored with a change. So the score covers every choice.

    Example:
        >>> labels = np.arange(1000) % 4 == 0
        >>> rows = Rows(np.zeros(1000), labels.astype(float), None)
        >>> logits = [np.zeros(1000), np.full(1000, -2.0)]
        >>> cross_fitted_weights(logits, rows, np.arange(1000) // 500).round(2)
        array([[0.26, 0.74],
               [0.26, 0.74]])
    """
    columns, by_fold = np.stack(logits), []
    for fold_number in range(int(fold.max()) + 1):
        # A fold's own labels must not choose the weights with which it is scored.
        outside = np.flatnonzero(fold != fold_number)
        groups = None if clusters is None else clusters[outside]
        by_fold.append(combined_weights(list(columns[:, outside]), rows.take(outside), groups))
    return np.stack(by_fold)


def mean_weights(fold_weights: np.ndarray, rows: Rows, fold: np.ndarray) -> np.ndarray:
    """The mean of the weights (folds, m) over the rows that they score, (m,).

    Example:
        >>> rows = Rows(np.zeros(4), np.zeros(4), None)
        >>> mean_weights(np.eye(2), rows, np.array([0, 1, 1, 1]))
        array([0.25, 0.75])
    """
    shares = np.bincount(fold, rows.row_weights, len(fold_weights))
    return _drop_small(shares @ fold_weights / shares.sum(), SMALLEST_WEIGHT)


def combined_weights(
    logits: Sequence[np.ndarray], rows: Rows, clusters: np.ndarray | None = None
) -> np.ndarray:
    """Weights (m,) of cross-fitted logits, not negative, with the sum 1, the model as it is first.

    The model stays as it is if this is most probable (`_weigh_fits` above one half). Else
    the weights are the mean of the weights that predict best together (`stacked_weights`) and of
    the posterior weights. The stacked weights use that fits complement each other; the posterior
    weights allow for chance in a small difference. In 236 comparisons (tables, models and numbers
    of rows) either alone, or any choice of one fit, was worse; see `benchmarks/README.md`.

    With clusters, such as blocks of time, the model also stays as it is if no fit gains more than a
    standard error: what was right in a few blocks may be wrong in the next.

    Args:
        logits: Cross-fitted logits η of each fit, each (n,) or (n, K), finite.
        rows: Labels and weights; its logits are not read.
        clusters: The cluster of each row, whole numbers (n,); None if there are none. Groups of
            rows (`Rows.groups`) change the errors, but not this rule: they are many, and groups to
            come will be like them.

    Example:
        >>> labels = np.arange(1000) % 4 == 0
        >>> rows = Rows(np.zeros(1000), labels.astype(float), None)
        >>> combined_weights([np.zeros(1000), np.full(1000, -2.0)], rows).round(2)
        array([0.23, 0.77])
    """
    weights = rows.row_weights
    losses = np.stack([log_losses(rows.labels, eta) for eta in logits])
    posterior = _weigh_fits(losses, rows, clusters)
    best = np.argmin(losses @ weights)
    gain, error = mean_and_error(losses[0] - losses[best], weights, clusters)
    if posterior[0] > 0.5 or (clusters is not None and gain <= error):
        return np.eye(len(posterior))[0]
    return _drop_small(0.5 * posterior + 0.5 * stacked_weights(logits, rows), SMALLEST_WEIGHT)


def _weigh_fits(losses: np.ndarray, rows: Rows, clusters: np.ndarray | None) -> np.ndarray:
    """The probability that each fit predicts best (m,), with the sum 1, from losses (m, n).

    These are pseudo-BMA+ weights: the softmax of the summed log likelihoods, averaged over a
    Bayesian bootstrap of the rows, or of the clusters or groups. The first fit has prior odds of
    e². The function draws the sums directly, from their normal distribution with many rows.

    Reference:
        Yao, Vehtari, Simpson and Gelman (2018), *Using stacking to average Bayesian predictive
        distributions*.
    """
    weights = rows.row_weights
    # Log likelihoods count rows. The scaled weights add up to the effective number of rows (Kish).
    gains = rows.num_effective / weights.sum() * weights * (losses[0] - losses)
    dependent = clusters_of(rows) if clusters is None else clusters
    if dependent is not None:
        _, cluster = np.unique(dependent, return_inverse=True)
        # Dependent rows enter the bootstrap together, as one sum.
        gains = np.stack([np.bincount(cluster, gain) for gain in gains])
    num_independent = gains.shape[1]
    if num_independent == 1:  # the error of a single sum is unknown
        return np.eye(len(gains))[0]
    # The central limit theorem in place of a thousand resamples: the sum of m independent gains has
    # m times their covariance.
    covariance = num_independent * np.atleast_2d(np.cov(gains))
    sums = np.random.default_rng(0).multivariate_normal(
        gains.sum(axis=1), covariance, _NUM_DRAWS, method="svd"
    )
    sums[:, 0] += _PRIOR_OF_NO_CHANGE
    return special.softmax(sums, axis=1).mean(axis=0)


def stacked_weights(logits: Sequence[np.ndarray], rows: Rows) -> np.ndarray:
    """The weights v, not negative, with the sum 1, with which fits predict best together.

    They minimize `n · loss(Σ_k v_k η_k) + 1 - v_0`, where the loss is the weighted mean log loss
    and n the effective number of rows: to leave the first fit costs a nat in all.

    Example:
        >>> labels = np.arange(1000) % 4 == 0
        >>> rows = Rows(np.zeros(1000), labels.astype(float), None)
        >>> stacked_weights([np.zeros(1000), np.full(1000, -2.0)], rows).round(2)
        array([0.45, 0.55])

    Reference:
        Breiman (1996), *Stacked regressions*; van der Laan, Polley and Hubbard (2007), *Super
        Learner*.
    """
    shares = rows.row_weights / rows.row_weights.sum()
    columns = np.stack(logits).astype("float64")
    costs = _COST_OF_CHANGE / rows.num_effective * (np.arange(len(columns)) > 0)

    def objective(v: np.ndarray) -> tuple[float, np.ndarray]:
        combined = np.tensordot(v, columns, axes=1)
        if combined.ndim == 2:
            losses, probabilities = losses_and_probabilities(rows.labels, combined)
            # The gradient by v_k is `Σ w (p - y) η_k`; p counts as often as the labels of its row.
            residual = rows.labels.sum(axis=1, keepdims=True) * probabilities - rows.labels
        else:
            losses = row_log_losses(rows.labels, combined)
            residual = special.expit(combined) - rows.labels
        gradient = columns.reshape(len(v), -1) @ (residual.T * shares).T.reshape(-1)
        return float(shares @ losses + costs @ v), gradient + costs

    # The weights form a simplex, with single fits as its corners. Start between the best corner and
    # the centre; sequential quadratic programming (SLSQP) keeps to the simplex.
    alone = [objective(vertex)[0] for vertex in np.eye(len(columns))]
    best = np.eye(len(columns))[int(np.argmin(alone))]
    solution = optimize.minimize(
        objective,
        0.5 * best + 0.5 / len(columns),
        jac=True,
        method="SLSQP",
        bounds=[(0.0, 1.0)] * len(columns),
        constraints={"type": "eq", "fun": lambda v: v.sum() - 1, "jac": np.ones_like},
        options={"maxiter": 200, "ftol": 1e-10},
    ).x
    solution = _drop_small(solution, 1e-4)
    # The solver may stop early: never return anything worse than the best single fit.
    return solution if objective(solution)[0] < min(alone) else best


def _drop_small(weights: np.ndarray, smallest: float) -> np.ndarray:
    large_weights = np.where(weights < smallest, 0.0, weights)
    return large_weights / large_weights.sum()
