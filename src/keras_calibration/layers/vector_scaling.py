"""VectorScaling: one scale and one bias per class."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

from calibration_records._check import integer
from keras_calibration._rows.rows import Rows
from keras_calibration._solvers.reference_line import class_line
from keras_calibration._solvers.softmax_fit import fit_vector
from keras_calibration._typing import Features, Shape, Tensor
from keras_calibration.layers.fit import Fit
from keras_calibration.layers.fit_settings import FitSettings
from keras_calibration.layers.fit_summary import FitSummary
from keras_calibration.layers.head import Head
from keras_calibration.layers.logits import scaled_logits


@keras.saving.register_keras_serializable(package="keras_calibration")
class VectorScaling(Head):
    """Vector scaling: `a_k l_k + b_k` for each of K classes, `p = softmax(a l + b)`.

    The fit minimizes the class log loss under the prior `0.05 Σ_k [(a_k - 1)² + b_k²]`, which
    weighs as much as a tenth of a row (less for a if the logits are small). The prior keeps a and b
    finite if the logits predict every label. With fewer than ten rows, a class stays near
    temperature scaling. The biases sum to 0. A scale may be negative. Unlike temperature scaling,
    vector scaling may change the most likely class, usually for the better. Adding a constant to
    all logits of a row changes the result: pass the logits as the model returns them, both to `fit`
    and to the call.

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

    def __init__(self, num_classes: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_classes = integer("num_classes", num_classes, 2)

    def check_logits(self, shape: Shape) -> None:
        """Raises unless the shape is (batch, K)."""
        if len(shape) != 2 or shape[1] != self.num_classes:
            raise ValueError(
                f"The logits of {type(self).__name__} must have shape (batch, {self.num_classes}). "
                f"Received: shape {tuple(shape)}. Pass one logit per class. For one logit per row, "
                "use PlattScaling."
            )

    def build(self, input_shape: Shape | None = None) -> None:
        """Creates the scales and biases; the layer starts as the identity."""
        shape = (self.num_classes,)
        self._scales = self.add_weight(name="scales", shape=shape, initializer="ones")
        self._biases = self.add_weight(name="biases", shape=shape, initializer="zeros")
        self.built = True

    def call(self, logits: Tensor, features: Features | None = None) -> Tensor:
        """`a_k l_k + b_k`."""
        logits = ops.cast(logits, self.compute_dtype)
        scaled = scaled_logits(logits, ops.convert_to_tensor(self._scales))
        return scaled + ops.convert_to_tensor(self._biases)

    def fitted(self, rows: Rows, settings: FitSettings, start: Fit | None = None) -> Fit:
        """Fits a and b by Newton's method."""
        line = class_line(rows)
        seen_scales, seen_biases, num_steps, converged = fit_vector(rows.seen(line))
        # The fit saw the logits mapped by a line: write a' (s l + t) + b' out in l. The softmax
        # does not change with a constant added to all biases, so they get the mean 0.
        scales = seen_scales * line.scale
        biases = seen_biases + seen_scales * line.shift
        biases = biases - biases.mean()

        def logits(rows: Rows) -> np.ndarray:
            return scales * rows.logits + biases

        summary = FitSummary.of(rows, logits(rows), num_steps, converged)
        return Fit(summary, logits, {"_scales": scales, "_biases": biases})

    @property
    def scales(self) -> np.ndarray:
        """Per-class scales a, shape (K,)."""
        return self._read_value("_scales")

    @property
    def biases(self) -> np.ndarray:
        """Per-class biases b in logits, shape (K,)."""
        return self._read_value("_biases")

    def get_config(self) -> dict[str, Any]:
        """The constructor arguments as plain Python values."""
        return {**super().get_config(), "num_classes": self.num_classes}
