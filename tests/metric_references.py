"""Every metric in plain NumPy and float64, written from its definition, for a handful of rows."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import scipy.optimize
from scipy import special

# The least that p and 1 - p count as (`_limits.py`).
SMALLEST_PROBABILITY = 2.0**-53


@dataclass(frozen=True)
class Rows:
    """Rows of a metric, in float64.

    Args:
        labels: Labels (n,), or shares of the classes (n, K).
        predictions: Probabilities, logits or real numbers (n,), or those of the classes (n, K).
        weights: Weights (n,).
        numbers: The number of each row in its shard (n,), which decides its fold.
        ids: Field values or periods (n,).
        from_logits: Whether predictions are logits.
        dtype: The dtype that the predictions came in.
    """

    labels: np.ndarray
    predictions: np.ndarray
    weights: np.ndarray
    numbers: np.ndarray
    ids: np.ndarray
    from_logits: bool = False
    dtype: str = "float32"

    def __getitem__(self, chosen):
        columns = ("labels", "predictions", "weights", "numbers", "ids")
        return replace(self, **{name: getattr(self, name)[chosen] for name in columns})

    @property
    def logits(self):
        if self.from_logits:
            return self.predictions
        p, rest = np.maximum([self.predictions, 1 - self.predictions], SMALLEST_PROBABILITY)
        return np.log(p) - np.log(rest)

    @property
    def probabilities(self):
        return special.expit(self.predictions) if self.from_logits else self.predictions

    @property
    def class_logits(self):
        if self.from_logits:
            return self.predictions
        return np.log(np.maximum(self.predictions, SMALLEST_PROBABILITY))


def _mean(values, weights):
    total = weights.sum()
    return (weights * values).sum() / total if total > 0 else np.nan


def _losses(labels, logits):
    return (1 - labels) * np.logaddexp(0, logits) + labels * np.logaddexp(0, -logits)


def _label_sums(rows):
    return (rows.weights * rows.labels).sum(), (rows.weights * (1 - rows.labels)).sum()


def log_loss(rows):
    return _mean(_losses(rows.labels, rows.logits), rows.weights)


def normalized_entropy(rows):
    positives, negatives = _label_sums(rows)
    if not (positives > 0 and negatives > 0 and np.isfinite(rows.logits).all()):
        return np.nan
    rate = positives / (positives + negatives)
    rest = negatives / (positives + negatives)
    return log_loss(rows) / -(rate * np.log(rate) + rest * np.log(rest))


def calibration_ratio(rows):
    positives, _ = _label_sums(rows)
    predicted = (rows.weights * rows.probabilities).sum()
    return predicted / positives if positives > 0 else np.nan


def _binned_error(rows, bins):
    residuals = rows.weights * (rows.labels - rows.probabilities)
    total = rows.weights.sum()
    errors = [abs(residuals[bins == bin_number].sum()) for bin_number in np.unique(bins)]
    return sum(errors) / total if total > 0 else np.nan


def equal_width_error(rows, num_bins, edges):
    """Bins (edge k, edge k + 1], the first with 0."""
    below = rows.probabilities[:, None] > np.asarray(edges)[None, 1:-1]
    return _binned_error(rows, below.sum(axis=1))


def field_error(rows, num_values, epsilon=None):
    """Field-ECE; with an ε, Field-RCE."""
    in_vocabulary = (rows.ids >= 0) & (rows.ids < num_values)
    values = np.where(in_vocabulary, rows.ids, num_values)
    error = counted = 0.0
    for value in np.unique(values):
        group = rows[values == value]
        (positives, _), number = _label_sums(group), group.weights.sum()
        residual = abs((group.weights * (group.labels - group.probabilities)).sum())
        if number == 0:
            continue
        relative = number / (positives + epsilon * number) if epsilon is not None else 1.0
        error, counted = error + residual * relative, counted + number
    return error / counted if counted > 0 else np.nan


def auc(rows):
    """The area under the ROC curve, and half the share of the pairs that lie in one bin."""
    positives, negatives = rows.weights * rows.labels, rows.weights * (1 - rows.labels)
    if not (positives.sum() > 0 and negatives.sum() > 0):
        return np.nan, 0.0
    pairs = (positives / positives.sum())[:, None] * (negatives / negatives.sum())
    difference = rows.logits[:, None] - rows.logits
    inside = np.clip(rows.logits, -88, np.nextafter(88, 0))
    bins = np.where(np.abs(inside) < 16, np.floor(64 * inside) / 64, np.floor(16 * inside) / 16)
    same_bin = bins[:, None] == bins
    area = pairs[difference > 0].sum() + 0.5 * pairs[difference == 0].sum()
    return area, 0.5 * pairs[same_bin & (difference != 0)].sum()


def share_of_pairs_beyond(rows):
    """The share of the pairs whose logits are both below -88, or both 88 or more."""
    share = 0.0
    for beyond in (rows.logits < -88, rows.logits >= 88):
        sums, totals = _label_sums(rows[beyond]), _label_sums(rows)
        share += np.prod(np.divide(sums, totals, out=np.zeros(2), where=np.array(totals) > 0))
    return share


# The bins of the moments of logits.
BIN_EDGES = np.r_[np.arange(-88, -16, 0.5), np.arange(-16, 16, 0.25), np.arange(16, 88.5, 0.5)]


def logit_moments(labels, logits, weights, group, num_groups):
    """Sums by label, those of the place in the bin, and Chebyshev's polynomials of it."""
    sums = np.zeros((num_groups, len(BIN_EDGES) + 1, 8))
    columns = (np.asarray(column, float).tolist() for column in (labels, logits, weights))
    for label, logit, weight, row_group in zip(*columns, group, strict=True):
        number = np.searchsorted(BIN_EDGES, logit, side="right")
        u = logit - np.sign(logit) * 88
        if 0 < number < len(BIN_EDGES):
            low, high = BIN_EDGES[number - 1 : number + 1]
            u = (logit - (low + high) / 2) / ((high - low) / 2)
        by_label = [1 - label, label, (1 - label) * u, label * u]
        powers = np.polynomial.chebyshev.chebvander(np.clip(u, -1, 1), 5)[0, 2:]
        sums[row_group, number] += weight * np.r_[by_label, powers]
    return sums


def hashed(numbers, seed=0):
    """The finaliser of MurmurHash3 of the row number xor the seed times 0x9E3779B9, in [0, 1)."""
    mask = 0xFFFFFFFF
    key = np.asarray(numbers).astype(np.uint64) & mask ^ (seed * 0x9E3779B9 & mask)
    key = (key ^ key >> 16) * 0x85EBCA6B & mask
    key = (key ^ key >> 13) * 0xC2B2AE35 & mask
    key ^= key >> 16
    return (key >> 8).astype("float32") * np.float32(2.0**-24)


def cross_fitted(rows, fit: Callable, loss: Callable, num_folds=2, bias_fraction=None, seed=0):
    """`Σ w loss / Σ w` of each part at what is fitted to the others; `fit` returns None for NaN."""
    uniform = hashed(rows.numbers, seed)
    if bias_fraction is not None:
        scored = uniform >= np.float32(bias_fraction)
        parts = [(rows[~scored], rows[scored])]
    elif num_folds == 1:
        parts = [(rows, rows)]
    else:
        fold = (uniform * np.float32(num_folds)).astype(int)
        parts = [(rows[fold != number], rows[fold == number]) for number in range(num_folds)]
    total = weight = 0.0
    for others, held_out in parts:
        fitted = fit(others)
        if fitted is None:
            return np.nan
        total += (held_out.weights * loss(held_out, fitted)).sum()
        weight += held_out.weights.sum()
    return total / weight if weight > 0 else np.nan


def calibrated_log_loss(rows, **folds):
    """The log loss of σ(l + c)."""
    if not np.isfinite(rows.logits).all():
        return np.nan

    def loss(held_out, bias):
        return _losses(held_out.labels, held_out.logits + bias)

    return cross_fitted(rows, best_bias, loss, **folds)


def best_bias(rows):
    """Where what negatives are predicted too high is what positives are predicted too low.

    None where there is no such bias.
    """
    positives, negatives = _label_sums(rows)
    if not (positives > 0 and negatives > 0):
        return None
    rows = rows[rows.weights > 0]
    logits = rows.logits
    with np.errstate(divide="ignore"):
        positive_logs, negative_logs = np.log(rows.labels), np.log(1 - rows.labels)
    log_weights = np.log(rows.weights)

    def excess(bias):
        too_high = special.logsumexp(log_weights + negative_logs - np.logaddexp(0, -logits - bias))
        too_low = special.logsumexp(log_weights + positive_logs - np.logaddexp(0, logits + bias))
        return too_high - too_low

    odds = np.log(positives) - np.log(negatives)
    ends = odds - logits.max() - 1, odds - logits.min() + 1
    return scipy.optimize.brentq(excess, *ends, xtol=1e-13, rtol=1e-15, maxiter=500)


def calibrated_quadratic_loss(rows, **folds):
    """The squared error of `p + c`."""

    def fit(others):
        if not others.weights.sum() > 0:
            return None
        return _mean(others.labels - others.predictions, others.weights)

    def loss(held_out, bias):
        return (held_out.labels - held_out.predictions - bias) ** 2

    return cross_fitted(rows, fit, loss, **folds)


def _class_losses(labels, logits):
    """`-Σ_k y_k log softmax(l)_k`."""
    return -(labels * special.log_softmax(logits, axis=1)).sum(axis=1)


def calibrated_class_loss(rows, **folds):
    def loss(held_out, scale):
        return _class_losses(held_out.labels, scale * held_out.class_logits)

    return cross_fitted(rows, best_inverse_temperature, loss, **folds)


def best_inverse_temperature(rows):
    """β in [1/16, 16] that minimises the loss of softmax(β l)."""
    rows = rows[rows.weights > 0]
    if not len(rows.weights) or not np.ptp(rows.class_logits, axis=1).any():
        return None
    logits = rows.class_logits - rows.class_logits.max(axis=1, keepdims=True)
    share = rows.weights / rows.weights.sum()

    def slope(scale):
        probabilities = special.softmax(scale * logits, axis=1)
        expected = (probabilities * logits).sum(axis=1) * rows.labels.sum(axis=1)
        return (share * (expected - (rows.labels * logits).sum(axis=1))).sum()

    if slope(1 / 16) >= 0:
        return 1 / 16
    if slope(16.0) <= 0:
        return 16.0
    return scipy.optimize.brentq(slope, 1 / 16, 16.0, xtol=1e-14)
