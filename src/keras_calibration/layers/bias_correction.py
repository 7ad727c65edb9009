"""BiasCorrection: a constant added to every logit."""

from __future__ import annotations

import keras
import numpy as np
from keras import ops

from keras_calibration._solvers.logistic_fit import fit_logistic, starting_bias
from keras_calibration._solvers.logit_histogram import LogitHistogram
from keras_calibration._typing import Shape, Tensor
from keras_calibration.layers.histogram_head import FittedCurve, HistogramHead
from keras_calibration.layers.posterior import Posterior


@keras.saving.register_keras_serializable(package="keras_calibration")
class BiasCorrection(HistogramHead):
    """Bias correction: `l + c`, so that predicted and observed positives have the same sum.

    The fit minimizes the log loss: c is the root of `Σ w σ(l + c) = Σ w y`. It corrects for a
    changed positive rate or for negative sampling, and leaves the ranking unchanged. c is one
    trainable weight. It starts at 0, so that the layer starts as the identity. Shifted logits get
    the same probabilities; scaled ones do not, because the slope stays 1.

    Args:
        **kwargs: Keyword arguments of every Keras layer (`name`, `dtype`, `trainable`).

    Raises:
        ValueError: In `fit`, if the rows hold one class only (no finite c exists) or are invalid,
            see `Head.fit`.

    Example:
        >>> layer = BiasCorrection()
        >>> summary = layer.fit([0.0, 0.0, 0.0, 0.0], [1, 0, 0, 0])
        >>> round(layer.bias, 4)  # the logit of 1/4
        -1.0986

    Reference:
        Fan et al., *Calibration-then-Calculation*, arXiv 2401.16692 (their bias is -c).
    """

    has_free_shift = True

    def build(self, input_shape: Shape | None = None) -> None:
        """Creates the bias, 0 at the start."""
        self._bias = self.add_weight(name="bias", shape=(), initializer="zeros")
        self.posterior = Posterior(self, factor=(1, 1))
        self.built = True

    def calibrate(self, logits: Tensor) -> Tensor:
        """`l + c`."""
        return logits + ops.convert_to_tensor(self._bias)

    def derivatives(self, logits: Tensor) -> list[Tensor]:
        """By c."""
        return [ops.ones_like(logits)]

    def fit_histogram(self, histogram: LogitHistogram) -> FittedCurve:
        """Fits c by Newton's method."""

        def design(logits: np.ndarray, means: np.ndarray) -> np.ndarray:
            return np.ones((len(logits), 1))

        start = [starting_bias(histogram, 1.0)]
        # `offset=1.0` adds the logit itself, with a fixed slope of 1, to the design: only c is
        # fitted.
        fit = fit_logistic(histogram, design, start, offset=1.0)
        bias = fit.parameters[0]
        return FittedCurve(fit, lambda logits: logits + bias, {"_bias": bias})

    @property
    def bias(self) -> float:
        """The bias c, in logits."""
        return float(self._read_value("_bias"))
