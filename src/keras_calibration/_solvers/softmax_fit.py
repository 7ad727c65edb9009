"""Convex fits of class logits: one temperature, or a scale and a bias for each class.

Each fit maximises the likelihood under a Gaussian prior about the identity. It is so weak (a tenth
of the information of one row) that a few rows outweigh it. The prior matters where the rows do not
determine the fit: the scale stays finite if the largest logit always predicts the label. Its
precision κ is 0.1; for scales it is multiplied by the mean square of the logits where that is below
1, since small logits need large scales.
"""

import numpy as np
import scipy.optimize

from keras_calibration._rows.rows import Rows
from keras_calibration._solvers.logistic_fit import SMALLEST_SCALE, row_log_losses
from keras_calibration._solvers.newton import newton

# The precision of the prior, in units of the log likelihood of a row of weight 1.
PRECISION = 0.1
# The scale and bias of a class with fewer rows than this are drawn to the temperature.
_FEW_ROWS = 10


def log_losses(labels: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """Log loss of each row in nats: of class logits (n, K), or of one logit (n,) or (n, 1)."""
    if logits.ndim == 2 and logits.shape[1] > 1:
        return losses_and_probabilities(labels, logits)[0]
    return row_log_losses(labels, logits).reshape(-1)


def fit_temperature(rows: Rows) -> tuple[float, int]:
    """`argmin_β Σ w log loss(y, softmax(β l)) + κ/2 (β - 1)²`, β ≥ 1e-6, and the number of steps.

    The objective is convex, so its derivative increases, and Brent's method finds the root in log
    β.
    """
    share = rows.row_weights / rows.row_weights.sum()
    precision = _compute_precision(rows, float(share @ rows.logits.var(axis=1)))
    label_sum = share @ (rows.labels * rows.logits).sum(axis=1)

    # The derivative of the mean penalised loss by β: expected minus observed logit.
    def slope(log_scale: float) -> float:
        scale = np.exp(log_scale)
        _, probabilities = _score_logits(rows, scale * rows.logits)
        expected = share @ (probabilities * rows.logits).sum(axis=1)
        return float(expected - label_sum + precision * (scale - 1))

    lowest = highest = np.log(SMALLEST_SCALE)
    scale, num_steps = SMALLEST_SCALE, 0
    if slope(lowest) < 0:
        while slope(highest) < 0:  # this ends, because the slope of the prior is unbounded
            lowest, highest = highest, highest + np.log(64)
        log_scale, root = scipy.optimize.brentq(slope, lowest, highest, full_output=True)
        scale, num_steps = float(np.exp(log_scale)), root.iterations
    return scale, num_steps


def fit_vector(rows: Rows) -> tuple[np.ndarray, np.ndarray, int, bool]:
    """`argmin Σ w log loss(y, softmax(a_k l_k + b_k)) + κ/2 Σ_k [(a_k - 1)² + b_k²]`, a and b (K,).

    `newton` solves it. Then the biases are shifted to the sum 0, which leaves the probabilities
    alone. A class with m < 10 rows has a further prior of precision 10 - m, about the temperature:
    it would otherwise follow its few rows.

    Returns:
        a and b, the number of steps, and whether the optimum was reached.
    """
    num_classes = rows.logits.shape[1]
    share = rows.row_weights / rows.row_weights.sum()
    mean_square = float(share @ np.mean(rows.logits**2, axis=1))
    # Two Gaussian priors on a scale, about 1 and about the temperature, act like one: precisions
    # add up, and the centre is the weighted mean.
    missing = np.maximum(_FEW_ROWS - rows.row_weights @ rows.labels, 0.0)
    towards = fit_temperature(rows)[0] if missing.any() else 1.0
    of_scale_and_bias = [_compute_precision(rows, mean_square), PRECISION / rows.row_weights.sum()]
    precision = np.outer(of_scale_and_bias, 1 + missing / PRECISION).reshape(-1)
    centre = np.repeat([1.0, 0.0], num_classes)
    centre[:num_classes] += (towards - 1) * missing / (PRECISION + missing)

    def objective(theta: np.ndarray) -> tuple[float, np.ndarray]:
        scales, biases = theta.reshape(2, num_classes)
        loss, probabilities = _score_logits(rows, scales * rows.logits + biases)
        return loss + 0.5 * float(precision @ (theta - centre) ** 2), probabilities

    def derivatives(theta: np.ndarray, probabilities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        residual = share[:, None] * (probabilities - rows.labels)
        gradient = np.r_[(residual * rows.logits).sum(axis=0), residual.sum(axis=0)]
        hessian = _compute_hessian(rows.logits, probabilities, share)
        return gradient + precision * (theta - centre), hessian + np.diag(precision)

    # At scale 1, very wide logits are saturated, and their gradient vanishes: start at a width of
    # 4.
    start = centre * 4.0 / max(4.0, np.sqrt(mean_square))
    theta, num_steps, converged, _, _ = newton(objective, derivatives, start)
    scales, biases = theta.reshape(2, num_classes)
    return scales, biases - biases.mean(), num_steps, converged


def _compute_hessian(
    logits: np.ndarray, probabilities: np.ndarray, share: np.ndarray
) -> np.ndarray:
    """`Σ w [diag(p) - p pᵀ]` in the scales and the biases of the classes, (2 K, 2 K)."""
    # `z_k = a_k l_k + b_k`: the chain rule multiplies each entry of `diag(p) - p pᵀ` by the logits
    # of scales, and by 1 for biases. First the part `-p pᵀ`, then the diagonals.
    expected = np.concatenate([probabilities * logits, probabilities], axis=1)
    hessian = -expected.T @ (share[:, None] * expected)
    # Sums by class of p l², p l and p.
    products = np.concatenate([probabilities * logits**2, expected], axis=1)
    squares, firsts, sums = map(np.diag, np.split(share @ products, 3))
    return hessian + np.block([[squares, firsts], [firsts, sums]])


def _compute_precision(rows: Rows, mean_square: float) -> float:
    """The prior precision of a scale for logits of this mean square, in units of the mean loss."""
    return PRECISION / rows.row_weights.sum() * (min(1.0, mean_square) or 1.0)


def _score_logits(rows: Rows, logits: np.ndarray) -> tuple[float, np.ndarray]:
    """The mean log loss of calibrated logits (n, K), and their softmax."""
    losses, probabilities = losses_and_probabilities(rows.labels, logits)
    return float(rows.row_weights @ losses / rows.row_weights.sum()), probabilities


def losses_and_probabilities(
    labels: np.ndarray, logits: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The log losses (n,) of logits (n, K), and their softmax."""
    # Log-sum-exp: subtracting the largest logit keeps `exp` from overflowing.
    below_largest = logits - logits.max(axis=1, keepdims=True)
    powers = np.exp(below_largest)
    sums = powers.sum(axis=1)
    losses = np.log(sums) - (labels * below_largest).sum(axis=1)
    return losses, powers / sums[:, None]
