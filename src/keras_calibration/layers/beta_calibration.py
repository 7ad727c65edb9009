"""BetaCalibration: a curve with one slope for low logits and another for high logits."""

from __future__ import annotations

import math

import keras
import numpy as np
from keras import ops
from scipy import special

from keras_calibration._ops.increasing_softplus import increasing_softplus
from keras_calibration._solvers.logistic_fit import (
    SMALLEST_SCALE,
    fit_logistic,
    starting_bias,
    starting_scale,
    warn_of_no_ranking,
)
from keras_calibration._solvers.logit_histogram import LogitHistogram
from keras_calibration._typing import Shape, Tensor
from keras_calibration.layers.histogram_head import FittedCurve, HistogramHead
from keras_calibration.layers.logits import is_not_finite
from keras_calibration.layers.posterior import Posterior

# Precision of the Gaussian prior on each slope (mean 1), in units of summed log likelihood, as for
# ILPS. It matters only where the rows carry almost no information.
_SLOPE_PRECISION = 0.1


@keras.saving.register_keras_serializable(package="keras_calibration")
class BetaCalibration(HistogramHead):
    """Beta calibration: `a log σ(l) - b log(1 - σ(l)) + c = -a softplus(-l) + b softplus(l) + c`.

    The curve has slope a far below 0 and slope b far above 0, both positive; with a = b it is Platt
    scaling. Unlike Platt scaling, it can correct likely and unlikely positives differently. It
    bends only near probability ½: if no prediction is near ½, b hardly matters.

    The fit is convex: it maximizes the likelihood under the prior `0.05 [(a - 1)² + (b - 1)²]`,
    which a few positives outweigh. The prior keeps the slopes finite if a threshold separates the
    classes, and b near 1 if no logit is near 0. A slope whose optimum is negative is set to 1e-6,
    which preserves the ranking; if both are, the fit warns. Scaled or shifted logits get other
    probabilities, because the curve bends at probability ½.

    When trained with a model, the weights are log a, log b and c. The layer starts as the identity.
    An infinite logit stays infinite. The curve never falls, not even by rounding.

    Args:
        **kwargs: Keyword arguments of every Keras layer (`name`, `dtype`, `trainable`).

    Raises:
        ValueError: In `fit`, if the rows hold one class only or are invalid, see `Head.fit`.

    Example:
        >>> logits = np.repeat([-2.0, 0.0, 2.0], 1000)
        >>> labels = np.tile(np.arange(1000) / 1000, 3) < np.repeat([0.1, 0.35, 0.8], 1000)
        >>> layer = BetaCalibration()
        >>> summary = layer.fit(logits, labels)
        >>> round(layer.slope_below, 2), round(layer.slope_above, 2), round(layer.bias, 2)
        (0.65, 1.14, -0.96)

    Reference:
        Kull, Silva Filho and Flach, *Beta calibration*, AISTATS 2017.
    """

    def build(self, input_shape: Shape | None = None) -> None:
        """Creates the slopes and the bias; the layer starts as the identity."""
        for name in ("log_slope_below", "log_slope_above", "bias"):
            setattr(self, f"_{name}", self.add_weight(name=name, shape=(), initializer="zeros"))
        self.posterior = Posterior(self, factor=(3, 3))
        self.built = True

    def calibrate(self, logits: Tensor) -> Tensor:
        """`-a softplus(-l) + b softplus(l) + c`."""
        below = ops.exp(ops.convert_to_tensor(self._log_slope_below))
        above = ops.exp(ops.convert_to_tensor(self._log_slope_above))
        # A line of the smaller slope plus a rising bend, `a l + (b - a) softplus(l)` or
        # `b l + (b - a) softplus(-l)`: rounding preserves the order of rising terms.
        bends_up = above >= below
        # An infinite logit stays infinite by the line alone; its bend is that of 0.
        infinite = is_not_finite(logits)
        finite = ops.where(infinite, 0.0, logits)
        line = ops.where(infinite, logits, finite * ops.where(bends_up, below, above))
        side = ops.cast(ops.where(bends_up, 1.0, -1.0), logits.dtype)
        bend = (above - below) * increasing_softplus(side * finite)
        return line + bend + ops.convert_to_tensor(self._bias)

    def derivatives(self, logits: Tensor) -> list[Tensor]:
        """By c, b and a."""
        return [ops.ones_like(logits), ops.softplus(logits), -ops.softplus(-logits)]

    def fit_histogram(self, histogram: LogitHistogram) -> FittedCurve:
        """Fits c, b and a by Newton's method."""
        atoms = histogram.atoms()

        def design(logits: np.ndarray, means: np.ndarray) -> np.ndarray:
            # `means` holds means of the atoms, which increase: find the spread of each one's bin.
            spreads = atoms.spreads[np.searchsorted(atoms.means, means)]
            above = _linearize_softplus(logits, means, spreads)
            below = -_linearize_softplus(-logits, -means, spreads)
            return np.stack([np.ones_like(logits), above, below], axis=1)

        scale = starting_scale(histogram)
        fit = fit_logistic(
            histogram,
            design,
            [starting_bias(histogram, scale), scale, scale],
            lower=[-np.inf, SMALLEST_SCALE, SMALLEST_SCALE],
            precision=np.diag([0.0, _SLOPE_PRECISION, _SLOPE_PRECISION]),
            centre=[0.0, 1.0, 1.0],
        )
        bias, above, below = fit.parameters
        # A large slope is not an error here: the prior keeps it finite.
        warn_of_no_ranking(max(above, below), "BetaCalibration")

        def curve(logits: np.ndarray) -> np.ndarray:
            return bias + above * np.logaddexp(0.0, logits) - below * np.logaddexp(0.0, -logits)

        weights = {
            "_bias": bias,
            "_log_slope_above": math.log(above),
            "_log_slope_below": math.log(below),
        }
        return FittedCurve(fit, curve, weights)

    @property
    def slope_below(self) -> float:
        """The slope a far below 0."""
        return math.exp(self._read_value("_log_slope_below"))

    @property
    def slope_above(self) -> float:
        """The slope b far above 0."""
        return math.exp(self._read_value("_log_slope_above"))

    @property
    def bias(self) -> float:
        """The bias c, in logits."""
        return float(self._read_value("_bias"))


def _linearize_softplus(logits: np.ndarray, means: np.ndarray, spreads: np.ndarray) -> np.ndarray:
    """Softplus, linearized within each bin so that its sum over the rows of the bin is right.

    A Taylor series to second order: value and slope at the mean of the bin, and half the curvature
    times the variance of the logits in the bin.
    """
    # softplus' = σ, and softplus'' = σ (1 - σ).
    slopes = special.expit(means)
    correction = 0.5 * slopes * (1 - slopes) * spreads**2
    return np.logaddexp(0.0, means) + correction + slopes * (logits - means)
