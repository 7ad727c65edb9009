"""Convex fits of class logits: one temperature, a scale and a bias for each class, or a matrix.

Each fit maximises the likelihood under a Gaussian prior about the identity. Except for the matrix,
it is so weak (a tenth of the information of one row) that a few rows outweigh it. The prior matters
where the rows do not determine the fit: the scale stays finite if the largest logit always predicts
the label. Its precision κ is 0.1; for scales it is multiplied by the mean square of the logits
where that is below 1, since small logits need large scales.

The rows say nothing about a class that none of them has. Each fit maximises the likelihood of the
labels among the classes that occur, `softmax` over these alone. The others are scaled by the
temperature, and share one bias, with which their mean probability is that of the temperature.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.optimize
import scipy.sparse.linalg
import scipy.special

from calibration_records._warn import warn
from keras_calibration._rows.rows import Rows
from keras_calibration._solvers.logistic_fit import SMALLEST_SCALE, row_log_losses

# The precision of the prior, in units of the log likelihood of a row of weight 1.
PRECISION = 0.1
# Lower log probabilities count as this one in the matrix, as products with -inf are not defined.
SMALLEST_LOG_PROBABILITY = float(np.log(np.finfo(np.float32).tiny))
# The scale and bias of a class with fewer rows than this are drawn to the temperature.
_FEW_ROWS = 10
_LARGEST_NUM_STEPS = 200
_LARGEST_NUM_HALVINGS = 40
# Largest gain of a further step, in nats a row, at which steps end and a fit counts as converged.
_TOLERANCE = 1e-15
_CONVERGED = 1e-11


@dataclass(frozen=True)
class SoftmaxFit:
    """The minimum of a penalised class log loss: scales and biases, of shape () or (K,)."""

    scales: np.ndarray
    biases: np.ndarray
    log_loss: float
    num_iterations: int
    converged: bool


@dataclass(frozen=True)
class MatrixFit(SoftmaxFit):
    """A `SoftmaxFit` of one scale, K biases and a matrix (K, K) for the log probabilities."""

    matrix: np.ndarray


def mean_class_log_loss(rows: Rows, scales: np.ndarray, biases: np.ndarray) -> float:
    """`Σ w [log Σ_k exp(z_k) - Σ_k y_k z_k] / Σ w` in nats, with `z = scales l + biases`."""
    return _loss_and_probabilities(rows, scales * rows.logits + biases)[0]


def row_class_log_losses(labels: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """Log loss of each row in nats, `log Σ_k exp(l_k) - Σ_k y_k l_k`."""
    return losses_and_probabilities(labels, logits)[0]


def log_losses(labels: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """Log loss of each row in nats, of logits (n,), or class logits (n, K)."""
    losses = row_class_log_losses if logits.ndim == 2 else row_log_losses
    return losses(labels, logits)


def fit_temperature(rows: Rows) -> SoftmaxFit:
    """`argmin_β Σ w log loss(y, softmax(β l)) + κ/2 (β - 1)²`, β ≥ 1e-6, as a scale of shape ().

    The derivative is increasing; Brent's method finds its root
    in log β.
    """
    all_classes, rows = rows, rows.with_classes(rows.present)
    share = rows.row_weights / rows.row_weights.sum()
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
        while slope(highest) < 0:  # this ends, because the slope of the prior is unbounded
            lowest, highest = highest, highest + np.log(64)
        log_scale, root = scipy.optimize.brentq(slope, lowest, highest, full_output=True)
        scale, num_steps = np.asarray(np.exp(log_scale)), root.iterations
    loss = mean_class_log_loss(all_classes, scale, np.zeros(()))
    return SoftmaxFit(scale, np.zeros(()), loss, num_steps, True)


def fit_vector(rows: Rows) -> SoftmaxFit:
    """`argmin Σ w log loss(y, softmax(a_k l_k + b_k)) + κ/2 Σ_k [(a_k - 1)² + b_k²]`, a and b (K,).

    Newton's method. The biases are shifted to sum 0, which
    changes only the prior. A class with m < 10 rows has a further prior of precision 10 - m, about
    the temperature: it would otherwise follow its few rows.
    """
    all_classes, rows = rows, rows.with_classes(rows.present)
    num_classes = rows.logits.shape[1]
    share = rows.row_weights / rows.row_weights.sum()
    mean_square = float(share @ np.mean(rows.logits**2, axis=1))
    # A class with a handful of rows stays near the temperature, as one without rows does.
    missing = np.maximum(_FEW_ROWS - rows.row_weights @ rows.labels, 0.0)
    towards = fit_temperature(rows).scales if missing.any() else 1.0
    scale_precision = _precision(rows, mean_square)
    bias_precision = PRECISION / rows.row_weights.sum()
    precision = np.concatenate(
        [part * (1 + missing / PRECISION) for part in (scale_precision, bias_precision)]
    )
    centre = np.repeat([1.0, 0.0], num_classes)
    centre[:num_classes] += (towards - 1) * missing / (PRECISION + missing)

    def objective(theta: np.ndarray) -> tuple[float, np.ndarray]:
        scales, biases = theta.reshape(2, num_classes)
        loss, probabilities = _loss_and_probabilities(rows, scales * rows.logits + biases)
        return loss + 0.5 * float(precision @ (theta - centre) ** 2), probabilities

    def newton_step(theta: np.ndarray, probabilities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        residual = share[:, None] * (probabilities - rows.labels)
        gradient = np.r_[(residual * rows.logits).sum(axis=0), residual.sum(axis=0)]
        gradient += precision * (theta - centre)
        hessian = _hessian(rows.logits, probabilities, share) + np.diag(precision)
        return gradient, _solve(hessian, gradient)

    # At scale 1, very wide logits are saturated, and their gradient vanishes.
    start = centre * 4.0 / max(4.0, np.sqrt(mean_square))
    theta, num_steps, converged = _minimum(objective, newton_step, start)
    scales, biases = theta.reshape(2, num_classes)
    if len(all_classes.absent):
        scales, biases = _with_absent_classes(all_classes, scales, biases)
    biases = biases - biases.mean()
    loss = mean_class_log_loss(all_classes, scales, biases)
    return SoftmaxFit(scales, biases, loss, num_steps, converged)


def fit_matrix(rows: Rows) -> MatrixFit:
    """`softmax(z + D z + b)` with the log probabilities `z = log softmax(β l)` of the temperature.

    After `fit_temperature`, minimizes `Σ w log loss + K Σ_k (b_k² + D_kk²) + K (K - 1) Σ_{j≠k}
    D_jk²` by Newton's method; conjugate gradients find its
    steps.

    Reference:
        Berta et al., *Structured Matrix Scaling for Multi-Class Calibration*, arXiv 2511.03685.
    """
    temperature = fit_temperature(rows)
    all_classes, present = rows, rows.present
    share = (rows.row_weights / rows.row_weights.sum())[:, None]
    all_scaled = temperature.scales * rows.logits
    log_probabilities = np.maximum(
        scipy.special.log_softmax(all_scaled, axis=1), SMALLEST_LOG_PROBABILITY
    )[:, present]
    rows, scaled = rows.with_classes(present), all_scaled[:, present]
    num_classes = scaled.shape[1]
    # The last column of the parameters (K, K + 1) is the bias.
    columns = np.concatenate([log_probabilities, np.ones((len(scaled), 1))], axis=1)
    precision = np.full((num_classes, num_classes + 1), 2.0 * num_classes * (num_classes - 1))
    np.fill_diagonal(precision, 2.0 * num_classes)
    precision[:, -1] = 2.0 * num_classes
    precision /= rows.row_weights.sum()
    shape = precision.shape

    def objective(theta: np.ndarray) -> tuple[float, np.ndarray]:
        logits = scaled + columns @ theta.reshape(shape).T
        loss, probabilities = _loss_and_probabilities(rows, logits)
        return loss + 0.5 * float((precision.ravel() * theta) @ theta), probabilities

    def newton_step(theta: np.ndarray, probabilities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        residual = share * (probabilities - rows.labels)
        gradient = (residual.T @ columns).ravel() + precision.ravel() * theta

        def product(direction: np.ndarray) -> np.ndarray:
            change = probabilities * (columns @ direction.reshape(shape).T)
            change -= probabilities * change.sum(axis=1, keepdims=True)
            return ((share * change).T @ columns + precision * direction.reshape(shape)).ravel()

        curvature = (share * probabilities * (1 - probabilities)).T @ columns**2 + precision
        square = (theta.size, theta.size)
        operator = scipy.sparse.linalg.LinearOperator
        step, _ = scipy.sparse.linalg.cg(
            operator(square, product),
            gradient,
            rtol=1e-3,  # each step then gains three digits, and few products are needed
            M=operator(square, lambda direction: direction.ravel() / curvature.ravel()),
        )
        return gradient, step

    theta, num_steps, converged = _minimum(objective, newton_step, np.zeros(precision.size))
    num_steps += temperature.num_iterations
    theta, absent = theta.reshape(shape), all_classes.absent
    change, matrix = np.zeros_like(all_scaled), np.zeros((all_scaled.shape[1],) * 2)
    biases = np.zeros(len(matrix))
    change[:, present] = columns @ theta.T
    matrix[np.ix_(present, present)], biases[present] = theta[:, :-1], theta[:, -1]
    biases[absent] = change[:, absent] = _bias_of_absent(all_classes, all_scaled, change)
    loss = _loss_and_probabilities(all_classes, all_scaled + change)[0]
    return MatrixFit(temperature.scales, biases, loss, num_steps, converged, matrix)


def check_class_scale(scale: np.ndarray, taker: str) -> None:
    """Warns if the fitted scale of all logits is at its lower bound."""
    if scale <= SMALLEST_SCALE:
        warn(
            f"{taker}: the best 1 / T is not above 0, because the logits do not separate the "
            "classes. It is set to nearly 0, which keeps the ranking. Check the order of "
            "the classes and of the rows.",
        )


def _with_absent_classes(
    rows: Rows, scales: np.ndarray, biases: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Scales and biases (K,) of all classes, from those of the classes that are present."""
    temperature = fit_temperature(rows).scales
    scaled = temperature * rows.logits
    all_scales, all_biases = np.full(scaled.shape[1], temperature), np.zeros(scaled.shape[1])
    all_scales[rows.present], all_biases[rows.present] = scales, biases
    change = all_scales * rows.logits + all_biases - scaled
    all_biases[rows.absent] = _bias_of_absent(rows, scaled, change)
    return all_scales, all_biases


def _bias_of_absent(rows: Rows, scaled: np.ndarray, change: np.ndarray) -> float:
    """The bias of absent classes with which `scaled + change` gives them the mean of `scaled`."""
    absent, present = rows.absent, rows.present
    if not len(absent):
        return 0.0
    share = rows.row_weights / rows.row_weights.sum()

    def log_odds(logits: np.ndarray) -> np.ndarray:
        """Of the absent classes against the present ones, in each row."""
        sums = (scipy.special.logsumexp(logits[:, part], axis=1) for part in (absent, present))
        return np.subtract(*sums)

    before, after = log_odds(scaled), log_odds(scaled + change)
    wanted = share @ scipy.special.expit(before)

    def excess(bias: float) -> float:
        return float(share @ scipy.special.expit(after + bias) - wanted)

    reach = float(np.abs(after - before).max()) + 1e-6  # more than the odds of any row move
    if not excess(-reach) <= 0 <= excess(reach):  # by rounding, of odds that nothing moves
        return 0.0
    return float(scipy.optimize.brentq(excess, -reach, reach, maxiter=1000))


def _minimum(
    objective: Callable[[np.ndarray], tuple[float, np.ndarray]],
    newton_step: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]],
    theta: np.ndarray,
) -> tuple[np.ndarray, int, bool]:
    """Newton's method: the minimum, the number of steps, and whether it converged.

    `objective` returns the value and the probabilities of the rows, from which `newton_step`
    computes the gradient and the step. A step is halved until the objective falls.
    """
    value, probabilities = objective(theta)
    num_steps, gain = 0, np.inf
    while num_steps < _LARGEST_NUM_STEPS:
        gradient, step = newton_step(theta, probabilities)
        gain = 0.5 * float(gradient @ step)
        if gain <= _TOLERANCE:
            break
        num_steps += 1
        for halvings in range(_LARGEST_NUM_HALVINGS):
            candidate = theta - 0.5**halvings * step
            candidate_value, candidate_probabilities = objective(candidate)
            if candidate_value < value:
                break
        else:
            break  # only rounding is left
        theta, value, probabilities = candidate, candidate_value, candidate_probabilities
    return theta, num_steps, gain <= _CONVERGED


def _hessian(logits: np.ndarray, probabilities: np.ndarray, share: np.ndarray) -> np.ndarray:
    """`Σ w [diag(p) - p pᵀ]` in the scales and the biases of the classes, (2 K, 2 K)."""
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
    # Scaled, since parameters can differ by orders of magnitude.
    scale = 1 / np.sqrt(np.maximum(np.diag(matrix), 1e-100))
    scaled = matrix * scale[:, None] * scale
    scaled[np.diag_indices_from(scaled)] += 1e-14
    return scale * np.linalg.solve(scaled, scale * right)


def _precision(rows: Rows, mean_square: float) -> float:
    """The prior precision of a scale for logits of this mean square, in units of the mean loss."""
    return PRECISION / rows.row_weights.sum() * (min(1.0, mean_square) or 1.0)


def _loss_and_probabilities(rows: Rows, logits: np.ndarray) -> tuple[float, np.ndarray]:
    """The mean log loss of calibrated logits (n, K), and their softmax."""
    losses, probabilities = losses_and_probabilities(rows.labels, logits)
    return float(rows.row_weights @ losses / rows.row_weights.sum()), probabilities


def losses_and_probabilities(
    labels: np.ndarray, logits: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The log losses (n,) of logits (n, K), and their softmax."""
    below_largest = logits - logits.max(axis=1, keepdims=True)
    powers = np.exp(below_largest)
    sums = powers.sum(axis=1)
    losses = np.log(sums) - (labels * below_largest).sum(axis=1)
    return losses, powers / sums[:, None]
