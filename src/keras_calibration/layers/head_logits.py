"""Calibrated logits of many rows, computed in batches, and their log losses."""

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np
from keras import ops
from scipy import special

from keras_calibration._rows.columns import take
from keras_calibration._solvers.row_blocks import row_parts
from keras_calibration._solvers.softmax_fit import log_losses
from keras_calibration._typing import Features, Tensor
from keras_calibration.layers.field_ids import called_features


def head_logits(head: keras.layers.Layer, logits: np.ndarray, features: Features) -> np.ndarray:
    """Calibrated logits of a head as float64, computed `row_parts` at a time.

    Example:
        >>> from keras_calibration.layers import BiasCorrection, NeuralCalibration
        >>> head_logits(NeuralCalibration(BiasCorrection()), np.array([0.5, -1.0]), {})
        array([ 0.5, -1. ])
    """
    fields = [each for reader in head.field_readers() for each in reader.fields.values()]
    is_traceable = head.built and all(isinstance(each, int) for each in fields)
    call = _compiled(head) if is_traceable and keras.backend.backend() == "jax" else head
    calibrated = np.empty(logits.shape)
    for part in row_parts(len(logits)):
        outputs = call(logits[part], take(features, part))
        calibrated[part] = ops.convert_to_numpy(outputs).reshape(logits[part].shape)
    return calibrated


def _compiled(head: keras.layers.Layer) -> Callable[..., Tensor]:
    """A built head as a function of arrays, compiled as a whole: JAX else compiles each operation.

    Rows are repeated up to a power of two, so that few shapes are compiled.
    """
    import jax

    def function(values: list[Tensor], logits: Tensor, features: Features) -> Tensor:
        with keras.StatelessScope(zip(head.variables, values, strict=True)):
            return head(logits, features)

    def call(logits: np.ndarray, features: Features) -> np.ndarray:
        rows = np.resize(np.arange(len(logits)), 1 << (len(logits) - 1).bit_length())
        # Ids are read outside, where they are exact.
        columns = called_features(
            take(features, rows), head.feature_names, head.field_readers(), head.name
        )
        values = [variable.value for variable in head.variables]
        return head._compiled(values, logits[rows], columns)[: len(logits)]

    if not hasattr(head, "_compiled"):
        head._compiled = jax.jit(function)
    return call


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
    if logits.ndim == 2 and logits.shape[1] > 1:
        return labels, special.softmax(logits, axis=1)
    return labels.reshape(-1, 1), special.expit(logits).reshape(-1, 1)
