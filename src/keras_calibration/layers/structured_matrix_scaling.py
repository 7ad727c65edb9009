"""StructuredMatrixScaling: a temperature, and a penalised matrix and biases after it."""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calibration._rows.rows import Rows
from keras_calibration._solvers.reference_line import class_line
from keras_calibration._solvers.softmax_fit import (
    SMALLEST_LOG_PROBABILITY,
    check_class_scale,
    fit_matrix,
)
from keras_calibration._typing import Features, Shape, Tensor
from keras_calibration.layers.fit_settings import FitSettings
from keras_calibration.layers.fit_summary import FitSummary, class_fit_summary
from keras_calibration.layers.head import Head
from keras_calibration.layers.logits import check_classes, checked_num_classes, scaled_logits

# Differences of such logits are finite in float32.
_LARGEST_LOGIT = 1e30


@keras.saving.register_keras_serializable(package="keras_calibration")
class StructuredMatrixScaling(Head):
    """Structured matrix scaling: `l / T + D z + b` with `z = log softmax(l / T)`.

    D is a K × K matrix: the logit of a class may depend on those of all others. So many parameters
    need penalties, which depend on their place: the fit first finds T, as
    `TemperatureScaling` does, and then minimizes, exactly,

        Σ log loss + K Σ_k (b_k² + D_kk²) + K (K - 1) Σ_{j≠k} D_jk².

    With few rows a class this stays close to temperature scaling, with more it becomes vector
    scaling, and with many matrix scaling. Adding a
    constant to all logits of a row changes nothing.

    When trained with a model, the weights are log T, D and b. The layer starts as the identity. An
    infinite logit stays infinite.

    Args:
        num_classes: Number of classes K, at least 2.
        **kwargs: Keyword arguments of every Keras layer (`name`, `dtype`, `trainable`).

    Raises:
        ValueError: If `num_classes` is out of its range, or the logits have another number of
            columns.

    Example:
        >>> logits = np.repeat([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 2.0]], 4000, axis=0)
        >>> labels = np.repeat([0, 0, 0, 1, 1, 2, 2, 2, 2, 2, 2, 1], 1000)  # 1 is mostly a 2
        >>> layer = StructuredMatrixScaling(num_classes=3)
        >>> summary = layer.fit(logits, labels)
        >>> keras.ops.softmax(layer(logits[[0, 4000]])).numpy().round(2)
        array([[0.74, 0.25, 0.01],
               [0.  , 0.25, 0.74]], dtype=float32)

    Reference:
        Berta et al., *Structured Matrix Scaling for Multi-Class Calibration*, arXiv 2511.03685.
    """

    def __init__(self, num_classes: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_classes = checked_num_classes(num_classes)

    def check_logits(self, shape: Shape) -> None:
        """Raises unless the shape is (batch, K)."""
        check_classes(shape, type(self).__name__, self.num_classes)

    def build(self, input_shape: Shape | None = None) -> None:
        """Creates T, D and b; the layer starts as the identity."""
        size = self.num_classes
        for name, shape in {
            "log_temperature": (),
            "matrix": (size, size),
            "biases": (size,),
        }.items():
            setattr(self, f"_{name}", self.add_weight(name=name, shape=shape, initializer="zeros"))
        self.built = True

    def call(self, logits: Tensor, features: Features | None = None) -> Tensor:
        """`l / T + D z + b`."""
        logits = ops.cast(logits, self.compute_dtype)
        scale = ops.exp(-ops.convert_to_tensor(self._log_temperature))
        scaled = scaled_logits(logits, scale)
        finite = ops.clip(scaled, -_LARGEST_LOGIT, _LARGEST_LOGIT)
        log_probabilities = ops.maximum(ops.log_softmax(finite), SMALLEST_LOG_PROBABILITY)
        matrix = ops.transpose(ops.convert_to_tensor(self._matrix))
        return scaled + ops.matmul(log_probabilities, matrix) + ops.convert_to_tensor(self._biases)

    def fit_rows(self, rows: Rows, settings: FitSettings, verbose: int) -> FitSummary:
        """Fits T, then D and b by Newton's method."""
        line = class_line(rows)
        fit = fit_matrix(rows.seen(line))
        check_class_scale(fit.scales, "StructuredMatrixScaling")
        self._log_temperature.assign(-math.log(fit.scales) - math.log(line.scale))
        self._matrix.assign(fit.matrix)
        self._biases.assign(fit.biases)
        return class_fit_summary(rows, fit)

    @property
    def temperature(self) -> float:
        """The temperature T > 0."""
        self.ensure_built()
        return math.exp(float(ops.convert_to_numpy(self._log_temperature)))

    @property
    def matrix(self) -> np.ndarray:
        """The matrix D, shape (K, K)."""
        self.ensure_built()
        return ops.convert_to_numpy(self._matrix)

    @property
    def biases(self) -> np.ndarray:
        """Per-class biases b in logits, shape (K,)."""
        self.ensure_built()
        return ops.convert_to_numpy(self._biases)

    def get_config(self) -> dict[str, Any]:
        """The constructor arguments as plain Python values."""
        return {**super().get_config(), "num_classes": self.num_classes}
