"""VectorScaling: one scale and one bias per class."""

from __future__ import annotations

import keras
import numpy as np
from keras import ops

from keras_calibration._rows.line import Line
from keras_calibration._rows.rows import Rows
from keras_calibration._solvers.softmax_fit import SoftmaxFit, fit_vector
from keras_calibration._typing import Shape, Tensor
from keras_calibration.layers.class_scaling import ClassScaling
from keras_calibration.layers.logits import scaled_logits


@keras.saving.register_keras_serializable(package="keras_calibration")
class VectorScaling(ClassScaling):
    """Vector scaling: `a_k l_k + b_k` for each of K classes, `p = softmax(a l + b)`.

    The fit minimizes the class log loss under the prior `0.05 Σ_k [(a_k - 1)² + b_k²]`, which
    weighs as much as a tenth of a row (less for a if the logits are small, see
    `_solvers.softmax_fit`). The prior keeps a and b finite if the logits predict every label. A
    class without rows is scaled by the temperature of the others. The biases sum to 0. A scale may
    be negative. Unlike temperature scaling, vector scaling may change the most likely class,
    usually for the better. Adding a constant to all logits of a row changes the result: pass the
    logits as the model returns them, both to `fit` and to the call.

    When trained with a model, the weights are a and b. The layer starts as the identity. An
    infinite logit is returned unchanged.

    Args:
        num_classes: Number of classes K, at least 2.
        **kwargs: Keyword arguments of every Keras layer (`name`, `dtype`, `trainable`).

    Raises:
        ValueError: If `num_classes` is out of its range, or the logits have another number of
            columns.

    Example:
        >>> logits = np.repeat([[2.0, 0.0, 0.0], [0.0, 0.0, 0.0]], 4000, axis=0)
        >>> layer = VectorScaling(num_classes=3)
        >>> summary = layer.fit(logits, np.r_[np.arange(4000) % 3, np.arange(4000) % 4 % 3])
        >>> layer.biases.round(2)  # half of the second rows are of class 0
        array([ 0.46, -0.23, -0.23], dtype=float32)

    Reference:
        Guo et al., *On Calibration of Modern Neural Networks*, ICML 2017.
    """

    def build(self, input_shape: Shape | None = None) -> None:
        """Creates the scales and biases; the layer starts as the identity."""
        shape = (self.num_classes,)
        self._scales = self.add_weight(name="scales", shape=shape, initializer="ones")
        self._biases = self.add_weight(name="biases", shape=shape, initializer="zeros")
        self.built = True

    def calibrate(self, logits: Tensor) -> Tensor:
        """`a_k l_k + b_k`."""
        scaled = scaled_logits(logits, ops.convert_to_tensor(self._scales))
        return scaled + ops.convert_to_tensor(self._biases)

    def fit_classes(self, rows: Rows, line: Line) -> SoftmaxFit:
        """Fits a and b by Newton's method."""
        fit = fit_vector(rows.seen(line))
        biases = fit.biases + fit.scales * line.shift
        self._scales.assign(fit.scales * line.scale)
        self._biases.assign(biases - biases.mean())
        return fit

    @property
    def scales(self) -> np.ndarray:
        """Per-class scales a, shape (K,)."""
        self.ensure_built()
        return ops.convert_to_numpy(self._scales)

    @property
    def biases(self) -> np.ndarray:
        """Per-class biases b in logits, shape (K,)."""
        self.ensure_built()
        return ops.convert_to_numpy(self._biases)
