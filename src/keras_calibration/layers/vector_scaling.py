"""VectorScaling: a scale and a bias for each class."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calibration.layers.calibrator import scaled_logits
from keras_calibration.layers.class_calibrator import ClassCalibrator
from keras_calibration.solvers.class_rows import ClassRows
from keras_calibration.solvers.softmax_fit import SoftmaxFit, fit_vector


@keras.saving.register_keras_serializable(package="keras_calibration")
class VectorScaling(ClassCalibrator):
    """Vector scaling: `a_k l_k + b_k` for each of K classes, `p = softmax(a l + b)`.

    The fit is the a and b with the lowest class log loss under the prior
    `0.05 Σ_k [(a_k - 1)² + b_k²]`, a tenth of a row of information (weaker for a where the logits
    are small, see `ops.softmax_fit`): it keeps a and b finite where a class has no row, or where
    the logits tell every label. The biases add up to 0. A scale may come
    out below 0; unlike temperature scaling, the most likely class may change, for the better as a
    rule. Adding a constant to all logits of a row changes the result: pass logits as the model
    gives them, both to `fit` and to the call.

    Trained with a model, the layer's weights are a and b; it starts as the identity. An infinite
    logit stays as it is.

    Args:
        num_classes: K, at least 2.
        **kwargs: What every Keras layer takes (`name`, `dtype`, `trainable`).

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
        if not isinstance(num_classes, int) or num_classes < 2:
            raise ValueError(
                "Argument `num_classes` must be a whole number of at least 2. "
                f"Received: num_classes={num_classes!r}."
            )
        self.num_classes = num_classes

    def build(self, input_shape: Any = None) -> None:
        """Creates scales and biases at the identity."""
        shape = (self.num_classes,)
        self._scales = self.add_weight(name="scales", shape=shape, initializer="ones")
        self._biases = self.add_weight(name="biases", shape=shape, initializer="zeros")
        self.built = True

    def calibrate(self, logits: Any) -> Any:
        """`a_k l_k + b_k`."""
        scaled = scaled_logits(logits, ops.convert_to_tensor(self._scales))
        return scaled + ops.convert_to_tensor(self._biases)

    def fit_classes(self, rows: ClassRows) -> SoftmaxFit:
        """Newton's method for a and b."""
        fit = fit_vector(rows)
        self._scales.assign(fit.scales)
        self._biases.assign(fit.biases)
        return fit

    def check_shape(self, shape: tuple[int | None, ...]) -> None:
        """Refuses logits of any shape but (batch, num_classes)."""
        super().check_shape(shape)
        if shape[1] != self.num_classes:
            raise ValueError(
                f"VectorScaling(num_classes={self.num_classes}) takes logits of shape (batch, "
                f"{self.num_classes}). Received: shape {shape}. Pass one logit a class."
            )

    @property
    def scales(self) -> np.ndarray:
        """A (K,)."""
        self.ensure_built()
        return ops.convert_to_numpy(self._scales)

    @property
    def biases(self) -> np.ndarray:
        """B (K,), logits."""
        self.ensure_built()
        return ops.convert_to_numpy(self._biases)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor, as plain Python values."""
        return {**super().get_config(), "num_classes": self.num_classes}
