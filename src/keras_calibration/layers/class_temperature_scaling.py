"""ClassTemperatureScaling: one temperature for all class logits."""

from __future__ import annotations

import math

import keras
from keras import ops

from keras_calibration._typing import Shape, Tensor
from keras_calibration.layers.calibrator import scaled_logits
from keras_calibration.layers.class_calibrator import ClassCalibrator
from keras_calibration.solvers.class_rows import ClassRows
from keras_calibration.solvers.softmax_fit import SoftmaxFit, check_class_scale, fit_temperature


@keras.saving.register_keras_serializable(package="keras_calibration")
class ClassTemperatureScaling(ClassCalibrator):
    """Temperature scaling of class logits: `l_k / T` with T > 0, `p = softmax(l / T)`.

    The fit minimizes the class log loss under the prior `0.05 (1/T - 1)²`, which weighs as much as
    a tenth of a row (less if the logits are small, see `solvers.softmax_fit`). The prior keeps T
    above 0 if the largest logit predicts every label. The most likely class never changes. With
    two classes and logits (0, l) this is `TemperatureScaling`, except for the prior.

    When trained with a model, the weight is log T. It starts at 0, so that the layer starts as the
    identity. An infinite logit stays infinite. If the logits are unrelated to the labels or
    inverted, no temperature is good: the fit then sets T = 10⁶ and warns.

    Args:
        **kwargs: Keyword arguments of every Keras layer (`name`, `dtype`, `trainable`).

    Example:
        >>> import numpy as np
        >>> logits = np.tile([2.0, 0.0, 0.0], (3000, 1))
        >>> layer = ClassTemperatureScaling()
        >>> summary = layer.fit(logits, np.repeat([0, 0, 1, 2], 750))
        >>> round(layer.temperature, 3)  # softmax (½, ¼, ¼): 2 over log 2
        2.885

    Reference:
        Guo et al., *On Calibration of Modern Neural Networks*, ICML 2017.
    """

    def build(self, input_shape: Shape | None = None) -> None:
        """Creates the temperature, 1 at the start."""
        self._log_temperature = self.add_weight(
            name="log_temperature", shape=(), initializer="zeros"
        )
        self.built = True

    def calibrate(self, logits: Tensor) -> Tensor:
        """`l / T`."""
        return scaled_logits(logits, ops.exp(-ops.convert_to_tensor(self._log_temperature)))

    def fit_classes(self, rows: ClassRows) -> SoftmaxFit:
        """Finds the root of the derivative of the loss by 1 / T."""
        fit = fit_temperature(rows)
        check_class_scale(fit.scales, "ClassTemperatureScaling")
        self._log_temperature.assign(-math.log(fit.scales))
        return fit

    @property
    def temperature(self) -> float:
        """The temperature T > 0."""
        self.ensure_built()
        return math.exp(float(ops.convert_to_numpy(self._log_temperature)))
