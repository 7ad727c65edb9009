"""Convex fits of class logits on the host: one temperature, or a scale and a bias a class.

Each fit is the maximum of the likelihood under a Gaussian prior about the identity, so weak (a
tenth of a row of information) that a few rows outweigh it. It decides where the rows do not: a
class without a row keeps a finite bias, rows of which the largest logit tells every label a finite
scale. κ is 0.1, for scales times the mean square of the logits where that is below 1: small logits
need large scales.
"""

from dataclasses import dataclass

import numpy as np
import scipy.optimize

from keras_calibration.solvers.class_rows import ClassRows
from keras_calibration.solvers.logistic_fit import SMALLEST_SCALE

# The precision of the prior, in units of the log likelihood of a row of mean weight.
PRECISION = 0.1
_LARGEST_NUM_STEPS = 200
_LARGEST_NUM_HALVINGS = 40
# Nats a row that a further step could still gain.
_TOLERANCE = 1e-15
_CONVERGED = 1e-11


@dataclass(frozen=True)
class SoftmaxFit:
    """The minimum of a penalised class log loss.

    Args:
        scales: Factors of the logits: () or (K,).
        biases: What is added to them: () or (K,).
        log_loss: Mean log loss, in nats a row, without the prior.
        num_iterations: Number of steps.
        converged: Whether the optimum was reached.
    """

    scales: np.ndarray
    biases: np.ndarray
    log_loss: float
    num_iterations: int
    converged: bool


def mean_class_log_loss(rows: ClassRows, scales: np.ndarray, biases: np.ndarray) -> float:
    """`Σ w [log Σ_k exp(z_k) - Σ_k y_k z_k] / Σ w`, `z = scales l + biases`.

    Args:
        rows: The rows.
        scales: Factors () or (K,).
        biases: Biases () or (K,).

    Returns:
        Nats a row.

    Example:
        >>> from keras_calibration.solvers.class_rows import check_class_rows
        >>> rows = check_class_rows(np.zeros((2, 4)), [0, 3])
        >>> round(mean_class_log_loss(rows, np.ones(4), np.zeros(4)), 4)  # log 4
        1.3863
    """
    return _loss_and_probabilities(rows, scales * rows.logits + biases)[0]


def row_class_log_losses(labels: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """Log loss of each row, `log Σ_k exp(l_k) - Σ_k y_k l_k`, in NumPy.

    Args:
        labels: One-hot or soft labels (n, K), each row of sum 1.
        logits: Logits (n, K), finite.

    Returns:
        Nats (n,).

    Example:
        >>> row_class_log_losses(np.eye(4)[:1], np.zeros((1, 4))).round(4)  # log 4
        array([1.3863])
    """
    return _losses_and_probabilities(labels, logits)[0]


def fit_temperature(rows: ClassRows) -> SoftmaxFit:
    """`argmin_β Σ w log loss(y, softmax(β l)) + κ/2 (β - 1)²`, β ≥ 1e-6.

    Weights are taken in units of their mean. The derivative never falls; its only root is found by
    Brent's method in log β.

    Args:
        rows: The rows.

    Returns:
        The fit, its scale of shape ().

    Example:
        >>> from keras_calibration.solvers.class_rows import check_class_rows
        >>> rows = check_class_rows(np.tile([2.0, 0.0], (4000, 1)), np.arange(4000) % 4 == 0)
        >>> round(float(fit_temperature(rows).scales), 4)  # the logit of 3/4, over 2
        0.5493
    """
    share = rows.weights / rows.weights.sum()
    precision = _precision(rows, float(share @ rows.logits.var(axis=1)))
    label_sum = share @ (rows.labels * rows.logits).sum(axis=1)

    def slope(log_scale: float) -> float:
        scale = np.exp(log_scale)
        _, probabilities = _loss_and_probabilities(rows, scale * rows.logits)
        expected = share @ (probabilities * rows.logits).sum(axis=1)
        return float(expected - label_sum + precision * (scale - 1))

    lowest = highest = np.log(SMALLEST_SCALE)
    scale, num_steps = np.asarray(SMALLEST_SCALE), 0
    if slope(lowest) < 0:
        while slope(highest) < 0:  # this ends: the prior's part rises without bound
            lowest, highest = highest, highest + np.log(64)
        log_scale, root = scipy.optimize.brentq(slope, lowest, highest, full_output=True)
        scale, num_steps = np.asarray(np.exp(log_scale)), root.iterations
    loss = mean_class_log_loss(rows, scale, np.zeros(()))
    return SoftmaxFit(scale, np.zeros(()), loss, num_steps, True)


def fit_vector(rows: ClassRows) -> SoftmaxFit:
    """`argmin Σ w log loss(y, softmax(a_k l_k + b_k)) + κ/2 Σ_k [(a_k - 1)² + b_k²]`.

    Newton's method. Weights are taken in units of their mean.

    Args:
        rows: The rows.

    Returns:
        The fit, scales a and biases b of shape (K,). The biases add up to 0, as adding the same to
        all of them changes nothing but the prior.

    Example:
        >>> from keras_calibration.solvers.class_rows import check_class_rows
        >>> rows = check_class_rows(np.zeros((4000, 2)), np.arange(4000) % 4 == 0)
        >>> fit_vector(rows).biases.round(3)  # half the logit of 3/4, and less that
        array([ 0.549, -0.549])
    """
    num_classes = rows.logits.shape[1]
    share = rows.weights / rows.weights.sum()
    mean_square = float(share @ np.mean(rows.logits**2, axis=1))
    of_scales, of_biases = _precision(rows, mean_square), PRECISION / len(rows.weights)
    precision = np.repeat([of_scales, of_biases], num_classes)
    centre = np.repeat([1.0, 0.0], num_classes)

    def objective(theta: np.ndarray) -> tuple[float, np.ndarray]:
        scales, biases = theta.reshape(2, num_classes)
        loss, probabilities = _loss_and_probabilities(rows, scales * rows.logits + biases)
        return loss + 0.5 * float(precision @ (theta - centre) ** 2), probabilities

    # At scale 1 very wide logits are saturated: their gradient tells little.
    theta = centre * 4.0 / max(4.0, np.sqrt(mean_square))
    value, probabilities = objective(theta)
    num_steps, gain = 0, np.inf
    while num_steps < _LARGEST_NUM_STEPS:
        residual = share[:, None] * (probabilities - rows.labels)
        gradient = np.r_[(residual * rows.logits).sum(axis=0), residual.sum(axis=0)]
        gradient += precision * (theta - centre)
        step = _solve(_hessian(rows.logits, probabilities, share) + np.diag(precision), gradient)
        gain = 0.5 * float(gradient @ step)
        if gain <= _TOLERANCE:
            break
        num_steps += 1
        for halvings in range(_LARGEST_NUM_HALVINGS):
            candidate = theta - 0.5**halvings * step
            candidate_value, of_candidate = objective(candidate)
            if candidate_value < value:
                break
        else:
            break  # rounding is all that is left
        theta, value, probabilities = candidate, candidate_value, of_candidate
    scales, biases = theta.reshape(2, num_classes)
    biases = biases - biases.mean()
    loss = mean_class_log_loss(rows, scales, biases)
    return SoftmaxFit(scales, biases, loss, num_steps, gain <= _CONVERGED)


def _hessian(logits: np.ndarray, probabilities: np.ndarray, share: np.ndarray) -> np.ndarray:
    """`Σ w [diag(p) - p pᵀ]` in the scales and the biases of the classes (2 K, 2 K)."""
    expected = np.concatenate([probabilities * logits, probabilities], axis=1)
    hessian = -expected.T @ (share[:, None] * expected)
    k = np.arange(probabilities.shape[1])
    weighted = share[:, None] * probabilities
    hessian[k, k] += (weighted * logits**2).sum(axis=0)
    hessian[k, k + len(k)] += (weighted * logits).sum(axis=0)
    hessian[k + len(k), k] += (weighted * logits).sum(axis=0)
    hessian[k + len(k), k + len(k)] += weighted.sum(axis=0)
    return hessian


def _solve(matrix: np.ndarray, right: np.ndarray) -> np.ndarray:
    # Parameters of very different size.
    scale = 1 / np.sqrt(np.maximum(np.diag(matrix), 1e-100))
    scaled = matrix * scale[:, None] * scale
    scaled[np.diag_indices_from(scaled)] += 1e-14
    return scale * np.linalg.solve(scaled, scale * right)


def _precision(rows: ClassRows, mean_square: float) -> float:
    """The prior's precision of a scale, in units of the mean loss, for logits of this width."""
    return PRECISION / len(rows.weights) * (min(1.0, mean_square) or 1.0)


def _loss_and_probabilities(rows: ClassRows, logits: np.ndarray) -> tuple[float, np.ndarray]:
    """The mean log loss of calibrated logits (n, K), and their softmax."""
    losses, probabilities = _losses_and_probabilities(rows.labels, logits)
    return float(rows.weights @ losses / rows.weights.sum()), probabilities


def _losses_and_probabilities(
    labels: np.ndarray, logits: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The log losses (n,) of logits (n, K), and their softmax."""
    below_largest = logits - logits.max(axis=1, keepdims=True)
    powers = np.exp(below_largest)
    sums = powers.sum(axis=1)
    losses = np.log(sums) - (labels * below_largest).sum(axis=1)
    return losses, powers / sums[:, None]
