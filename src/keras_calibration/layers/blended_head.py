"""BlendedHead: a weighted mean of the calibrated logits of several heads, and a bias."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import keras
import numpy as np
from keras import ops

from calibration_records._check import refused
from keras_calibration._rows.rows import Rows
from keras_calibration._solvers.row_folds import fold_of_rows
from keras_calibration._solvers.total_bias import bias_of_mean
from keras_calibration._typing import Features, Shape, Tensor
from keras_calibration.layers.cross_fitting import cross_fitted, enough_for, parts_of
from keras_calibration.layers.fit import Fit
from keras_calibration.layers.fit_settings import FitSettings
from keras_calibration.layers.fit_summary import FitSummary
from keras_calibration.layers.head import Head
from keras_calibration.layers.logits import as_column

_ROUNDING = 1e-6
_NUM_FOLDS = 3


@keras.saving.register_keras_serializable(package="keras_calibration")
class BlendedHead(Head):
    """A weighted mean of heads and a bias: `Σ_k v_k η_k(l, x) + (1 - Σ_k v_k) l + c`.

    Heads that make different errors predict better together: `FieldBias` shrinks its offsets by
    the spread that it estimates from the data, `NeuralCalibration` learns how features interact.
    The blend starts as the identity if its parts do. It accepts the logits, one per row or one per
    class, that all its heads accept. A blend has no interval: its heads and their weights are
    fitted to the same rows, so their errors depend on each other, and no fit tells how.

    A direct fit fits each head, and then the bias c, one number or one for each class. Where rates
    are low, a mean of logits has a lower mean probability than its parts. With c, the predicted
    total is the observed one: `Σ w σ(η) = Σ w y`. Flexible heads predict the rows of their fit too
    well, so c comes from cross-fitted predictions if there are enough rows for folds. Heads that
    follow time predict the level to come, not the total of the rows: their mean gets the total of
    its parts.

    Args:
        heads: Heads with or without features, at least one.
        head_weights: v, a number above 0 for each head, with a sum of at most 1; the rest is the
            weight of the uncalibrated logit. None for equal weights with the sum 1.
        **kwargs: Keyword arguments of every Keras layer (`name`, `dtype`, `trainable`).

    Call arguments:
        logits: Uncalibrated logits (batch,) or (batch, 1), or class logits (batch, K).
        features: A mapping of feature names to tensors with `batch` rows.

    Raises:
        ValueError: If there is no head, one is not a `Head`, or the weights are invalid.

    Example:
        >>> import numpy as np
        >>> from keras_calibration.layers import FieldBias, PlattScaling
        >>> head = BlendedHead([FieldBias({"site": 3}), PlattScaling()], head_weights=[0.25, 0.75])
        >>> print(head(np.array([0.5, -1.0]), {"site": np.array([0, 2])}).numpy())
        [[ 0.5]
         [-1. ]]

    Reference:
        Breiman (1996), *Stacked regressions*; Ranjan and Gneiting (2010), *Combining probability
        forecasts*.
    """

    draws_by_chance = True  # the folds of the bias

    def __init__(
        self, heads: Sequence[Head], head_weights: Sequence[float] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.heads = list(heads)
        if not self.heads or not all(isinstance(head, Head) for head in self.heads):
            raise refused("heads", "a list of at least one instance of `Head`", heads)
        number = len(self.heads)
        shares = [1 / number] * number if head_weights is None else [*map(float, head_weights)]
        positive = len(shares) == number and all(share > 0 for share in shares)
        if not (positive and sum(shares) <= 1 + _ROUNDING):
            expected = (
                f"{number} numbers above 0, one for each head, with a sum of at most 1, or None"
            )
            raise refused("head_weights", expected, head_weights)
        self.head_weights = shares

    def parts(self) -> list[Head]:
        """The heads."""
        return self.heads

    def build(
        self, logits_shape: Shape | None = None, features_shape: Mapping[str, Shape] | None = None
    ) -> None:
        """Builds the heads."""
        # (batch,) becomes (batch, 1); (batch, K) stays.
        columns_shape = (*(logits_shape or (None,)), 1)[:2]
        for head in self.heads:
            head.ensure_built(columns_shape, features_shape)
        self._bias = self.add_weight(name="bias", shape=columns_shape[1:], initializer="zeros")
        self.built = True

    def call(self, logits: Tensor, features: Features | None = None) -> Tensor:
        """Calibrated logits (batch, 1) or (batch, K)."""
        columns = as_column(logits)
        parts = zip(self.head_weights, self.heads, strict=True)
        terms = [share * head(columns, features) for share, head in parts]
        rest = 1 - sum(self.head_weights)
        # If the weights add up to 1 except for rounding, leave the logit out.
        if rest > _ROUNDING:
            terms.append(rest * ops.cast(columns, self.compute_dtype))
        return sum(terms, self._bias)

    def logit_standard_deviation(self, logits: Tensor, features: Features | None = None) -> Tensor:
        """Raises a `ValueError`: a blend has no interval."""
        raise ValueError(
            f"{type(self).__name__} has no interval, because its heads and their weights are "
            "fitted to the same rows: their errors depend on each other, and no fit tells how. "
            f"Received: a blend of {', '.join(type(head).__name__ for head in self.heads)}. Use "
            "one head that has intervals, FieldBias or a calibrator such as ILPS; with "
            '`calibrate`, for example methods="field_bias".'
        )

    @property
    def bias(self) -> np.ndarray:
        """The bias c, (1,) or of K classes (K,), in logits."""
        return self._read_value("_bias")

    def fitted(self, rows: Rows, settings: FitSettings, start: Fit | None = None) -> Fit:
        """Fits each head to the rows by its direct fit, and then the bias."""
        fits = [head.fitted(rows, settings) for head in self.heads]
        fold = None
        # Folds at random would let a head that follows time see the future of the rows it scores.
        if not self.follows_time and enough_for(_NUM_FOLDS, rows):
            folds = _NUM_FOLDS if settings.folds is None else settings.folds
            fold = fold_of_rows(folds, rows, settings.seed)
            # The total must be right on new rows, so the bias comes from fits that did not see the
            # row.
            scored = parts_of(fold, range(int(fold.max()) + 1))
            # Fold numbers of all rows do not fit a part of them: each head draws its own folds.
            settings = replace(settings, folds=None)
            with warnings.catch_warnings():  # the fit to all rows has warned
                warnings.simplefilter("ignore")
                parts = [
                    cross_fitted(head, rows, scored, fit, settings).logits
                    for head, fit in zip(self.heads, fits, strict=True)
                ]
        else:
            parts = [fit.logits(rows) for fit in fits]
        # The uncalibrated logit first: it has the rest of the weight.
        columns = np.stack([rows.logits, *parts])
        bias = bias_of_mean(self._list_shares(), columns, rows, self.follows_time)
        fit = self.blend_of(rows, fits, bias)
        if fold is None:
            return fit
        logits = np.tensordot(self._list_shares(), columns, axes=1) + bias
        return replace(fit, summary=replace(fit.summary, cross_fitted_logits=logits))

    def blend_of(self, rows: Rows, fits: Sequence[Fit], bias: np.ndarray) -> Fit:
        """The fit to rows that has these fits of the heads, and this bias c, (1,) or (K,)."""

        def logits(rows: Rows) -> np.ndarray:
            columns = np.stack([rows.logits, *(fit.logits(rows) for fit in fits)])
            return np.asarray(np.tensordot(self._list_shares(), columns, axes=1) + bias)

        summary = FitSummary.of(
            rows,
            logits(rows),
            num_iterations=sum(fit.summary.num_iterations for fit in fits),
            converged=all(fit.summary.converged for fit in fits),
        )
        return Fit(summary, logits, {"_bias": bias}, tuple(fits))

    def _list_shares(self) -> np.ndarray:
        """The weights of the logit and of each head."""
        return np.array([1 - sum(self.head_weights), *self.head_weights])

    def get_config(self) -> dict[str, Any]:
        """The constructor arguments as plain Python values."""
        heads = keras.saving.serialize_keras_object(self.heads)
        return {**super().get_config(), "heads": heads, "head_weights": self.head_weights}
