"""FieldBias: offsets of field values and curves of numbers, shrunk by empirical Bayes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import keras
import numpy as np
from keras import ops
from numpy.typing import ArrayLike

from calibration_records._check import integer
from calibration_records._columns import names_of
from calibration_records._progress import ProgressBar
from keras_calibration._ops.numeric_curves import numeric_curves, places_on_knots
from keras_calibration._rows.array_store import IN_MEMORY, ArrayStore
from keras_calibration._rows.checks import check_both_classes
from keras_calibration._rows.line import Line
from keras_calibration._rows.rows import Rows
from keras_calibration._rows.stored_rows import StoredRows
from keras_calibration._rows.weights import are_counts
from keras_calibration._solvers.field_offsets import (
    FieldOffsets,
    OffsetRows,
    Spreads,
    fit_field_offsets,
)
from keras_calibration._solvers.field_posterior import CURVE_RANK
from keras_calibration._solvers.field_spreads import half_cauchy
from keras_calibration._solvers.field_update import Known, update_field_offsets
from keras_calibration._solvers.knots import separate_quantile_knots
from keras_calibration._solvers.level import (
    NO_LEVEL,
    Level,
    LevelColumn,
    LevelEnd,
    check_later,
    level_column,
    level_of,
    line_of_fit,
    next_level_column,
)
from keras_calibration._solvers.numeric_column import numeric_column
from keras_calibration._typing import Features, Shape, Tensor
from keras_calibration.layers.effect_beliefs import Tables, known_of
from keras_calibration.layers.effect_tables import (
    LEVEL_SHAPES,
    curve_tables,
    end_of_tables,
    factor_of_logit,
    level_of_tables,
    level_tables,
    line_of_spread,
    offset_table,
    padded,
)
from keras_calibration.layers.effect_variances import spreads_of_curves, spreads_of_offsets
from keras_calibration.layers.field_head import FieldHead
from keras_calibration.layers.field_ids import (
    Fields,
    called_features,
    check_features,
)
from keras_calibration.layers.fit_settings import FitSettings
from keras_calibration.layers.fit_summary import FitSummary
from keras_calibration.layers.head import Head
from keras_calibration.layers.histogram_head import HistogramHead
from keras_calibration.layers.logits import LARGEST_SCORE, as_column, check_column, scaled_logits
from keras_calibration.layers.posterior import Posterior
from keras_calibration.layers.updated_curve import updated_curve

# All columns together have at most so many knots, if that leaves each of them so many.
_MOST_KNOTS, _FEWEST_KNOTS = 1024, 16
# Values beyond this count as infinite: the gaps between knots must be finite in float32.
_LARGEST_NUMBER = 2.0**126


@keras.saving.register_keras_serializable(package="keras_calibration")
class FieldBias(FieldHead):
    """A line, an offset per field value and curves: `a η(l) + c + Σ_f u_f[z_f] + Σ_j v_j(x_j)`.

    The offsets of field f have the prior `N(0, s_f²)`, and s_f is estimated from the data
    (empirical Bayes, with a half-Cauchy hyperprior). With several fields of mostly rare values, the
    s_f are then pooled over the fields and scaled by cross-validation. If the base model is right
    in a field, its offsets shrink to about zero. A field value with few rows gets a small offset;
    one with many rows keeps its own. A value not seen in the fit, and any id outside the
    vocabulary, gets the offset 0, the prior mean. Within a field value the ranking is unchanged.
    Fields that always occur together have equal parts of one effect.

    The curve of a numeric column is linear between knots at quantiles of the rows, and constant
    outside them. A value with many rows, such as a special code, is a knot of its own; so are all
    values of a column that has few. The curve is a straight line plus a random walk over the knots.
    Their standard deviations are estimated in the same way, one for the lines of all columns and
    one for each walk, and missing values (NaN) have an effect of their own. A column that the base
    model has used well gets a flat curve.

    With `follows_time=True`, `fit` takes the times of the rows, and the logits have a level over
    time too: a random walk, and deviations from it that do not persist, such as those of a day,
    each with a standard deviation that is estimated. The layer predicts with the last value of the
    walk, and needs no time. Where nothing drifts, the level is flat.

    `fit` is exact and takes a few passes over the rows. `update` fits to new rows alone, with the
    posterior of the earlier ones as the prior. The spreads s stay. With `forget=0`, it is nearly
    the fit to all rows, and weights are known up to a factor in each update. Fields that always
    occurred together cannot be updated. The layer starts as the identity. Its
    weights can also be trained with a model, but then nothing shrinks the offsets and curves, and
    curves keep the knots of the last `fit`.

    Args:
        fields: Field name → number of ids (ids in [0, number)), or a Keras lookup layer
            (`StringLookup`, `IntegerLookup`, `Hashing`) that turns the feature into ids. May be
            empty with `numeric` or `follows_time`.
        calibrator: η, a head that reads no features and that `fit` fits first, for example
            `ILPS()`; None uses the logit itself.
        follows_time: Whether a level follows the time of the rows.
        numeric: Names of real-valued columns.
        prior_scale: Median of the half-Cauchy prior on each s, in logits; on that of the walk of
            the level, a tenth of it.
        num_knots: Largest number of knots of a numeric column. All columns together have at most
            1,024, or 16 each.
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
        1,000 rows: log loss 0.693147 before, 0.596811 after (-0.096337); converged in 6 steps
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

    # Of the last fit, and of that to more rows from which the one under way starts.
    _spreads: Spreads | None = None
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
        self.numeric = tuple(names_of(numeric))
        self.num_knots = num_knots
        self._follows_time = bool(follows_time)
        super().__init__(fields or {}, calibrator, prior_scale, **kwargs)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The features that the head reads: its fields, then its numeric columns."""
        return (*self.fields, *self.numeric)

    def call(self, logits: Tensor, features: Features | None = None) -> Tensor:
        """Calibrated logits (batch, 1)."""
        check_features(features, self.feature_names, type(self).__name__)
        curve = self._curve(ops.cast(as_column(logits), self.compute_dtype))
        calibrated = scaled_logits(curve, self._slope) + self._bias
        if self.fields:
            calibrated = calibrated + ops.sum(self._offsets_of(features), axis=0)[:, None]
        if self.numeric:
            values = numeric_curves(self._numeric_places(features), self._curves)
            calibrated = calibrated + ops.sum(values, axis=0)[:, None]
        return calibrated

    @property
    def follows_time(self) -> bool:
        """Whether `fit` takes the times of the rows, which a level follows."""
        return self._follows_time

    def level(self) -> Level | None:
        """The level over time of the last fit; None without `follows_time`, and before a fit."""
        if not self._follows_time or not self.built:
            return None
        names = "level", "level_figures"
        return level_of_tables(*(ops.convert_to_numpy(self.posterior[name]) for name in names))

    @property
    def starts_from_whole(self) -> bool:
        """The spreads of a fit to all rows are where one to a part of them starts."""
        return True

    @property
    def fits_stored_rows(self) -> bool:
        """If η needs no more than a histogram."""
        return self.calibrator is None or self.calibrator.needs_histogram_alone

    @property
    def effect_names(self) -> tuple[str, ...]:
        """The fields."""
        return tuple(self.fields)

    def effects(self, features: Features) -> Tensor:
        """Offsets `u_f[z_f]` of the values of each row.

        Args:
            features: A mapping of feature names to tensors or arrays (batch,) or (batch, 1).

        Returns:
            A tensor (batch, number of fields) in the order of `fields`, in logits. The offset of a
            value outside the vocabulary is 0, as are all of them before a fit.
        """
        self.ensure_built()
        columns = called_features(features, self.fields, [self], type(self).__name__)
        return ops.transpose(self._offsets_of(columns))

    def logit_standard_deviation(self, logits: Tensor, features: Features | None = None) -> Tensor:
        """Posterior standard deviation of the calibrated logit, (batch, 1).

        Its square is `Σ_f t_f[z_f] + |((η, 1) - Σ_f r_f[z_f])ᵀ F|²` (`_solvers.field_posterior`),
        plus the variance of the shape of η: what is left of its posterior after its line, which is
        fitted again with the offsets, is taken out. t is averaged over the posterior of the spreads
        s_f, so that it holds what is not known of them: a value without rows has the variance
        `t = E[s_f²]`, one with many rows a small t. The curves of numeric columns have a joint
        covariance, with the root mean squares of their s_j.

        In simulations with one field, 95 % intervals hold the truth in 94 to 97 % where the spread
        matters, in up to 100 % where it is so small, or the values so few, that the fit knows
        little of it, and in about 92 % where it is 1 with two positives a value
        (`benchmarks/levels.py`). With several fields, t is the variance of an offset given those of
        the other fields: too large for values that always occur together, by at most the number of
        fields, and a little too small beside an unknown value. Fields that always coincide share
        one effect (`_solvers.coinciding_fields`): where their values meet as in the fit, the
        interval is that of one field, and it is wider where one of them is new, or they meet anew.
        The spreads of several fields are often found too small, and the intervals of unknown values
        are then too narrow.

        With one or three numeric columns, 95 % intervals hold the truth in 93 to 99 % where it is a
        random walk, a sine or a straight line of the column, in 91 to 99 % far out in its tails.

        Args:
            logits: Uncalibrated logits (batch,) or (batch, 1).
            features: A mapping of feature names to tensors (batch,) or (batch, 1).

        Returns:
            A tensor (batch, 1), in logits.
        """
        if self.calibrator is not None and not self._num_curve_columns():
            return super().logit_standard_deviation(logits, features)
        check_features(features, self.feature_names, type(self).__name__)
        check_column(logits.shape, type(self).__name__, "logits")
        column = ops.reshape(ops.cast(logits, self.compute_dtype), (-1,))
        line = ops.clip(self._curve(column), -LARGEST_SCORE, LARGEST_SCORE)
        variance, across_line, across_one = self._effect_spreads(features)
        factor = self.posterior["factor"]
        spread = (line - across_line)[:, None] * factor[0] + (1.0 - across_one)[:, None] * factor[1]
        variance = variance + ops.sum(ops.square(spread), axis=1)
        if self.calibrator is not None:
            line_spread = self.posterior["curve"]
            shape = self.calibrator.posterior_spread(column) - line_spread[0]
            shape = self._slope * (shape - line[:, None] * line_spread[1])
            variance = variance + ops.sum(ops.square(shape), axis=1)
        return ops.sqrt(variance)[:, None]

    @property
    def is_adapted(self) -> bool:
        """Whether η is adapted, and the numeric columns have knots, from `adapt` or a fit."""
        if not self.numeric:
            return super().is_adapted
        has_knots = self.built and bool(np.any(ops.convert_to_numpy(self._knots)))
        return has_knots and super().is_adapted

    def adapt(
        self,
        logits: ArrayLike,
        labels: ArrayLike | None = None,
        features: Mapping[str, ArrayLike] | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> None:
        """Adapts η, and places the knots of the numeric columns; a fit does so itself.

        Args:
            logits: Uncalibrated logits (n,) or (n, 1).
            labels: Labels in [0, 1] (n,) or (n, 1), if η needs them.
            features: A mapping of feature names to arrays with n rows.
            sample_weight: Sample weights (n,) or (n, 1), or None.
        """
        super().adapt(logits, labels, features, sample_weight)
        self.ensure_built()
        if self.numeric:
            columns = self.read_features(features, np.shape(logits)[0])
            numbers = {name: self._numbers(columns[name]) for name in self.numeric}
            weights = None if sample_weight is None else np.reshape(sample_weight, (-1,))
            self._assign_knots(self._knots_for(numbers, weights))

    def get_offsets(self, field: str) -> np.ndarray:
        """Offsets u of a field's values, shape (num_values,), in logits."""
        self.ensure_built()
        start = self._starts()[list(self.fields).index(field)]
        return ops.convert_to_numpy(self._offsets)[start : start + self._num_values[field]]

    def get_curve(self, name: str) -> tuple[np.ndarray, np.ndarray, float]:
        """The curve v of a numeric column.

        Args:
            name: Name of the column.

        Returns:
            Knots (k,), values at the knots (k,), in logits, and the value where the column is
            missing.
        """
        self.ensure_built()
        number = self.numeric.index(name)
        knots = np.unique(ops.convert_to_numpy(self._knots)[number])
        values = ops.convert_to_numpy(self._curves)[number]
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
        if self.fields:
            # One table for all fields; the last row of each field is "other".
            length = sum(number + 1 for number in self._num_values.values())
            self._offsets = self.add_weight(name="offsets", shape=(length,), initializer="zeros")
            shapes["offsets"] = (length, 5)
            shapes["leaders"] = (len(self.fields),)
        if self.numeric:
            shape = len(self.numeric), self._knots_per_column()
            self._knots = self.add_weight(
                name="numeric_knots", shape=shape, initializer="zeros", trainable=False
            )
            # The last value of each column is that of missing values.
            shape = len(self.numeric), shape[1] + 1
            self._curves = self.add_weight(name="curves", shape=shape, initializer="zeros")
            shapes["curves"] = (*shape, CURVE_RANK + 3)
        self._deviations = self.add_weight(
            name="deviations",
            shape=(len(self.feature_names),),
            initializer="zeros",
            trainable=False,
        )
        if num_columns := self._num_curve_columns():
            shapes["curve"] = (2, num_columns)
        if self._follows_time:
            shapes |= LEVEL_SHAPES
        self.posterior = Posterior(self, **shapes)

    def _knots_per_column(self) -> int:
        return min(self.num_knots, max(_MOST_KNOTS // len(self.numeric), _FEWEST_KNOTS))

    def _offsets_of(self, features: Features | None) -> Tensor:
        """Offsets of the values of each row, shape (fields, batch)."""
        # `take` without an axis flattens first, which makes the gradient dense.
        return ops.take(ops.convert_to_tensor(self._offsets), self._places(features))

    def _numeric_places(self, features: Features | None) -> tuple[Tensor, Tensor]:
        """Where the numbers of each row are between the knots, each (columns, batch)."""
        features = {} if features is None else features
        columns = [
            ops.cast(ops.reshape(features[name], (-1,)), self.compute_dtype)
            for name in self.numeric
        ]
        return places_on_knots(ops.stack(columns), ops.convert_to_tensor(self._knots))

    def _effect_spreads(self, features: Features | None) -> tuple[Tensor, Tensor, Tensor]:
        """Variance of all effects given the line, and how they respond to it: each (batch,)."""
        total: Tensor = 0.0
        variance: Tensor = 0.0
        if self.fields:
            of_fields = ops.take(self.posterior["offsets"], self._places(features), axis=0)
            total, variance = spreads_of_offsets(of_fields, self.posterior["leaders"])
        if self.numeric:
            rows = spreads_of_curves(self.posterior["curves"], *self._numeric_places(features))
        else:
            rows = ops.zeros((1, CURVE_RANK + 3), self.compute_dtype)
        if self._follows_time:
            rows = rows + self.posterior["last"]
        total = total + rows[:, :3]
        variance = variance + ops.sum(ops.square(rows[:, 3:]), axis=1)
        return total[:, 0] + variance, total[:, 1], total[:, 2]

    def encoded(self, rows: Rows) -> Rows:
        """The rows with ids of the fields, and numbers of the numeric columns, float64."""
        rows = super().encoded(rows)
        numbers = {name: self._numbers(rows.features[name]) for name in self.numeric}
        return replace(rows, features={**rows.features, **numbers})

    def _fit_effects(
        self,
        rows: Rows | StoredRows,
        curves: Sequence[np.ndarray],
        line: Line,
        like: FieldBias | None = None,
        progress: ProgressBar | None = None,
    ) -> FieldOffsets:
        sample = rows.sample
        knots = self._knots_for(sample.features, sample.weights)
        times = sample.times if self._follows_time else None
        level = None if times is None else level_column(times, sample.weights)
        blocks = [
            self._rows_of_fit(block, curve, knots, level, rows.store)
            for block, curve in zip(rows.blocks, curves, strict=True)
        ]
        fit = fit_field_offsets(
            blocks,
            list(self._num_values.values()),
            half_cauchy(self.prior_scale),
            None if like is None else like._spreads,
            rows.store,
            progress,
        )
        self._spreads = fit.spreads
        if self.numeric:
            self._assign_knots(knots)
        of_level: dict[str, np.ndarray] = {}
        if times is not None:
            last_time = max(float(b.times.max()) for b in rows.blocks if b.times is not None)
            shown, end = NO_LEVEL, LevelEnd(last_time)
            if level is not None:
                end = level.end(fit, line_of_fit(fit, blocks))
                fit = fit.mapped(end.means)
                shown = level_of(level, fit)
            of_level = level_tables(shown, end, fit.posterior if level else None, line)
        self._deviations.assign(fit.deviations[: len(self.feature_names)])
        self._keep(fit, rows, blocks, line, of_level)
        return fit

    @property
    def can_forget_a_share(self) -> bool:
        """Whether it has the posterior of a fit."""
        return self.built and self.posterior.is_kept and self.posterior.is_of_weights

    @property
    def next_in_order(self) -> float:
        """One after the last time, if there is one."""
        if not self._follows_time or not self.posterior.is_kept:
            return 0.0
        return self._level_end().time + 1

    def check_update(self) -> None:
        """Raises if there is no posterior of the weights, or fields share effects."""
        super().check_update()
        self.ensure_built()
        if not self.can_forget_a_share and (self.posterior.is_kept or self._is_trained()):
            raise ValueError(
                "`update` requires the posterior of the last fit. Received: a FieldBias whose "
                "weights were trained or set in another way since then. Call `fit` with all rows."
            )
        leaders = ops.convert_to_numpy(self.posterior["leaders"]) if self.fields else np.zeros(0)
        if self.posterior.is_kept and len(np.unique(leaders)) < len(leaders):
            names = list(self.fields)
            same = [
                f"{names[int(leader)]!r} and {name!r}"
                for number, (name, leader) in enumerate(zip(names, leaders, strict=True))
                if leader != number
            ]
            raise ValueError(
                "`update` requires fields that divided the rows of the last fit in different ways. "
                f"Received: {', '.join(same)}, which always occurred together. Leave one of them "
                "out, or call `fit` with all rows."
            )

    def update_rows(self, rows: Rows, forget: float) -> FitSummary:
        """Updates η, then fits to the new rows, with the posterior of now as the prior.

        The spreads of the effects, of the walk and of the deviations stay as they are; a fit
        estimates them anew.
        """
        is_first = not self.posterior.is_kept
        if is_first or forget == 1:
            check_both_classes(rows)
        if is_first:
            return self.fit_rows(rows, FitSettings(), 0)
        known = self._known().after_forgetting(forget)
        times = rows.times if self._follows_time else None
        before, end, level = self.level() or NO_LEVEL, self._level_end(), None
        if times is not None:
            check_later(times, end.time)
            level = next_level_column(end, known.level[0], times, rows.weights)
        curve, line, share = updated_curve(self.calibrator, rows, forget)
        knots = [self._knots_of(number) for number in range(len(self.numeric))]
        new = self._rows_of_fit(self.encoded(rows), curve, knots)
        fit = update_field_offsets(new, known.with_another_curve(share), level).mapped(end.means)
        of_level: dict[str, np.ndarray] = {}
        if level is not None:
            shown = before.followed_by(level, end.time, fit)
            end = replace(end, time=float(level.knots[-1]))
            of_level = level_tables(shown, end, fit.posterior, line)
        self._keep(fit, rows, [new], line, of_level, adds_rows=forget < 1)
        return self.summary_of(rows, fit.num_iterations, fit.converged)

    def _known(self) -> Known:
        """What the posterior says, as the prior of an update."""
        tables, offsets, curves = self.posterior.arrays(), [], []
        for start, number in zip(self._starts(), self._num_values.values(), strict=True):
            values, end = ops.convert_to_numpy(self._offsets).astype("float64"), start + number
            offsets.append((values[start:end], tables["offsets"][start : end + 1]))
        for number in range(len(self.numeric)):
            knots = self._knots_of(number)
            places = [*range(len(knots)), -1]
            values = ops.convert_to_numpy(self._curves).astype("float64")[number]
            curves.append((knots, values[places], tables["curves"][number, places]))
        return known_of(
            Tables(
                line=np.array([float(self._slope), float(self._bias)]),
                factor=tables["factor"],
                offsets=offsets,
                curves=curves,
                last=tables["last"] if self._follows_time else None,
                noise=(self.level() or NO_LEVEL).noise,
                means=self._level_end().means,
            )
        )

    def _knots_of(self, number: int) -> np.ndarray:
        """The knots of a numeric column, float64."""
        return np.unique(ops.convert_to_numpy(self._knots)[number].astype("float64"))

    def _level_end(self) -> LevelEnd:
        """Where the level of the last fit ended."""
        if not self._follows_time:
            return LevelEnd(0.0)
        return end_of_tables(self.posterior.arrays()["level_figures"])

    def _is_trained(self) -> bool:
        """Whether weights differ from those of a new layer."""
        weights = [self._slope - 1.0, self._bias]
        weights += [self._offsets] if self.fields else []
        weights += [self._curves] if self.numeric else []
        return any(np.any(ops.convert_to_numpy(each)) for each in weights)

    def _keep(
        self,
        fit: FieldOffsets,
        rows: Rows | StoredRows,
        blocks: Sequence[OffsetRows],
        line: Line,
        of_level: Mapping[str, np.ndarray],
        adds_rows: bool = False,
    ) -> None:
        """Assigns the weights of a fit, in which η was seen through a line, and the posterior."""
        last = fit.curves[-1][-1] if len(fit.curves) > len(self.numeric) else 0.0
        self._slope.assign(fit.slope * line.scale)
        self._bias.assign(fit.bias + last + fit.slope * line.shift)
        if self.fields:
            self._offsets.assign(np.concatenate([np.append(u, 0.0) for u in fit.offsets]))
        if self.numeric:
            num_knots, curves = self._knots.shape[1], fit.curves[: len(self.numeric)]
            self._curves.assign(np.stack([padded(v, num_knots) for v in curves]))
        if fit.posterior is None:
            return
        values = {"factor": factor_of_logit(fit.posterior, line), **of_level}
        if self.fields:
            values["offsets"] = offset_table(fit.posterior, line)
            values["leaders"] = fit.posterior.leaders
        if self.numeric:
            values["curves"] = curve_tables(fit.posterior, line, *self._knots.shape)
        calibrator = self.calibrator
        if isinstance(calibrator, HistogramHead) and calibrator.num_posterior_columns:
            values["curve"] = line_of_spread(
                calibrator,
                (
                    (block.logits, fit.information(own))
                    for block, own in zip(rows.blocks, blocks, strict=True)
                ),
            )
        was_counts = not adds_rows or self.posterior.is_of_counts
        is_of_counts = was_counts and all(are_counts(block.weights) for block in rows.blocks)
        self.posterior.keep(is_of_counts, **values)

    def _assign_knots(self, knots: Sequence[np.ndarray]) -> None:
        num_knots = self._knots.shape[1]
        self._knots.assign([np.pad(k, (0, num_knots - len(k)), "edge") for k in knots])

    def _knots_for(
        self, numbers: Mapping[str, np.ndarray], weights: np.ndarray | None
    ) -> list[np.ndarray]:
        """Knots of each numeric column."""
        num_knots = self._knots.shape[1] if self.numeric else 0
        columns = [numbers[name].astype("float64") for name in self.numeric]
        found = [separate_quantile_knots(column, num_knots, weights) for column in columns]
        return [each if len(each) else np.zeros(1) for each in found]

    def _rows_of_fit(
        self,
        rows: Rows,
        curve: np.ndarray,
        knots: Sequence[np.ndarray],
        level: LevelColumn | None = None,
        store: ArrayStore = IN_MEMORY,
    ) -> OffsetRows:
        """Encoded rows as a fit takes them, with the values of η."""
        columns = [
            numeric_column(rows.features[name].astype("float64"), own)
            for name, own in zip(self.numeric, knots, strict=True)
        ]
        if level is not None and rows.times is not None:
            columns.append(level.of(rows.times))
        columns = [column.kept(store) for column in columns]
        return OffsetRows(curve, rows.labels, rows.weights, self._ids_in(rows), columns)

    def _numbers(self, values: np.ndarray) -> np.ndarray:
        """A numeric column as the layer reads it, in its dtype."""
        with np.errstate(over="ignore"):
            values = values.reshape(-1).astype(self.variable_dtype).astype("float64")
        is_far = np.abs(values) > _LARGEST_NUMBER
        return np.where(is_far, np.copysign(np.inf, values), values)

    def _check_arguments(self) -> None:
        if not self.feature_names and not self._follows_time:
            raise ValueError(
                "Arguments `fields` and `numeric` of FieldBias must name at least one feature, "
                "unless it follows time. Received: fields={}, numeric=(). Pass "
                'fields={"site_id": 5000}, for example, or follows_time=True.'
            )
        super()._check_arguments()
        if both := sorted({*self.fields} & {*self.numeric}):
            raise ValueError(
                "Arguments `fields` and `numeric` must name different features. Received: "
                f"{both} in both. Name a column of ids in `fields`, one of numbers in `numeric`."
            )
        self.num_knots = integer("num_knots", self.num_knots, 2)

    def _num_curve_columns(self) -> int:
        """Number of columns of the posterior of η; 0 if η has none."""
        curve = self.calibrator
        return curve.num_posterior_columns if isinstance(curve, HistogramHead) else 0
