"""FieldBias: one offset per field value, shrunk by empirical Bayes."""

from __future__ import annotations

import keras
import numpy as np
from keras import ops

from keras_calibration._typing import Features, Shape, Tensor
from keras_calibration.layers.field_head import FieldHead
from keras_calibration.layers.field_ids import called_features
from keras_calibration.layers.logits import as_column, check_column, scaled_logits
from keras_calibration.layers.streaming_calibrator import StreamingCalibrator
from keras_calibration.solvers.data_checks import Rows, are_counts
from keras_calibration.solvers.field_offsets import FieldOffsets, fit_field_offsets
from keras_calibration.solvers.field_spreads import half_cauchy
from keras_calibration.solvers.logit_histogram import LARGEST_LOGIT, bin_numbers


@keras.saving.register_keras_serializable(package="keras_calibration")
class FieldBias(FieldHead):
    """A straight line plus one offset per field value: `a η(l) + c + Σ_f u_f[z_f]`.

    The offsets of field f have the prior `N(0, s_f²)`, and s_f is estimated from the data
    (empirical Bayes, with a half-Cauchy hyperprior). With several fields of mostly rare values, the
    s_f are then pooled over the fields and scaled by cross-validation. If the base model is right
    in a field, its offsets shrink to about zero. A field value with few rows gets a small offset;
    one with many rows keeps its own. A value not seen in the fit, and any id outside the
    vocabulary, gets the offset 0, the prior mean. Within a field value the ranking is unchanged.

    `fit` is exact and takes a few passes over the rows. The layer starts as the identity. Its
    weights can also be trained with a model, but then nothing shrinks the offsets.

    Args:
        fields: Field name → number of ids (ids in [0, number)), or a Keras lookup layer
            (`StringLookup`, `IntegerLookup`, `Hashing`) that turns the feature into ids.
        calibrator: η, a head that reads no features and that `fit` fits first, for example
            `ILPS()`; None uses the logit itself.
        prior_scale: Median of the half-Cauchy prior on each s_f, in logits.
        **kwargs: Keyword arguments of every Keras layer (`name`, `dtype`, `trainable`).

    Call arguments:
        logits: Uncalibrated logits (batch,) or (batch, 1).
        features: A mapping of feature names to tensors (batch,) or (batch, 1). Other features are
            ignored.

    Raises:
        ValueError: If an argument is out of its range, or a feature is missing when called.

    Example:
        >>> head = FieldBias({"site": 3})
        >>> site = np.repeat([0, 1], 500)
        >>> labels = np.arange(1000) % 10 < np.where(site == 0, 2, 5)
        >>> print(head.fit(np.zeros(1000), labels, {"site": site}))
        1,000 rows: log loss 0.693147 before, 0.596811 after (-0.096337); converged in 5 steps
        >>> print(head.get_offsets("site").round(2))
        [-0.67  0.67  0.  ]

    Reference:
        Breslow and Clayton (1993), *Approximate Inference in Generalized Linear Mixed Models*;
        Gelman (2006), *Prior distributions for variance parameters in hierarchical models*.
    """

    def _add_weights(self) -> None:
        self._slope = self.add_weight(name="slope", shape=(), initializer="ones")
        self._bias = self.add_weight(name="bias", shape=(), initializer="zeros")
        # One table for all fields; the last row of each field is "other".
        length = sum(number + 1 for number in self._num_values.values())
        self._offsets = self.add_weight(name="offsets", shape=(length,), initializer="zeros")
        self._deviations = self.add_weight(
            name="deviations", shape=(len(self.fields),), initializer="zeros", trainable=False
        )
        shapes: dict[str, Shape] = {"factor": (2, 2), "offsets": (length, 3)}
        if num_columns := self._num_curve_columns():
            shapes["curve"] = (2, num_columns)
        self.add_posterior(**shapes)

    def call(self, logits: Tensor, features: Features | None = None) -> Tensor:
        """Calibrated logits (batch, 1)."""
        curve = self._curve(ops.cast(as_column(logits), self.compute_dtype))
        calibrated = scaled_logits(curve, self._slope) + self._bias
        return calibrated + ops.sum(self._offsets_of(features), axis=0)[:, None]

    def effects(self, features: Features) -> Tensor:
        """Offsets `u_f[z_f]` of the values of each row.

        Args:
            features: A mapping of feature names to tensors or arrays (batch,) or (batch, 1).

        Returns:
            A tensor (batch, number of fields) in the order of `fields`, in logits. The offset of a
            value outside the vocabulary is 0, as are all of them before a fit.
        """
        self._ensure_built()
        reader = type(self).__name__
        columns = called_features(features, self.feature_names, self.field_readers(), reader)
        return ops.transpose(self._offsets_of(columns))

    def logit_standard_deviation(self, logits: Tensor, features: Features | None = None) -> Tensor:
        """Posterior standard deviation of the calibrated logit, (batch, 1).

        Its square is `Σ_f t_f[z_f] + |((η, 1) - Σ_f r_f[z_f])ᵀ F|²` (`solvers.field_posterior`),
        plus the variance of the shape of η: what is left of its posterior after its line, which is
        fitted again with the offsets, is taken out. t is averaged over the posterior of the spreads
        s_f, so that it holds what is not known of them: a value without rows has the variance
        `t = E[s_f²]`, one with many rows a small t.

        In simulations with one field, 95 % intervals hold the truth in 94 to 97 % where the spread
        matters, in up to 100 % where it is so small, or the values so few, that the fit knows
        little of it, and in about 92 % where it is 1 with two positives a value
        (`benchmarks/levels.py`). With several fields, t is the variance of an offset given those of
        the other fields: too large for values that always occur together, by at most the number of
        fields, and a little too small beside an unknown value.
        The spreads of several fields are often found too small, and the intervals of unknown values
        are then too narrow.

        Args:
            logits: Uncalibrated logits (batch,) or (batch, 1).
            features: A mapping of feature names to tensors (batch,) or (batch, 1).

        Returns:
            A tensor (batch, 1), in logits.
        """
        if self.calibrator is not None and not self._num_curve_columns():
            return super().logit_standard_deviation(logits, features)
        check_column(logits.shape, type(self).__name__, "logits")
        column = ops.reshape(ops.cast(logits, self.compute_dtype), (-1,))
        line = ops.clip(self._curve(column), -LARGEST_LOGIT, LARGEST_LOGIT)
        table = ops.convert_to_tensor(self._posterior_offsets)
        rows = ops.sum(ops.take(table, self._places(features), axis=0), axis=0)
        factor = ops.convert_to_tensor(self._posterior_factor)
        spread = (line - rows[:, 1])[:, None] * factor[0] + (1.0 - rows[:, 2])[:, None] * factor[1]
        variance = rows[:, 0] + ops.sum(ops.square(spread), axis=1)
        if self.calibrator is not None:
            line_spread = ops.convert_to_tensor(self._posterior_curve)
            shape = self.calibrator.posterior_spread(column) - line_spread[0]
            shape = self._slope * (shape - line[:, None] * line_spread[1])
            variance = variance + ops.sum(ops.square(shape), axis=1)
        return ops.sqrt(variance)[:, None]

    def _offsets_of(self, features: Features | None) -> Tensor:
        """Offsets of the values of each row, shape (fields, batch)."""
        # `take` without an axis flattens first, which makes the gradient dense.
        return ops.take(ops.convert_to_tensor(self._offsets), self._places(features))

    def _fit_table(self, rows: Rows, curve: np.ndarray, ids: list[np.ndarray]) -> FieldOffsets:
        fit = fit_field_offsets(
            Rows(curve, rows.labels, rows.weights),
            ids,
            list(self._num_values.values()),
            half_cauchy(self.prior_scale),
        )
        self._slope.assign(fit.slope)
        self._bias.assign(fit.bias)
        self._offsets.assign(np.concatenate([np.append(u, 0.0) for u in fit.offsets]))
        self._deviations.assign(fit.deviations)
        self._keep_posterior_of(fit, rows)
        return fit

    def _keep_posterior_of(self, fit: FieldOffsets, rows: Rows) -> None:
        """Assigns the posterior of a fit to these rows."""
        found = fit.posterior
        tables = [
            np.vstack([np.column_stack([variances, responses]), [spread**2, 0.0, 0.0]])
            for variances, responses, spread in zip(
                found.variances, found.responses, found.spreads, strict=True
            )
        ]
        values = {"factor": found.factor, "offsets": np.concatenate(tables)}
        calibrator = self.calibrator
        if isinstance(calibrator, StreamingCalibrator) and calibrator.num_posterior_columns:
            values["curve"] = _line_of_spread(calibrator, rows.logits, found.curvature)
        self.keep_posterior(are_counts(rows.weights), **values)

    def get_offsets(self, field: str) -> np.ndarray:
        """Offsets u of a field's values, shape (num_values,), in logits."""
        self._ensure_built()
        start = self._starts()[list(self.fields).index(field)]
        return ops.convert_to_numpy(self._offsets)[start : start + self._num_values[field]]

    def _num_curve_columns(self) -> int:
        """Number of columns of the posterior of η; 0 if η has none."""
        curve = self.calibrator
        return curve.num_posterior_columns if isinstance(curve, StreamingCalibrator) else 0


def _line_of_spread(
    calibrator: StreamingCalibrator, logits: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """Weighted least squares of the posterior spread of η by 1 and η, (2, p)."""
    # Within a bin, η and its spread are straight lines, or nearly.
    bins = bin_numbers(logits)
    totals = np.bincount(bins, weights)
    filled = totals > 0
    means = np.bincount(bins, weights * logits)[filled] / totals[filled]
    curve = ops.convert_to_numpy(calibrator(means)).astype("float64")
    columns = np.stack([np.ones(len(means)), np.clip(curve, -LARGEST_LOGIT, LARGEST_LOGIT)])
    weighted = columns * totals[filled]
    spread = ops.convert_to_numpy(calibrator.posterior_spread(means)).astype("float64")
    return np.linalg.lstsq(weighted @ columns.T, weighted @ spread, rcond=None)[0]
