"""Calibrated logits of many rows, computed in batches, and their log losses."""

from __future__ import annotations

import keras
import numpy as np

from keras_calibration._rows.columns import take
from keras_calibration._solvers.row_blocks import row_parts
from keras_calibration._solvers.softmax_fit import log_losses
from keras_calibration._solvers.total_bias import probabilities_of
from keras_calibration._typing import Features


def head_logits(head: keras.layers.Layer, logits: np.ndarray, features: Features) -> np.ndarray:
    """Calibrated logits of a head as float64, in the shape of `logits`.

    `row_parts` at a time.

    Example:
        >>> from keras_calibration.layers import BiasCorrection, NeuralCalibration
        >>> head_logits(NeuralCalibration(BiasCorrection()), np.array([0.5, -1.0]), {})
        array([ 0.5, -1. ])
    """
    calibrated = np.empty(logits.shape)
    for part in row_parts(len(logits)):
        outputs = head(logits[part], take(features, part))
        calibrated[part] = np.asarray(outputs).reshape(logits[part].shape)
    return calibrated


def head_log_losses(labels: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """Log loss of each row, from binary or class logits.

    Example:
        >>> head_log_losses(np.ones((1, 1)), np.zeros((1, 1))).round(4)  # log 2
        array([0.6931])
    """
    return log_losses(labels, logits)


def outcome_columns(labels: np.ndarray, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Labels and probabilities (n, C): one column for a binary model, else one per class.

    Example:
        >>> labels, probabilities = outcome_columns(np.ones(2), np.zeros(2))
        >>> labels.shape, probabilities.tolist()
        ((2, 1), [[0.5], [0.5]])
    """
    probabilities = probabilities_of(logits)
    return labels.reshape(probabilities.shape), probabilities
