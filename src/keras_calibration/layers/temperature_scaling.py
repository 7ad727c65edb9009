"""TemperatureScaling: one temperature for all logits."""

from __future__ import annotations

import math

import keras
import numpy as np
from keras import ops

from keras_calibration._typing import Shape, Tensor
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

    The fit minimizes the log loss. It corrects an overconfident network (T > 1) or an
    underconfident one (T < 1). The logit 0, probability ½, does not move: if positives are rare or
    frequent, use `PlattScaling` instead. When trained with a model, the weight is log T. It starts
    at 0, so that the layer starts as the identity. An infinite logit stays infinite.

    If the logits are unrelated to the labels or inverted, no temperature is good: the fit then sets
    T = 10⁶, the largest that it allows, and warns.

    Args:
        **kwargs: Keyword arguments of every Keras layer (`name`, `dtype`, `trainable`).

    Raises:
        ValueError: In `fit`, if the sign of the logit predicts every label, or nearly so (best 1/T
            of 64 or more), or the rows hold one class only or are invalid, see `Calibrator.fit`.

    Example:
        >>> layer = TemperatureScaling()
        >>> summary = layer.fit([2.0, 2.0, 2.0, 2.0], [1, 1, 1, 0])
        >>> round(layer.temperature, 4)  # 2 over the logit of 3/4
        1.8205

    Reference:
        Guo et al., *On Calibration of Modern Neural Networks*, ICML 2017.
    """

    def build(self, input_shape: Shape | None = None) -> None:
        """Creates the temperature, 1 at the start."""
        self._log_temperature = self.add_weight(
            name="log_temperature", shape=(), initializer="zeros"
        )
        self.add_posterior(factor=(1, 1))
        self.built = True

    def calibrate(self, logits: Tensor) -> Tensor:
        """`l / T`."""
        return scaled_logits(logits, ops.exp(-ops.convert_to_tensor(self._log_temperature)))

    def derivatives(self, logits: Tensor) -> list[Tensor]:
        """By 1 / T."""
        return [logits]

    def fit_histogram(self, histogram: LogitHistogram) -> LogisticFit:
        """Fits 1 / T by Newton's method."""

        def design(logits: np.ndarray, means: np.ndarray) -> np.ndarray:
            return logits[:, None]

        start = [starting_scale(histogram, with_bias=False)]
        fit = fit_logistic(histogram, design, start, lower=SMALLEST_SCALE)
        check_scale(fit.parameters[0], "TemperatureScaling")
        self._log_temperature.assign(-math.log(fit.parameters[0]))
        return fit

    @property
    def temperature(self) -> float:
        """The temperature T > 0."""
        self.ensure_built()
        return math.exp(float(ops.convert_to_numpy(self._log_temperature)))
