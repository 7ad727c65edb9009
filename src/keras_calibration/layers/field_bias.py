"""FieldBias: one offset per field value, shrunk by empirical Bayes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Self

import keras
import numpy as np
from keras import ops
from numpy.typing import ArrayLike

from keras_calibration._columns import select_features
from keras_calibration._typing import Features, Shape, Tensor
from keras_calibration.layers.calibrator import check_calibrator
from keras_calibration.layers.field_ids import (
    Fields,
    checked_fields,
    deserialize_fields,
    ids_of_field,
    serialize_fields,
    table_rows,
    table_starts,
    vocabulary_size,
)
from keras_calibration.layers.fit_settings import FitSettings
from keras_calibration.layers.fit_summary import FitSummary
from keras_calibration.layers.head import Head
from keras_calibration.layers.head_logits import head_logits
from keras_calibration.layers.logits import as_column, check_column, scaled_logits
from keras_calibration.layers.streaming_calibrator import StreamingCalibrator
from keras_calibration.solvers.data_checks import Rows, are_counts
from keras_calibration.solvers.field_offsets import FieldCurves, FieldOffsets, fit_field_offsets
from keras_calibration.solvers.logit_histogram import LARGEST_LOGIT, bin_numbers


@keras.saving.register_keras_serializable(package="keras_calibration")
class FieldBias(Head):
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

    def __init__(
        self,
        fields: Fields,
        calibrator: Head | None = None,
        prior_scale: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.fields = checked_fields(fields)
        self.calibrator = calibrator
        self.prior_scale = float(prior_scale)
        self._check_arguments()

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The features that the head reads: its fields."""
        return tuple(self.fields)

    def field_readers(self) -> list[FieldBias]:
        """The head itself."""
        return [self]

    @property
    def has_direct_fit(self) -> bool:
        """Whether η has a direct fit, or there is no η."""
        return self.calibrator is None or self.calibrator.has_direct_fit

    def build(
        self, logits_shape: Shape | None = None, features_shape: Mapping[str, Shape] | None = None
    ) -> None:
        """Creates the weights; the layer starts as the identity."""
        self._num_values = {name: vocabulary_size(v) for name, v in self.fields.items()}
        if self.calibrator is not None and not self.calibrator.built:
            self.calibrator.build((None, 1))
        self._add_weights()
        self.built = True

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
        # `take` without an axis flattens first, which makes the gradient dense.
        offsets = ops.take(ops.convert_to_tensor(self._offsets), self._places(features))
        return calibrated + ops.sum(offsets, axis=0)[:, None]

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
            of_line = ops.convert_to_tensor(self._posterior_curve)
            shape = self.calibrator.posterior_spread(column) - of_line[0]
            shape = self._slope * (shape - line[:, None] * of_line[1])
            variance = variance + ops.sum(ops.square(shape), axis=1)
        return ops.sqrt(variance)[:, None]

    def fit_rows(
        self,
        rows: Rows,
        features: Mapping[str, np.ndarray],
        settings: FitSettings,
        verbose: int,
    ) -> FitSummary:
        """Fits η, then the slope, bias, offsets and their standard deviations on top of it."""
        places = ops.convert_to_numpy(self._places(features))
        ids = list(places - self._starts()[:, None])
        curve = rows.logits
        if self.calibrator is not None:
            self.calibrator.fit_rows(rows, {}, settings, verbose)
            curve = head_logits(self.calibrator, rows.logits, {})
        fit = self._fit_ids(Rows(curve, rows.labels, rows.weights), ids)
        if isinstance(fit, FieldOffsets):
            self._keep_posterior_of(fit, rows)
        return self.summary_of(rows, features, fit.num_iterations, fit.converged)

    def _fit_ids(self, rows: Rows, ids: list[np.ndarray]) -> FieldOffsets | FieldCurves:
        """Fits to rows whose logits are η and to the ids of each field, and assigns the weights."""
        fit = fit_field_offsets(
            rows, ids, list(self._num_values.values()), half_cauchy(self.prior_scale)
        )
        self._slope.assign(fit.slope)
        self._bias.assign(fit.bias)
        self._offsets.assign(np.concatenate([np.append(u, 0.0) for u in fit.offsets]))
        self._deviations.assign(fit.deviations)
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

    def num_values(self, field: str) -> int:
        """Number of values of a field, which is also the id of "other"."""
        return self._num_values[field]

    def field_ids(self, features: Features, field: str) -> Tensor:
        """Ids (batch,) of a field, int32; the id "other" is the number of its values."""
        return ids_of_field(features[field], self.fields[field], self._num_values[field])

    def get_offsets(self, field: str) -> np.ndarray:
        """Offsets u of a field's values, shape (num_values,), in logits."""
        if not self.built:
            self.build()
        start = self._starts()[list(self.fields).index(field)]
        return ops.convert_to_numpy(self._offsets)[start : start + self._num_values[field]]

    def get_deviations(self) -> dict[str, float]:
        """Field name → s, the standard deviation of its offsets in logits; 0 before `fit`."""
        if not self.built:
            self.build()
        deviations = ops.convert_to_numpy(self._deviations).reshape(len(self.fields), -1)[:, 0]
        return dict(zip(self.fields, map(float, deviations), strict=True))

    def get_config(self) -> dict[str, Any]:
        """The constructor arguments as plain Python values."""
        calibrator = self.calibrator
        return {
            **super().get_config(),
            "fields": serialize_fields(self.fields),
            "calibrator": calibrator and keras.saving.serialize_keras_object(calibrator),
            "prior_scale": self.prior_scale,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Creates the layer from its `get_config`."""
        calibrator = config["calibrator"]
        parts = {
            "fields": deserialize_fields(config["fields"]),
            "calibrator": calibrator and keras.saving.deserialize_keras_object(calibrator),
        }
        return cls(**{**config, **parts})

    def _curve(self, logits: Tensor) -> Tensor:
        return logits if self.calibrator is None else self.calibrator(logits)

    def _num_curve_columns(self) -> int:
        """Number of columns of the posterior of η; 0 if η has none."""
        curve = self.calibrator
        return curve.num_posterior_columns if isinstance(curve, StreamingCalibrator) else 0

    def _starts(self) -> np.ndarray:
        """Index of each field's first offset."""
        return table_starts(self._num_values.values())

    def _places(self, features: Features | None) -> Tensor:
        """Indices of the offsets of each row, shape (fields, batch), int32."""
        reader, features = type(self).__name__, {} if features is None else features
        for name, values in select_features(features, self.fields, reader).items():
            check_column(values.shape, reader, f"feature {name!r}")
        return table_rows(features, self.fields, self._num_values)

    def _check_arguments(self) -> None:
        if not self.fields:
            raise ValueError(
                f"Argument `fields` of {type(self).__name__} must hold at least one field. "
                'Received: fields={}. Pass fields={"site_id": 5000}, for example.'
            )
        check_calibrator(self.calibrator)
        if not 0 < self.prior_scale < float("inf"):
            raise ValueError(
                "Argument `prior_scale` must be a finite number above 0. "
                f"Received: prior_scale={self.prior_scale!r}."
            )


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


def half_cauchy(scale: float) -> Callable[[ArrayLike], np.ndarray]:
    """Log density of the half-Cauchy prior on a standard deviation.

    Example:
        >>> half_cauchy(1.0)([1.0]).round(4)  # log(1 / π)
        array([-1.1447])
    """
    constant = math.log(2 / (math.pi * scale))
    return lambda deviations: constant - np.log1p((np.asarray(deviations, "float64") / scale) ** 2)
