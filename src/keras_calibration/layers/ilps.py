"""ILPS: a non-decreasing piecewise-linear map of the logit, fitted directly or trained."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops
from numpy.typing import ArrayLike

from calibration_records._check import integer, not_negative, one_of, refused
from calibration_records._warn import warn
from keras_calibration._ops.piecewise_linear import (
    decrease_penalty,
    isotonic_values,
    piecewise_linear,
    running_maximum,
    slope_change_penalty,
)
from keras_calibration._rows.checks import check_rows
from keras_calibration._rows.line import IDENTITY, Line
from keras_calibration._rows.rows import Rows
from keras_calibration._solvers.ilps_fit import fit_ilps, strictly_increasing
from keras_calibration._solvers.knots import (
    SMALLEST_GAP,
    balanced_knots,
    quantile_knots,
    sigmoid_knots,
)
from keras_calibration._solvers.logit_histogram import EDGES, LogitHistogram, quantile_edges
from keras_calibration._solvers.reference_line import bins_of
from keras_calibration._typing import Shape, Tensor
from keras_calibration.layers.fits import columns_to_adapt
from keras_calibration.layers.histogram_head import FittedCurve, HistogramHead
from keras_calibration.layers.posterior import Posterior

_KNOT_PLACES = ("balanced", "quantile", "sigmoid")
_UNIT_SLOPE = math.log(math.e - 1)  # softplus of it is 1


@keras.saving.register_keras_serializable(package="keras_calibration")
class ILPS(HistogramHead):
    """Isotonic Line-Plot Scaling η: a non-decreasing piecewise-linear map of the logit.

    With knots a₁ < … < a_K and trainable values b₁ … b_K,
    `η(l) = b_k + (l - a_k) (b_{k+1} - b_k) / (a_{k+1} - a_k)` on [a_k, a_{k+1})
    (Pan et al., eq. 10).

    `fit` finds the values with the lowest log loss under the prior below, exactly and in one pass
    over the rows. Every slope is at least 1e-6, with either choice of `monotonic`. With few
    positives the curve becomes Platt scaling; if even that has no finite optimum, a weak prior on
    the slopes keeps them finite. `fit` places learnt knots on edges of the bins of the logit
    histogram, where it is exact. `update` adds new rows to a fit. With learnt
    knots, scores in another unit, or from another zero, get the same probabilities: the priors
    count in units in which the logits are nearly calibrated.

    In a model, the layer starts as the identity, b = a, and is trained by the model's loss. The
    curve never decreases, during or after training and under any optimizer:

    - `monotonic="penalty"`: the trainable values may be out of order; the curve uses their isotonic
      projection. The penalty of the paper, `λ Σ_k (v_k - v_{k+1})₊` of the trainable values v
      (Pan et al., eq. 11), is added to the loss and keeps the two close. It does not change which
      curve is best.
    - `monotonic="strict"`: every slope is a softplus and thus positive.

    `smoothness` adds a second term to the loss: τ is the precision of a Gaussian prior on the
    changes of slope, in units of summed log likelihood, `τ/2 Σ_k (s_{k+1} - s_k)² / n`. Straight
    lines are not penalized: with few positives the curve is Platt scaling.

    A layer trained together with its base model needs no preparation: until rows are known, its
    knots are those of `knots="sigmoid"`, and the prior is left out, because it needs the number of
    rows n. `fit`, after the training and on other rows, places the knots and uses the prior. Where
    the logits are known before the training, `adapt(logits, labels)` prepares both.

    The defaults are not the paper's: at positive rates of a few percent, 100 knots evenly spaced in
    probability leave a single segment for most rows, and constant ends lose the ranking beyond the
    knots. `ILPS.from_paper()` gives the paper's form.

    Args:
        num_knots: Number of knots K, at least 2. Ignored if `knots` is a list.
        knots: `"balanced"` (quantiles of the logits, with half of the mass on the positives and
            half on the negatives) or `"quantile"`, both placed by `fit` or `adapt`; `"sigmoid"`,
            evenly spaced in probability; or a list of at least two increasing logits.
        extrapolation: `"linear"` continues the end segments; `"constant"` is eq. 9 of Pan et al.
        monotonic: `"penalty"` or `"strict"`; with both, the curve never decreases.
        smoothness: τ ≥ 0, or `"auto"`: `fit` then chooses τ by an estimate of the held-out log
            loss, and training in a model uses 1.
        penalty: λ ≥ 0, in units of mean loss. Keep it far below the positive rate divided by the
            number of knots, which is the size of the rows' own gradients: the steps of Adam depend
            on ratios of gradients only, so a greater λ moves the curve away from the labels. The
            default keeps the mean prediction on the training rows within 1 % of the labels' at
            positive rates from 0.1 % to 50 %.
        **kwargs: Keyword arguments of every Keras layer (`name`, `dtype`, `trainable`).

    Raises:
        ValueError: If an argument is out of its range.

    Example:
        >>> layer = ILPS(num_knots=3, knots="sigmoid")
        >>> print(layer(np.array([-2.0, 0.5])).numpy())
        [-2.   0.5]
        >>> layer.get_knots().round(2)
        array([-1.1,  0. ,  1.1], dtype=float32)
        >>> logits = np.linspace(-3, 3, 600)
        >>> print(ILPS().fit(logits, np.arange(600) % 10 < 3 + logits))
        The head is fitted, without a comparison on new rows.
        Log loss on the rows of the fit: 0.72144 before, 0.58136 with the fit (-0.14008).
        600 rows; the fit converged in 3 steps.

    Reference:
        Pan et al., *Field-aware Calibration*, WWW 2020, section 4.1, eq. 9–11.
    """

    def __init__(
        self,
        num_knots: int = 20,
        knots: str | Sequence[float] = "balanced",
        extrapolation: str = "linear",
        monotonic: str = "penalty",
        smoothness: float | str = 1.0,
        penalty: float = 1e-6,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.knots = knots if isinstance(knots, str) else _check_knots(knots)
        if not isinstance(knots, str):
            if num_knots not in (20, len(self.knots)):
                warn("Argument `num_knots` has no effect with a list of knots.")
            num_knots = len(self.knots)
        else:
            one_of("knots", knots, _KNOT_PLACES, also=" or a list of logits")
        self.num_knots = integer("num_knots", num_knots, 2)
        one_of("extrapolation", extrapolation, ("linear", "constant"))
        self.extrapolation = extrapolation
        one_of("monotonic", monotonic, ("penalty", "strict"))
        self.monotonic = monotonic
        self.smoothness = smoothness if isinstance(smoothness, str) else float(smoothness)
        if self.smoothness != "auto":
            not_negative("smoothness", self.smoothness, also=' or "auto"')
        self.penalty = float(penalty)
        not_negative("penalty", self.penalty)
        # Knots that the fit places move with the scores; fixed knots do not.
        self.has_free_scale = self.has_free_shift = self.knots in ("balanced", "quantile")

    @classmethod
    def from_paper(cls, **kwargs: Any) -> ILPS:
        """Creates the paper's form: 100 sigmoid-spaced knots, penalty, constant ends, no prior.

        Args:
            **kwargs: Arguments of `ILPS` that override these.
        """
        paper = {"num_knots": 100, "knots": "sigmoid", "extrapolation": "constant"}
        return cls(**{**paper, "monotonic": "penalty", "smoothness": 0.0, **kwargs})

    def build(self, input_shape: Shape | None = None) -> None:
        """Creates the knots and values; the layer starts as the identity."""
        identity = self._place_first_knots()
        self._knots = self._add_weight("knots", identity, trainable=False)
        self._num_rows = self._add_weight("num_rows", np.zeros(()), trainable=False)
        if self.monotonic == "strict":
            # Trained as mean level and slopes, which hardly depend on each other; the values do.
            self._level = self._add_weight("level", np.asarray(identity.mean()))
            self._raw_slopes = self._add_weight("raw_slopes", np.zeros(self.num_knots - 1))
        else:
            self._free_values = self._add_weight("values", identity)
        self.posterior = Posterior(self, factor=(self.num_knots, self.num_knots))
        self.built = True

    def calibrate(self, logits: Tensor) -> Tensor:
        """η(l); adds the penalty and the prior to the model's losses."""
        knots = ops.convert_to_tensor(self._knots)
        values = self._compute_values()
        # Eq. 11 of the paper keeps the free values close to the curve, which uses their isotonic
        # projection. The labels would not: all values with one projection have the same log loss.
        if self.penalty and self.monotonic == "penalty":
            free_values = ops.convert_to_tensor(self._free_values)
            self.add_loss(self.penalty * decrease_penalty(free_values))
        smoothness = 1.0 if isinstance(self.smoothness, str) else self.smoothness
        if smoothness:
            # The loss of a model is a mean over rows, so the prior is divided by their number.
            prior = smoothness * slope_change_penalty(knots, values)
            # Left out, as 0, until the number of rows is known.
            self.add_loss(ops.divide_no_nan(prior, ops.convert_to_tensor(self._num_rows)))
        return piecewise_linear(logits, knots, values, self.extrapolation)

    def adapt(
        self,
        logits: ArrayLike,
        labels: ArrayLike | None = None,
        features: Mapping[str, ArrayLike] | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> None:
        """Places the knots at quantiles of development logits and keeps the curve.

        Args:
            logits: Uncalibrated logits (n,) or (n, 1), finite.
            labels: Labels in [0, 1], (n,) or (n, 1); `knots="balanced"` needs both classes.
            features: Not read.
            sample_weight: Sample weights (n,) or (n, 1), not negative.

        Raises:
            ValueError: If there is no row, a logit is not finite, the numbers of rows differ, or
                the knots need labels and these are missing or of one class.
        """
        _, counted = columns_to_adapt(self, logits, features, sample_weight)
        self.check_logits(np.shape(logits))
        rows = check_rows(
            counted.of(logits, "logits"),
            counted.of(labels, "labels"),
            counted,
            both_classes=self.knots == "balanced",
        )
        # Place the knots as `fit` does, in units in which the logits are nearly calibrated: the
        # smallest gap between knots is in these units.
        bins = bins_of(rows.logits, rows.weights) if np.ptp(rows.logits) else IDENTITY
        on_bins = bins(rows.logits)
        knots = self.get_knots()
        if self.knots == "balanced":
            if rows.labels is None:
                remedy = 'They place the knots: pass labels, or choose knots="quantile".'
                raise refused("labels", 'given for knots="balanced"', None, remedy)
            knots = bins.inverse(balanced_knots(on_bins, rows.labels, self.num_knots, rows.weights))
        elif self.knots == "quantile":
            knots = bins.inverse(
                quantile_knots(on_bins, self.num_knots, rows.weights, SMALLEST_GAP)
            )
        placed = knots.astype(self.variable_dtype)
        # The same curve on the new knots, always extrapolated linearly: constant ends would flatten
        # the identity wherever the new knots lie beyond the old ones.
        values = np.asarray(isotonic_values(piecewise_linear(placed, *self.curve())))
        for name, value in self._convert_to_weights(placed, values, len(rows)).items():
            getattr(self, name).assign(value)

    def logit_spread(
        self, logits: Tensor, factor: Tensor, weights: Mapping[str, Any] | None = None
    ) -> Tensor:
        """The rows of F, one for the value at each knot, interpolated as the values are."""
        knots = self._knots if weights is None else weights["_knots"]
        knots = ops.convert_to_tensor(knots, logits.dtype)
        # η is linear in the values: at a logit, the rows of F at the two ends of its segment are
        # mixed in the same shares as the two values.
        right_of = ops.searchsorted(knots, logits, side="right")
        segment = ops.clip(ops.cast(right_of, "int32") - 1, 0, self.num_knots - 2)
        left = ops.take(knots, segment)
        right = ops.take(knots, segment + 1)
        share = ops.expand_dims((logits - left) / (right - left), 1)
        share = ops.clip(share, 0.0, 1.0) if self.extrapolation == "constant" else share
        left, right = (ops.take(factor, segment + step, axis=0) for step in (0, 1))
        return (1 - share) * left + share * right

    def bins_of(self, rows: Rows) -> Line:
        """The line from logits to bins; the identity for fixed knots, which may lie on edges."""
        return super().bins_of(rows) if self.has_free_scale else IDENTITY

    def fit_histogram(self, histogram: LogitHistogram) -> FittedCurve:
        """Places the knots and solves for the values."""
        line = histogram.line
        stored = self._place_first_knots()
        knots = line(stored.astype("float64"))
        if self.has_free_scale:
            # Knots on edges of the bins: η is then a line in each bin, and the histogram is exact.
            knots = quantile_edges(histogram, self.num_knots, balanced=self.knots == "balanced")
            stored = strictly_increasing(line.inverse(knots).astype(self.variable_dtype))
        fitted, solved = fit_ilps(histogram, knots, self.smoothness, self.extrapolation)
        # Round to the dtype of the layer, and separate values that rounding has made equal.
        values = strictly_increasing(fitted.astype(self.variable_dtype))

        def at(logits: np.ndarray) -> np.ndarray:
            return _evaluate_curve(logits, stored, values, self.extrapolation)

        num_rows = histogram.positives + histogram.negatives
        return FittedCurve(solved, at, self._convert_to_weights(stored, values, num_rows))

    def curve(self) -> tuple[np.ndarray, np.ndarray]:
        """Knots and values."""
        return self.get_knots(), self.get_values()

    def get_knots(self) -> np.ndarray:
        """Knots a, shape (K,): increasing logits."""
        return self._read_value("_knots")

    def get_values(self) -> np.ndarray:
        """Values b at the knots, shape (K,), in logits."""
        self.ensure_built()
        return np.asarray(self._compute_values()).copy()

    def get_config(self) -> dict[str, Any]:
        """The constructor arguments as plain Python values."""
        return {
            **super().get_config(),
            "num_knots": self.num_knots,
            "knots": self.knots if isinstance(self.knots, str) else list(self.knots),
            "extrapolation": self.extrapolation,
            "monotonic": self.monotonic,
            "smoothness": self.smoothness,
            "penalty": self.penalty,
        }

    def _add_weight(self, name: str, value: np.ndarray, trainable: bool = True) -> keras.Variable:
        return self.add_weight(name=name, shape=value.shape, initializer=value, trainable=trainable)

    def _is_affine_in_bins(self) -> bool:
        if self.has_free_scale:  # `fit` places the knots on edges
            return True
        # A fixed knot inside of a bin bends the curve there.
        return bool(np.isin(self._place_first_knots(), EDGES.astype(self.variable_dtype)).all())

    def _compute_values(self) -> Tensor:
        if self.monotonic == "penalty":
            return isotonic_values(self._free_values)
        knots = ops.convert_to_tensor(self._knots)
        # Positive slopes, and the sum of their rises from left to right. Raw slopes of 0 give the
        # slope 1. Without its mean, the sum leaves `level` as the mean of the values.
        rises = ops.softplus(self._raw_slopes + _UNIT_SLOPE) * (knots[1:] - knots[:-1])
        heights = ops.concatenate([ops.zeros((1,), rises.dtype), ops.cumsum(rises)])
        # Compilers may reorder additions, so a cumulative sum can decrease by rounding.
        heights = running_maximum(heights)
        return self._level + heights - ops.mean(heights)

    def _place_first_knots(self) -> np.ndarray:
        """The knots of a new layer, in its dtype. Fixed knots never change."""
        knots = sigmoid_knots(self.num_knots) if isinstance(self.knots, str) else self.knots
        return np.asarray(knots, self.variable_dtype)

    def _convert_to_weights(
        self, knots: np.ndarray, values: np.ndarray, num_rows: float
    ) -> dict[str, Any]:
        """The weights of the curve with these knots and values, which must be non-decreasing."""
        weights = {"_knots": knots, "_num_rows": num_rows}
        if self.monotonic == "penalty":
            return {**weights, "_free_values": values}
        slopes = np.diff(values.astype("float64")) / np.diff(knots.astype("float64"))
        # The inverse of softplus, s + log(1 - exp(-s)), is -infinity at a slope s of 0: flat
        # segments get a tiny slope.
        slopes = np.maximum(slopes, 1e-6 * slopes.max())
        raw_slopes = slopes + np.log(-np.expm1(-slopes)) - _UNIT_SLOPE
        level = values.mean(dtype="float64")
        return {**weights, "_raw_slopes": raw_slopes, "_level": level}


def _evaluate_curve(
    logits: np.ndarray, knots: np.ndarray, values: np.ndarray, extrapolation: str
) -> np.ndarray:
    """The curve with these knots and values at logits, float64, as `piecewise_linear`."""
    knots = knots.astype("float64")
    values = values.astype("float64")
    logits = np.clip(logits, *knots[[0, -1]]) if extrapolation == "constant" else logits
    # The segment of each logit; beyond the knots, the first or the last one.
    segment = np.clip(np.searchsorted(knots, logits) - 1, 0, len(knots) - 2)
    slopes = np.diff(values) / np.diff(knots)
    return np.asarray(values[segment] + slopes[segment] * (logits - knots[segment]))


def _check_knots(knots: Sequence[float]) -> list[float]:
    checked = [float(knot) for knot in knots]
    # They must still differ in float32, in which the layer stores them.
    gaps = np.diff(np.asarray(checked, np.float32))
    if len(checked) < 2 or not np.all(np.isfinite(checked)) or not np.all(gaps > 0):
        expected = "at least two finite logits in strictly increasing order"
        raise refused("knots", expected, checked)
    return checked
