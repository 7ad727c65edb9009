"""The bias with which logits predict the observed total."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy import special

from keras_calibration._rows.rows import Rows

_NUM_STEPS, _LONGEST_STEP = 200, 1.0
_ROUNDING, _SINGULAR, _LEAST_VARIANCE = 1e-13, 1e-10, 1e-200


def probabilities_of(logits: np.ndarray) -> np.ndarray:
    """Probabilities (n, 1) of logits (n,), or (n, K) of class logits (n, K)."""
    columns = logits.reshape(len(logits), -1)
    return special.expit(columns) if columns.shape[1] == 1 else special.softmax(columns, axis=1)


def bias_of_total(logits: np.ndarray, rows: Rows) -> np.ndarray:
    """The bias c, (1,) or (K,), with which logits η predict the total: `Σ w p(η + c) = Σ w y`.

    For K classes, the totals of all classes are right, and the biases have the sum 0. Newton's
    method; a step of at most 1 cannot leave the region in which it converges.

    Args:
        logits: η, (n,) or (n, K).
        rows: Labels and weights; its logits are not read.

    Example:
        >>> rows = Rows(np.zeros(4), np.array([0.0, 0.0, 0.0, 1.0]), None)
        >>> bias_of_total(np.array([1.0, 1.0, 1.0, 1.0]), rows).round(4)  # log(1/3) - 1
        array([-2.0986])
    """
    columns = logits.reshape(len(logits), -1)
    shares = rows.row_weights / rows.row_weights.sum()
    observed = shares @ rows.labels.reshape(columns.shape)
    bias = np.zeros(columns.shape[1])
    for _ in range(_NUM_STEPS):
        probabilities = probabilities_of(columns + bias)
        predicted = shares @ probabilities
        hessian = np.diag(predicted) - (shares[:, None] * probabilities).T @ probabilities
        # The Jacobian of the predicted totals. For K classes it is singular, as a constant for all
        # classes changes no probability; the pseudoinverse leaves that direction out. Scaled to a
        # diagonal of ones, so that it does not leave out a class that is predicted too rarely.
        scale = 1 / np.sqrt(np.maximum(np.diag(hessian), _LEAST_VARIANCE))
        inverse = np.linalg.pinv(hessian * scale[:, None] * scale, _SINGULAR, hermitian=True)
        step = scale * (inverse @ (scale * (observed - predicted)))
        bias += np.clip(step, -_LONGEST_STEP, _LONGEST_STEP)
        if np.abs(step).max() <= _ROUNDING:
            break
    return bias if len(bias) == 1 else bias - bias.mean()


def bias_of_mean(
    weights: np.ndarray, columns: np.ndarray, rows: Rows, is_of_parts: bool = False
) -> np.ndarray:
    """The bias (1,) or (K,) that gives a weighted mean of logits the observed total.

    Where rates are low, a mean of logits has a lower mean probability than its parts. For
    cross-fitted logits, use one bias for all rows, even to score these rows: the totals of the
    logits are nearly right, so the labels of a fold hardly move it. A bias from the other folds
    alone would double the chance error of each fold, because too many positives in one fold are too
    few in the others.

    Args:
        weights: The weight of each part, with the sum 1, (m,).
        columns: The logits of the parts, (m, n) or (m, n, K).
        rows: Labels and weights.
        is_of_parts: Whether the total comes from the probabilities of the parts, instead of the
            labels.

    Example:
        >>> columns = np.array([[-1.0, -1.0], [-5.0, -5.0]])
        >>> rows = Rows(columns[0], np.zeros(2), None)
        >>> bias_of_mean(np.array([0.5, 0.5]), columns, rows, is_of_parts=True).round(4)
        array([1.1665])
    """
    if is_of_parts:
        parts = np.stack([probabilities_of(logits) for logits in columns])
        rows = replace(rows, labels=np.tensordot(weights, parts, axes=1))
    return bias_of_total(np.tensordot(weights, columns, axes=1), rows)
