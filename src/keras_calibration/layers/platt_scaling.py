"""PlattScaling: a scale and a bias, logistic regression on the logit."""

from __future__ import annotations

import dataclasses
import math

import keras
import numpy as np
from keras import ops

from keras_calibration._solvers.logistic_fit import (
    SMALLEST_SCALE,
    check_scale,
    fit_logistic,
    starting_bias,
    starting_scale,
)
from keras_calibration._solvers.logit_histogram import LogitHistogram
from keras_calibration._typing import Shape, Tensor
from keras_calibration.layers.histogram_head import FittedCurve, HistogramHead
from keras_calibration.layers.logits import scaled_logits
from keras_calibration.layers.posterior import Posterior


@keras.saving.register_keras_serializable(package="keras_calibration")
class PlattScaling(HistogramHead):
    """Platt scaling: `a l + c` with a > 0, logistic regression on the logit.

    The fit maximizes the likelihood, without a penalty and without Platt's smoothing of the labels.
    When trained with a model, the weights are log a and c. The layer starts as the identity. An
    infinite logit stays infinite.

    The scale is always positive: at 0 or below, all logits would be equal or their ranking
    reversed. If the best scale is not positive, the fit sets a to nearly 0, and warns.

    The logit may be any score that increases with the probability: scaled or shifted scores get the
    same probabilities.

    Args:
        **kwargs: Keyword arguments of every Keras layer (`name`, `dtype`, `trainable`).

    Raises:
        ValueError: In `fit`, if a threshold on the logit separates positives from negatives, or
            nearly so, or the rows hold one class only or are invalid, see `Head.fit`.

    Example:
        >>> layer = PlattScaling()
        >>> summary = layer.fit([-1.0, -1.0, -1.0, 1.0, 1.0], [1, 0, 0, 1, 0])
        >>> round(layer.scale, 4), round(layer.bias, 4)
        (0.3466, -0.3466)

    Reference:
        Platt (1999), *Probabilistic outputs for support vector machines*.
    """

    has_free_scale, has_free_shift = True, True

    def build(self, input_shape: Shape | None = None) -> None:
        """Creates the scale and the bias; the layer starts as the identity."""
        self._log_scale = self.add_weight(name="log_scale", shape=(), initializer="zeros")
        self._bias = self.add_weight(name="bias", shape=(), initializer="zeros")
        self.posterior = Posterior(self, factor=(2, 2))
        self.built = True

    def calibrate(self, logits: Tensor) -> Tensor:
        """`a l + c`."""
        scale = ops.exp(ops.convert_to_tensor(self._log_scale))
        return scaled_logits(logits, scale) + ops.convert_to_tensor(self._bias)

    def derivatives(self, logits: Tensor) -> list[Tensor]:
        """By c and a."""
        return [ops.ones_like(logits), logits]

    def fit_histogram(self, histogram: LogitHistogram) -> FittedCurve:
        """Fits c and a by Newton's method."""

        def design(logits: np.ndarray, means: np.ndarray) -> np.ndarray:
            return np.stack([np.ones_like(logits), logits], axis=1)

        scale = starting_scale(histogram)
        start = [starting_bias(histogram, scale), scale]
        fit = fit_logistic(histogram, design, start, lower=[-np.inf, SMALLEST_SCALE])
        line = histogram.line
        slope = check_scale(fit, histogram, "PlattScaling")
        # The fit saw l' = s l + t. Write a' l' + c' out in l; F, for (c, a), changes in the same
        # way.
        scale = slope * line.scale
        bias = fit.parameters[0] + slope * line.shift
        by_bias, by_scale = fit.factor
        factor = np.stack([by_bias + line.shift * by_scale, line.scale * by_scale])
        # Log of each factor: their product may be beyond the range of floats.
        weights = {"_log_scale": math.log(slope) + math.log(line.scale), "_bias": bias}
        solved = dataclasses.replace(fit, factor=factor)
        return FittedCurve(solved, lambda logits: scale * logits + bias, weights)

    @property
    def scale(self) -> float:
        """The scale a > 0."""
        return math.exp(self._read_value("_log_scale"))

    @property
    def bias(self) -> float:
        """The bias c, in logits."""
        return float(self._read_value("_bias"))
