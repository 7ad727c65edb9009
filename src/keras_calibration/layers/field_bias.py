"""FieldBias: offsets of field values and curves of numbers, shrunk by empirical Bayes."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import keras
import numpy as np
from keras import ops
from numpy.typing import ArrayLike

from calibration_records._check import integer
from calibration_records._warn import warn
from keras_calibration._ops.numeric_curves import numeric_curves, places_on_knots
from keras_calibration._rows.line import Line
from keras_calibration._rows.rows import Rows
from keras_calibration._solvers.field_index import coinciding
from keras_calibration._solvers.field_offsets import (
    OffsetRows,
    fit_field_offsets,
)
from keras_calibration._solvers.field_spreads import half_cauchy
from keras_calibration._solvers.lasting_level import with_lasting_level
from keras_calibration._solvers.level import NUM_KNOTS, Level, level_column, level_of, line_of_fit
from keras_calibration._solvers.numeric_column import numeric_column
from keras_calibration._solvers.row_folds import weights_in_folds
from keras_calibration._typing import Features, Shape, Tensor
from keras_calibration.layers.effect_tables import (
    FEWEST_KNOTS,
    AdditiveFit,
    knots_of,
    level_of_table,
    padded,
    rounded_numbers,
    table_of_level,
)
from keras_calibration.layers.field_head import FieldHead
from keras_calibration.layers.field_ids import (
    Fields,
    Reads,
    called_features,
    check_features,
    checked_numeric,
)
from keras_calibration.layers.fit import Fit
from keras_calibration.layers.fit_summary import FitSummary
from keras_calibration.layers.fits import columns_to_adapt
from keras_calibration.layers.head import Head
from keras_calibration.layers.histogram_head import HistogramHead
from keras_calibration.layers.logits import as_column, check_column, is_not_finite, scaled_logits
from keras_calibration.layers.posterior import Posterior

# Most knots of all columns together.
_MOST_KNOTS = 1024


@keras.saving.register_keras_serializable(package="keras_calibration")
class FieldBias(FieldHead):
    """A line, an offset per field value and curves: `a η(l) + c + Σ_f u_f[z_f] + Σ_j v_j(x_j)`.

    The offsets of field f have the prior `N(0, s_f²)`, and s_f is estimated from the data
    (empirical Bayes, with a half-Cauchy hyperprior). With several fields of mostly rare values, the
    s_f are then pooled over the fields and scaled by cross-validation. If the base model is right
    in a field, its offsets shrink to about zero. A field value with few rows gets a small offset;
    one with many rows is hardly shrunk. Field values that the fit has not seen, and ids outside the
    vocabulary, get the offset 0, the prior mean. Within a field value the ranking is unchanged.

    The curve of a numeric column is linear between knots at quantiles of the rows, and constant
    outside them. A number with many rows, such as a special code, gets its own knot; so does every
    number of a column with few different ones. The curve is a straight line plus a random walk over
    the knots. Their standard deviations are estimated in the same way, one for the lines of all
    columns and one for each walk. Missing values (NaN) have a separate effect. A column that the
    base model has used well gets a flat curve.

    With `follows_time=True`, `fit` takes the times of the rows and adds a level over time: a random
    walk, and deviations that do not persist, such as those of a day. Both standard deviations are
    estimated. Predictions use the last value of the walk, and need no time.

    `fit` is exact and takes a few passes over the rows. To follow rows that change, fit again to
    the last weeks. The layer starts as the identity. Its weights can also be trained with a model,
    but then nothing shrinks the offsets and curves, and curves keep the knots of the last `fit`.

    Args:
        fields: Field name → number of ids (ids in [0, number)), or a Keras lookup layer
            (`StringLookup`, `IntegerLookup`, `Hashing`) that turns the feature into ids. May be
            empty with `numeric` or `follows_time`.
        calibrator: η, a head that reads no features and that `fit` fits first, for example
            `ILPS()`; None uses the logit itself.
        follows_time: Whether a level follows the time of the rows.
        numeric: Names of real-valued columns that are not in `fields`.
        prior_scale: Median of the half-Cauchy prior on each s, in logits; for the walk of the
            level, a tenth of it.
        num_knots: Largest number of knots of a numeric column. All columns together have at most
            1,024, and at most half of the rows, or 16 each.
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
        The head is fitted, ...(-0.09634)...
        >>> print(head.get_offsets("site").round(2))
        [-0.67  0.67  0.  ]

        Numeric columns, here without fields:

        >>> head = FieldBias({}, numeric=["age"])
        >>> rng = np.random.default_rng(0)
        >>> age = np.where(rng.random(5000) < 0.2, np.nan, rng.uniform(20, 70, 5000))
        >>> labels = rng.random(5000) < np.where(np.isnan(age), 0.5, age / 100)
        >>> summary = head.fit(np.zeros(5000), labels, {"age": age})
        >>> knots, values, missing = head.get_curve("age")
        >>> print(knots[[0, -1]].round(), values[[0, -1]].round(1), round(missing, 1))
        [20. 70.] [-1.   1.1] 0.2

    Reference:
        Breslow and Clayton (1993), *Approximate Inference in Generalized Linear Mixed Models*;
        Gelman (2006), *Prior distributions for variance parameters in hierarchical models*.
    """

    posterior: Posterior  # of the built head

    def __init__(
        self,
        fields: Fields,
        calibrator: Head | None = None,
        numeric: Sequence[str] = (),
        prior_scale: float = 1.0,
        num_knots: int = 64,
        follows_time: bool = False,
        **kwargs: Any,
    ) -> None:
        self.numeric = checked_numeric(numeric, fields or {})
        if num_knots != 64 and not self.numeric:
            warn("Argument `num_knots` has no effect without `numeric` columns.")
        self._follows_time = bool(follows_time)
        super().__init__(fields or {}, calibrator, prior_scale, **kwargs)
        self.num_knots = integer("num_knots", num_knots, 2)
        self.effect_names = tuple(self.fields)

    def reads(self) -> Reads:
        """Its fields and numeric columns."""
        return Reads(self.fields, self.numeric)

    def call(self, logits: Tensor, features: Features | None = None) -> Tensor:
        """Calibrated logits (batch, 1)."""
        check_features(features, self.feature_names, type(self).__name__)
        curve = self._apply_curve(ops.cast(as_column(logits), self.compute_dtype))
        calibrated = scaled_logits(curve, self._slope) + self._bias
        if self.fields:
            calibrated = calibrated + self._sum_at_values(self._offsets, features)[:, None]
        if self.numeric:
            calibrated = calibrated + self._sum_at_numbers(self._curves, features)[:, None]
        return calibrated

    @property
    def follows_time(self) -> bool:
        """Whether `fit` takes the times of the rows."""
        return self._follows_time

    def level(self) -> Level | None:
        """The level over time of the last fit; None without `follows_time`, and before a fit."""
        if not self._follows_time or not self.built:
            return None
        return level_of_table(np.asarray(self.posterior["level"]))

    def effects(self, features: Features) -> Tensor:
        """Offsets of the field values of each row, (batch, fields), in logits; 0 if unknown."""
        self.ensure_built()
        columns = called_features(features, self.fields, self.reads(), type(self).__name__)
        # `take` without an axis flattens first, which makes the gradient dense.
        offsets = ops.take(ops.convert_to_tensor(self._offsets), self._find_places(columns))
        return ops.transpose(offsets)

    def logit_standard_deviation(self, logits: Tensor, features: Features | None = None) -> Tensor:
        """Posterior standard deviation of the calibrated logit, (batch, 1).

        Its square is the sum of variances, each conditional on the rest: of the line,
        `|(η, 1) F|²`; of the offsets and curves at the row; and of the shape of η, the part of its
        posterior that a line does not explain. (The line is fitted with the offsets.) The variance
        of an offset is averaged over the posterior of the spread s_f: a field value without rows
        has `E[s_f²]`, one with many rows a small variance.

        In simulations with one field, 95 % intervals cover the truth in 93 to 97 % of the cases,
        and in up to 100 % if the rows hardly determine the spread. With one or three numeric
        columns, they cover it in 93 to 99 %, in the far tails of a column in 91 to 99 %
        (`benchmarks/interval_coverage.py`). The spreads of several fields are often estimated too
        small. Then the intervals of unknown values are too narrow.
        """
        # η without a posterior: its error is unknown, so there is no interval.
        if self.calibrator is not None and not self._count_curve_columns():
            return super().logit_standard_deviation(logits, features)
        check_features(features, self.feature_names, type(self).__name__)
        check_column(logits.shape, type(self).__name__, "logits")
        column = ops.reshape(ops.cast(logits, self.compute_dtype), (-1,))
        line = self._apply_curve(column)
        # An infinite logit has no finite error; a large one would be infinite times 0.
        line = ops.where(is_not_finite(line), 0.0, line)
        factor = self.posterior["factor"]
        variance = ops.sum(ops.square(line[:, None] * factor[0] + factor[1]), axis=1)
        if self.fields:
            variance = variance + self._sum_at_values(self.posterior["offsets"], features)
        if self.numeric:
            variance = variance + self._sum_at_numbers(self.posterior["curves"], features)
        if self._follows_time:
            variance = variance + self.posterior["last"]
        if self.calibrator is not None:
            # The factor already has the variance of a line in η. Add what is left of the spread of
            # η after the part that a line in η explains, scaled by the slope.
            line_spread = self.posterior["curve"]
            shape = self.calibrator.posterior_spread(column) - line_spread[0]
            shape = self._slope * (shape - line[:, None] * line_spread[1])
            variance = variance + ops.sum(ops.square(shape), axis=1)
        return ops.sqrt(variance)[:, None]

    def adapt(
        self,
        logits: ArrayLike,
        labels: ArrayLike | None = None,
        features: Mapping[str, ArrayLike] | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> None:
        """Adapts η, and places the knots of the numeric columns; `fit` does so too."""
        super().adapt(logits, labels, features, sample_weight)
        self.ensure_built()
        if self.numeric:
            columns, counted = columns_to_adapt(self, logits, features, sample_weight)
            knots = self._place_knots(self._read_numbers(columns), counted.weights)
            self._knots.assign(padded(knots, self._limit_knots()))

    def get_offsets(self, field: str) -> np.ndarray:
        """Offsets u of a field's values, shape (num_values,), in logits."""
        rows = self._find_rows(field)  # checks the name, also before the layer is built
        return np.asarray(self._offsets)[rows]

    def get_curve(self, name: str) -> tuple[np.ndarray, np.ndarray, float]:
        """The curve v of a numeric column: knots (k,), values (k,), the value of missing ones."""
        number = self.numeric.index(name)
        # Copies of the last knot fill up the table.
        knots = np.unique(self._read_value("_knots")[number])
        values = self._read_value("_curves")[number]
        return knots, values[: len(knots)], float(values[-1])

    def get_config(self) -> dict[str, Any]:
        """The constructor arguments as plain Python values."""
        return {
            **super().get_config(),
            "numeric": list(self.numeric),
            "num_knots": self.num_knots,
            "follows_time": self._follows_time,
        }

    def _add_weights(self) -> None:
        self._slope = self.add_weight(name="slope", shape=(), initializer="ones")
        self._bias = self.add_weight(name="bias", shape=(), initializer="zeros")
        shapes: dict[str, Shape] = {"factor": (2, 2)}
        zeros = functools.partial(self.add_weight, initializer="zeros")
        if self.fields:
            # One table for all fields; the last row of each field is "other".
            shapes["offsets"] = (sum(number + 1 for number in self.num_values.values()),)
            self._offsets = zeros(name="offsets", shape=shapes["offsets"])
        if number := len(self.numeric):
            num_knots = self._limit_knots()
            self._knots = zeros(name="numeric_knots", shape=(number, num_knots), trainable=False)
            # The last value of each column is that of missing values.
            shapes["curves"] = number, num_knots + 1
            self._curves = zeros(name="curves", shape=shapes["curves"])
        self._deviations = zeros(
            name="deviations", shape=(len(self.feature_names),), trainable=False
        )
        if num_columns := self._count_curve_columns():
            shapes["curve"] = (2, num_columns)
        if self._follows_time:
            shapes |= {"level": (4, NUM_KNOTS), "last": ()}
        self.posterior = Posterior(self, **shapes)

    def _sum_at_values(self, table: Tensor, features: Features | None) -> Tensor:
        """Sums over the fields of the entry of each row's value in the table, (batch,)."""
        # `take` without an axis flattens first, which makes the gradient dense.
        table = ops.convert_to_tensor(table)
        return ops.sum(ops.take(table, self._find_places(features)), axis=0)

    def _sum_at_numbers(self, curves: Tensor, features: Features | None) -> Tensor:
        """Sums of the curves (columns, K + 1) at the numbers of each row (batch,)."""
        numbers = [(features or {})[name] for name in self.numeric]
        columns = [ops.cast(ops.reshape(column, (-1,)), self.compute_dtype) for column in numbers]
        places = places_on_knots(ops.stack(columns), ops.convert_to_tensor(self._knots))
        return ops.sum(numeric_curves(places, curves), axis=0)

    def _fit_effects(
        self, rows: Rows, curve: np.ndarray, line: Line, inner: Fit | None, start: Fit | None
    ) -> Fit:
        ids = self._find_ids(rows.features)
        numbers = self._read_numbers(rows.features)
        knots = self._place_knots(numbers, rows.weights)
        columns = [numeric_column(*pair) for pair in zip(numbers, knots, strict=True)]
        level = level_column(np.asarray(rows.times), rows.weights) if self._follows_time else None
        with_level = columns if level is None else [*columns, level[1]]
        data = OffsetRows(curve, rows.labels, rows.weights, ids=ids, columns=with_level)
        # Only for the fit to all rows: fits to a part of them get a `start`.
        if start is None:
            self._warn_of_coinciding(ids)
        # Draw folds by the original columns, not by computed ones: equal rows are then equal to the
        # last digit, and get the same folds as one row with a count.
        given = enumerate([*ids, *numbers])
        seen = replace(rows, features={str(number): column for number, column in given})
        # A mixed model, by penalized quasi-likelihood (a Laplace approximation). The folds are for
        # several fields, whose standard deviations may get a factor by cross-validation.
        solved = fit_field_offsets(
            data,
            list(self.num_values.values()),
            half_cauchy(self.prior_scale),
            functools.partial(weights_in_folds, rows=seen),
            None if start is None else start.start,
        )
        fit = AdditiveFit(solved, knots, line, inner)
        kept: dict[str, Any] = {}
        if level is not None:
            # Serve only the part of the level that lasts. Then map the logits, so that the mean
            # prediction stays right although the deviations to come are unknown.
            mapped = with_lasting_level(solved, data)
            mapped = mapped.mapped(line_of_fit(mapped, data))
            shown = level_of(*level, mapped)
            fit = replace(fit, solved=mapped, last=float(mapped.curves[-1][-1]))
            kept["level"] = table_of_level(shown)
            if mapped.posterior is not None:
                # Deviations that do not persist also occur in the future. Nobody knows them then,
                # so their variance is added to that of the level.
                kept["last"] = mapped.posterior.curve_variances[-1][-1] + shown.noise**2
        # The fit gave each row the level of its time; a prediction uses the last one, and so does
        # the summary.
        predicted = fit.solved.logits(replace(data, columns=columns)) + fit.last
        posterior = fit.posterior(data, rows, self._limit_knots())

        def logits(rows: Rows) -> np.ndarray:
            features = rows.features
            return fit.logits(rows, self._find_ids(features), self._read_numbers(features))

        def effects(rows: Rows) -> np.ndarray:
            return fit.offsets(self._find_ids(rows.features))

        return Fit(
            FitSummary.of(rows, predicted, solved.num_iterations, solved.converged),
            logits,
            fit.weights(self._limit_knots()),
            parts=() if inner is None else (inner,),
            posterior=posterior and {**posterior, **kept},
            effects=effects if self.fields else None,
            start=solved.spreads,
        )

    def _warn_of_coinciding(self, ids: Sequence[np.ndarray]) -> None:
        for pair in coinciding(dict(zip(self.fields, ids, strict=True))):
            warn(
                f"On the rows of the fit, each value of the field {pair[0]!r} always occurs with "
                f"the same value of {pair[1]!r}: one may have all of the effect, and intervals of "
                "other pairs of values are too narrow. Leave one of these fields out."
            )

    def _limit_knots(self) -> int:
        """The largest number of knots of a numeric column."""
        return min(self.num_knots, max(_MOST_KNOTS // max(len(self.numeric), 1), FEWEST_KNOTS))

    def _place_knots(
        self, numbers: Sequence[np.ndarray], weights: np.ndarray | None
    ) -> list[np.ndarray]:
        return knots_of(numbers, weights, self._limit_knots()) if numbers else []

    def _read_numbers(self, features: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        return rounded_numbers((features[name] for name in self.numeric), self.variable_dtype)

    def _count_curve_columns(self) -> int:
        """Number of columns of the posterior of η; 0 if η has none."""
        curve = self.calibrator
        return curve.num_posterior_columns if isinstance(curve, HistogramHead) else 0
