"""IsotonicRegression: the non-decreasing probabilities closest to the labels."""

from __future__ import annotations

import functools
from typing import Any

import keras
import numpy as np
from keras import ops
from scipy.special import expit

from calibration_records._check import integer
from keras_calibration._ops.piecewise_linear import piecewise_linear
from keras_calibration._rows.rows import Rows
from keras_calibration._solvers.isotonic_fit import isotonic_steps, tied_rows
from keras_calibration._typing import Features, Shape, Tensor
from keras_calibration.layers.fit import Fit
from keras_calibration.layers.fit_settings import FitSettings
from keras_calibration.layers.fit_summary import FitSummary
from keras_calibration.layers.head import Head

# Slope of the steps with `keep_ranking`, in logits per standard deviation of the scores.
_TIE_SLOPE = 1e-4


@keras.saving.register_keras_serializable(package="keras_calibration")
class IsotonicRegression(Head):
    """Isotonic regression: `argmin_p Σ w (y - p)²` over all non-decreasing p(l).

    The solution, found by pooling adjacent violators, also minimizes the log loss over these p. As
    in scikit-learn, the probability is constant on a step, linear in the logit from the last row of
    one step to the first row of the next, and constant outside the rows of the fit.

    Constant steps would lose the ranking within a step. `keep_ranking=True` therefore adds a line
    that is 0 at the mean logit. Its slope is 1e-4, divided by the standard deviation of the logits
    if that is above 1. The line changes the calibrated logits by about 1e-4 and preserves the
    ranking as far as float32 allows: for differences down to 0.01, or 0.01 standard deviations if
    these are above 1. With the line, an infinite logit stays infinite; without it, an infinite
    logit gets the value of the end step.

    If the first step has no positives, it counts as having half a positive; if the last step has no
    negatives, half a negative; but never beyond the rate of the neighbouring step. scikit-learn
    returns 0 and 1 there, which have no finite logit. A positive is taken to have the mean weight
    of the rows.

    The layer has no trainable weights: it learns only by `fit`, and is the identity before. The fit
    needs the rows, so there is no `update`; call `fit` with all rows instead.

    Args:
        keep_ranking: Whether to give the steps a small slope.
        max_num_steps: Maximum number of steps; 1e6 rows give about 200. If the fit has more,
            neighbours are pooled in groups of equal size.
        **kwargs: Keyword arguments of every Keras layer (`name`, `dtype`, `trainable`).

    Raises:
        ValueError: If `max_num_steps` is out of its range.

    Example:
        >>> layer = IsotonicRegression(keep_ranking=False)
        >>> summary = layer.fit(np.arange(8.0), [0, 0, 1, 0, 0, 1, 0, 1])
        >>> layer.thresholds
        array([0., 1., 2., 4., 5., 6., 7.], dtype=float32)
        >>> layer.values.round(2)
        array([-1.1 , -1.1 , -0.69, -0.69,  0.  ,  0.  ,  0.  ], dtype=float32)

    Reference:
        Zadrozny and Elkan, *Transforming classifier scores into accurate multiclass probability
        estimates*, KDD 2002.
    """

    def __init__(self, keep_ranking: bool = True, max_num_steps: int = 1024, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.keep_ranking = bool(keep_ranking)
        self.max_num_steps = integer("max_num_steps", max_num_steps, 1)

    def build(self, input_shape: Shape | None = None) -> None:
        """Creates the steps at 0 and the line with slope 1: the layer starts as the identity."""
        fixed = functools.partial(self.add_weight, trainable=False)
        # Both ends of every step; the last one again if unused.
        shape = (2 * self.max_num_steps,)
        self._thresholds = fixed(name="thresholds", shape=shape, initializer="zeros")
        self._values = fixed(name="values", shape=shape, initializer="zeros")
        self._slope = fixed(name="slope", shape=(), initializer="ones")
        self._centre = fixed(name="centre", shape=(), initializer="zeros")
        self.built = True

    def call(self, logits: Tensor, features: Features | None = None) -> Tensor:
        """The logit of the interpolated probability, plus the line; NaN stays NaN."""
        logits = ops.cast(logits, self.compute_dtype)
        thresholds, values = (ops.convert_to_tensor(w) for w in (self._thresholds, self._values))
        # The logit is log p - log(1 - p). Interpolate 1 - p too: as a difference from 1, it would
        # lose digits for p near 1.
        one = piecewise_linear(logits, thresholds, ops.sigmoid(values), "constant")
        zero = piecewise_linear(logits, thresholds, ops.sigmoid(-values), "constant")
        slope = ops.convert_to_tensor(self._slope)
        centre = ops.convert_to_tensor(self._centre)
        line = ops.where(slope > 0, logits - centre, 0.0) * slope
        return ops.log(one) - ops.log(zero) + line

    def fitted(self, rows: Rows, settings: FitSettings, start: Fit | None = None) -> Fit:
        """Sorts and pools the rows."""
        # Rows whose logits are equal in the dtype of the layer get one probability, so they become
        # one row. Pool adjacent violators, and keep both ends of each step.
        tied = tied_rows(rows, self.variable_dtype)
        first, last, steps = isotonic_steps(tied, self.max_num_steps)
        slope, centre = 0.0, 0.0
        if self.keep_ranking:
            # The line counts in standard deviations of the logits, and is 0 at their mean, so that
            # the mean of the calibrated logits stays.
            share = tied.row_weights / tied.row_weights.sum()
            centre = float(share @ tied.logits)
            slope = _TIE_SLOPE / (float(np.sqrt(share @ (tied.logits - centre) ** 2)) or 1.0)
        # A step at a single logit has one threshold.
        is_end = np.stack([np.ones_like(first), last > first], axis=1) > 0
        thresholds = np.stack([first, last], axis=1)[is_end]
        values = np.stack([steps, steps], axis=1)[is_end]

        def logits(rows: Rows) -> np.ndarray:
            # Round as the layer does: where two thresholds are neighbours in its dtype, a logit
            # between them would get another probability.
            seen = rows.logits.astype(self.variable_dtype)
            one = np.interp(seen, thresholds, expit(values))
            zero = np.interp(seen, thresholds, expit(-values))
            return np.log(one) - np.log(zero) + slope * (rows.logits - centre)

        # The weights have a fixed size. Copies of the last threshold fill them up: empty segments.
        unused = (0, 2 * self.max_num_steps - len(values))
        weights = {
            "_thresholds": np.pad(thresholds, unused, mode="edge"),
            "_values": np.pad(values, unused, mode="edge"),
            "_slope": slope,
            "_centre": centre,
        }
        return Fit(FitSummary.of(rows, logits(rows), 0), logits, weights)

    @property
    def thresholds(self) -> np.ndarray:
        """Both ends of every step, increasing logits, shape (t,)."""
        return np.unique(self._read_value("_thresholds"))

    @property
    def values(self) -> np.ndarray:
        """Calibrated logits at the thresholds, shape (t,), without the slope within steps."""
        return np.asarray(self._values)[: len(self.thresholds)].copy()

    def get_config(self) -> dict[str, Any]:
        """The constructor arguments as plain Python values."""
        return {
            **super().get_config(),
            "keep_ranking": self.keep_ranking,
            "max_num_steps": self.max_num_steps,
        }
