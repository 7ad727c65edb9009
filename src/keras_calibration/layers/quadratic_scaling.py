"""QuadraticScaling: a curve whose slope changes linearly over the range of the logits."""

from __future__ import annotations

import math

import keras
import numpy as np
from keras import ops

from keras_calibration._typing import Shape, Tensor
from keras_calibration.layers.logits import scaled_logits
from keras_calibration.layers.streaming_calibrator import StreamingCalibrator
from keras_calibration.solvers.logistic_fit import LogisticFit, check_scale, fit_two_slopes
from keras_calibration.solvers.logit_histogram import EDGES, LogitHistogram

# Share of the weight outside the range on which the slope changes, at either end.
_OUTSIDE = 0.001
_STARTING_RANGE = (-8.0, 8.0)


@keras.saving.register_keras_serializable(package="keras_calibration")
class QuadraticScaling(StreamingCalibrator):
    """Quadratic scaling: `c + a l + b l²` on the range of the logits, a line beyond, increasing.

    On the range [l₀, l₁], which holds 99.8 % of the weight, the slope changes linearly from s₀ to
    s₁. Below and above, it stays s₀ and s₁: a parabola would turn back. Both slopes are positive,
    so the curve is increasing everywhere, while plain logistic regression on l and l² can reverse
    the ranking. With s₀ = s₁ it is Platt scaling. In contrast to beta calibration, it bends over
    the whole range, and not only near probability ½.

    The fit is convex: it maximizes the likelihood under the prior `0.05 [(s₀ - 1)² + (s₁ - 1)²]`,
    which a few positives outweigh, and which keeps the slopes finite if a threshold separates the
    classes. A slope whose optimum is negative is set to 1e-6, which preserves the ranking; if both
    are, the fit warns. A sample weight of 2 counts as two rows.

    When trained with a model, the weights are log s₀, log s₁ and c, which is the value at l = 0;
    the range stays at [-8, 8] unless a fit has set it. The layer starts as the identity. An
    infinite logit stays infinite.

    Args:
        **kwargs: Keyword arguments of every Keras layer (`name`, `dtype`, `trainable`).

    Raises:
        ValueError: In `fit`, if the rows hold one class only or are invalid, see `Head.fit`.

    Example:
        >>> logits = np.repeat([-2.0, 0.0, 2.0], 1000)
        >>> rates = 1 / (1 + np.exp(-np.repeat([-3.5, -1.0, 0.5], 1000)))
        >>> layer = QuadraticScaling()
        >>> summary = layer.fit(logits, rates)
        >>> round(layer.slope_low, 2), round(layer.slope_high, 2), round(layer.bias, 2)
        (1.5, 0.5, -1.0)

    Reference:
        Berta et al., *Structured Matrix Scaling for Multi-Class Calibration*, arXiv 2511.03685,
        section on binary calibration (there without bounds on the slope).
    """

    def build(self, input_shape: Shape | None = None) -> None:
        """Creates the slopes, the bias and the range; the layer starts as the identity."""
        for name in ("log_slope_low", "log_slope_high", "bias"):
            setattr(self, f"_{name}", self.add_weight(name=name, shape=(), initializer="zeros"))
        self._range = self.add_weight(
            name="range", shape=(2,), initializer="zeros", trainable=False
        )
        self._range.assign(_STARTING_RANGE)
        self.add_posterior(factor=(3, 3))
        self.built = True

    def calibrate(self, logits: Tensor) -> Tensor:
        """`c + s₀ A(l) + s₁ B(l)`."""
        low, high = self._shapes(logits)
        line = scaled_logits(low, ops.exp(ops.convert_to_tensor(self._log_slope_low)))
        line = line + scaled_logits(high, ops.exp(ops.convert_to_tensor(self._log_slope_high)))
        return line + ops.convert_to_tensor(self._bias)

    def _shapes(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """A, with slope 1 below the range and 0 above it, and B, the reverse; 0 at l = 0."""
        ends = ops.convert_to_tensor(self._range)
        start, end = ends[0], ends[1]
        inside = ops.clip(logits, start, end)
        zero = ops.clip(ops.zeros_like(start), start, end)
        double_width = 2 * (end - start)  # below, A and B are 0 at l = 0
        low = ops.minimum(logits - start, 0.0) - ops.square(end - inside) / double_width
        low = low - ops.minimum(-start, 0.0) + ops.square(end - zero) / double_width
        high = ops.maximum(logits - end, 0.0) + ops.square(inside - start) / double_width
        return low, high - ops.maximum(-end, 0.0) - ops.square(zero - start) / double_width

    def derivatives(self, logits: Tensor) -> list[Tensor]:
        """By c, s₀ and s₁: 1, A and B."""
        return [ops.ones_like(logits), *self._shapes(logits)]

    def fit_histogram(self, histogram: LogitHistogram) -> LogisticFit:
        """Fits c, s₀ and s₁ by Newton's method, on the range that holds 99.8 % of the weight."""
        start, end = _range_of(histogram)
        atoms = histogram.atoms()

        def high(logits: np.ndarray) -> np.ndarray:
            inside = np.clip(logits, start, end)
            return (inside - start) ** 2 / (2 * (end - start)) + np.maximum(logits - end, 0.0)

        def design(logits: np.ndarray, means: np.ndarray) -> np.ndarray:
            # The line with the right sum over the rows of each bin; ends are edges of bins.
            spreads = atoms.spreads[np.searchsorted(atoms.means, means)]
            share = (means - start) / (end - start)
            curvature = np.where((share > 0) & (share < 1), 1 / (end - start), 0.0)
            high_part = high(means) - high(np.zeros(())) + 0.5 * curvature * spreads**2
            high_part += np.clip(share, 0.0, 1.0) * (logits - means)
            return np.stack([np.ones_like(logits), logits - high_part, high_part], axis=1)

        fit = fit_two_slopes(histogram, design)
        bias, slope_low, slope_high = fit.parameters
        # A large slope is not an error here: the prior keeps it finite.
        check_scale(min(1.0, max(slope_low, slope_high)), "QuadraticScaling")
        self._range.assign([start, end])
        self._bias.assign(bias)
        self._log_slope_low.assign(math.log(slope_low))
        self._log_slope_high.assign(math.log(slope_high))
        return fit

    @property
    def slope_low(self) -> float:
        """The slope s₀ at the lower end of the range, and below."""
        self.ensure_built()
        return math.exp(float(ops.convert_to_numpy(self._log_slope_low)))

    @property
    def slope_high(self) -> float:
        """The slope s₁ at the upper end of the range, and above."""
        self.ensure_built()
        return math.exp(float(ops.convert_to_numpy(self._log_slope_high)))

    @property
    def bias(self) -> float:
        """The bias c, the value at l = 0, in logits."""
        self.ensure_built()
        return float(ops.convert_to_numpy(self._bias))

    @property
    def logit_range(self) -> tuple[float, float]:
        """The range [l₀, l₁] on which the slope changes, in logits."""
        self.ensure_built()
        start, end = ops.convert_to_numpy(self._range).tolist()
        return start, end


def _range_of(histogram: LogitHistogram) -> tuple[float, float]:
    """Edges of bins with at most 0.1 % of the weight beyond either."""
    mass = histogram.moments[:, :, 0].sum(axis=0)
    below = np.concatenate([[0.0], np.cumsum(mass)]) / mass.sum()
    start = np.flatnonzero(below <= _OUTSIDE)[-1]
    end = np.flatnonzero(below >= 1 - _OUTSIDE)[0]
    return float(EDGES[start]), float(EDGES[max(end, start + 1)])
