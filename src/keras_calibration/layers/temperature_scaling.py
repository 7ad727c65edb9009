"""TemperatureScaling: one factor of every logit."""

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calibration.layers.calibrator import scaled_logits
from keras_calibration.layers.streaming_calibrator import StreamingCalibrator
from keras_calibration.solvers.logistic_fit import (
    SMALLEST_SCALE,
    LogisticFit,
    check_scale,
    fit_logistic,
    starting_scale,
)
from keras_calibration.solvers.logit_histogram import LogitHistogram


@keras.saving.register_keras_serializable(package="keras_calibration")
class TemperatureScaling(StreamingCalibrator):
    """Temperature scaling: `l / T` with T > 0.

    The fit is the T with the lowest log loss. It mends a network that is too sure of itself (T > 1)
    or not sure enough, and leaves 0, a probability of one half, where it is: for positives that are
    rare or often, `PlattScaling` is the better choice. Trained with a model, the layer's weight is
    log T, 0 at the start: the identity. An infinite logit stays infinite.

    Where no temperature is good, the logits telling the labels nothing or the reverse, the fit
    gives T = 10⁶, the best of those allowed, and warns.

    Args:
        **kwargs: What every Keras layer takes (`name`, `dtype`, `trainable`).

    Raises:
        ValueError: In `fit`, if the sign of the logit tells every label (no T above 0 is best), the
            rows hold one class only, or cannot be used, see `Calibrator.fit`.

    Example:
        >>> layer = TemperatureScaling()
        >>> summary = layer.fit([2.0, 2.0, 2.0, 2.0], [1, 1, 1, 0])
        >>> round(layer.temperature, 4)  # 2 over the logit of 3/4
        1.8205

    Reference:
        Guo et al., *On Calibration of Modern Neural Networks*, ICML 2017.
    """

    def build(self, input_shape: Any = None) -> None:
        """Creates the temperature at 1."""
        self._log_temperature = self.add_weight(
            name="log_temperature", shape=(), initializer="zeros"
        )
        self.built = True

    def calibrate(self, logits: Any) -> Any:
        """`l / T`."""
        return scaled_logits(logits, ops.exp(-ops.convert_to_tensor(self._log_temperature)))

    def fit_histogram(self, histogram: LogitHistogram) -> LogisticFit:
        """Newton's method for 1 / T."""

        def design(logits: np.ndarray, means: np.ndarray) -> np.ndarray:
            return logits[:, None]

        start = [starting_scale(histogram, with_bias=False)]
        fit = fit_logistic(histogram, design, start, lower=SMALLEST_SCALE)
        check_scale(fit.parameters[0], "TemperatureScaling")
        self._log_temperature.assign(-math.log(fit.parameters[0]))
        return fit

    @property
    def temperature(self) -> float:
        """T, above 0."""
        self.ensure_built()
        return math.exp(float(ops.convert_to_numpy(self._log_temperature)))
