"""TemperatureScaling: one temperature for all logits, of one or of K columns."""

from __future__ import annotations

import dataclasses
import math

import keras
import numpy as np
from keras import ops

from keras_calibration._rows.checks import is_of_classes
from keras_calibration._rows.rows import Rows
from keras_calibration._solvers.logistic_fit import (
    SMALLEST_SCALE,
    check_scale,
    fit_logistic,
    starting_scale,
    warn_of_no_ranking,
)
from keras_calibration._solvers.logit_histogram import LogitHistogram
from keras_calibration._solvers.reference_line import class_line
from keras_calibration._solvers.softmax_fit import fit_temperature
from keras_calibration._typing import Shape, Tensor
from keras_calibration.layers.fit import Fit
from keras_calibration.layers.fit_settings import FitSettings
from keras_calibration.layers.fit_summary import FitSummary
from keras_calibration.layers.histogram_head import FittedCurve, HistogramHead
from keras_calibration.layers.logits import check_columns, scaled_logits
from keras_calibration.layers.posterior import Posterior


@keras.saving.register_keras_serializable(package="keras_calibration")
class TemperatureScaling(HistogramHead):
    """Temperature scaling: `l / T` with T > 0, of one logit per row or of K class logits.

    The fit minimizes the log loss. It corrects an overconfident network (T > 1) or an
    underconfident one (T < 1). The logit 0, probability ½, does not move: if positives are rare or
    frequent, use `PlattScaling` instead. With K classes, the most likely one never changes.

    With class logits, the fit has the prior `0.05 (1/T - 1)²`, which weighs as much as a tenth of a
    row (less if the logits are small) and keeps T above 0 if the largest logit predicts every
    label. With two classes and logits (0, l) the result is that of the logit l, except for the
    prior. Class logits have neither `update` nor intervals.

    When trained with a model, the weight is log T. It starts at 0, so that the layer starts as the
    identity. An infinite logit stays infinite. If the logits are unrelated to the labels or
    inverted, no temperature is good: the fit then sets a very large T, and warns.

    Scaled logits get the same probabilities; shifted ones do not, because the logit 0 stays in
    place.

    Args:
        **kwargs: Keyword arguments of every Keras layer (`name`, `dtype`, `trainable`).

    Raises:
        ValueError: In `fit`, if the sign of the logit predicts every label, or nearly so, or the
            rows hold one class only or are invalid, see `Head.fit`.

    Example:
        >>> layer = TemperatureScaling()
        >>> summary = layer.fit([2.0, 2.0, 2.0, 2.0], [1, 1, 1, 0])
        >>> round(layer.temperature, 4)  # 2 over the logit of 3/4
        1.8205
        >>> scaling = TemperatureScaling()
        >>> class_logits = np.tile([2.0, 0.0, 0.0], (3000, 1))
        >>> summary = scaling.fit(class_logits, np.repeat([0, 0, 1, 2], 750))
        >>> round(scaling.temperature, 3)  # softmax (½, ¼, ¼): 2 over log 2
        2.885

    Reference:
        Guo et al., *On Calibration of Modern Neural Networks*, ICML 2017.
    """

    has_free_scale = True
    posterior: Posterior  # of the built layer

    def check_logits(self, shape: Shape) -> None:
        """Raises unless there is one logit per row, or one per class."""
        check_columns(shape, type(self).__name__)

    def build(self, input_shape: Shape | None = None) -> None:
        """Creates the temperature, 1 at the start."""
        self._log_temperature = self.add_weight(
            name="log_temperature", shape=(), initializer="zeros"
        )
        self.posterior = Posterior(self, factor=(1, 1))
        self.built = True

    def calibrate(self, logits: Tensor) -> Tensor:
        """`l / T`."""
        return scaled_logits(logits, ops.exp(-ops.convert_to_tensor(self._log_temperature)))

    def fitted(self, rows: Rows, settings: FitSettings, start: Fit | None = None) -> Fit:
        """Fits T to one logit per row, or to class logits by the root of the loss derivative."""
        if not is_of_classes(rows.logits):
            return super().fitted(rows, settings, start)
        line = class_line(rows)
        # The fit sees the logits mapped by a line. Its shift is one constant for all classes, to
        # which the softmax is blind; its scale is part of 1/T.
        scale, num_steps = fit_temperature(rows.seen(line))
        warn_of_no_ranking(scale, "TemperatureScaling")

        def logits(rows: Rows) -> np.ndarray:
            return scale * line.scale * rows.logits

        summary = FitSummary.of(rows, logits(rows), num_steps)
        return Fit(summary, logits, _convert_to_weights(scale, line.scale))

    def derivatives(self, logits: Tensor) -> list[Tensor]:
        """By 1 / T."""
        return [logits]

    def fit_histogram(self, histogram: LogitHistogram) -> FittedCurve:
        """Fits 1 / T by Newton's method."""

        def design(logits: np.ndarray, means: np.ndarray) -> np.ndarray:
            return logits[:, None]

        start = [starting_scale(histogram, with_bias=False)]
        fit = fit_logistic(histogram, design, start, lower=SMALLEST_SCALE)
        scale, unit = check_scale(fit, histogram, "TemperatureScaling"), histogram.line.scale
        # The fit saw logits times `unit`: 1/T is its scale times `unit`, and so is its deviation.
        solved = dataclasses.replace(fit, factor=unit * fit.factor)
        return FittedCurve(
            solved, lambda logits: scale * unit * logits, _convert_to_weights(scale, unit)
        )

    @property
    def temperature(self) -> float:
        """The temperature T > 0."""
        return math.exp(self._read_value("_log_temperature"))


def _convert_to_weights(scale: float, unit: float) -> dict[str, float]:
    """The weight of the layer, for 1 / T = scale · unit."""
    return {"_log_temperature": -math.log(scale) - math.log(unit)}
