"""BoostedTrees: a head plus boosted trees over its logit and the features."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import keras
import numpy as np
from keras import ops

from calibration_records._check import instance, integer
from keras_calibration._ops.boosted_trees import NUM_CODES, NUM_GROUPS, NUM_SPLITS, tree_sums
from keras_calibration._rows.columns import take
from keras_calibration._rows.rows import Rows
from keras_calibration._solvers.boosting import Boosting, boost, tables_of
from keras_calibration._solvers.row_blocks import row_parts
from keras_calibration._solvers.row_folds import blocks_of_time, fold_of_rows
from keras_calibration._typing import Features, Shape, Tensor
from keras_calibration.layers.cross_fitting import (
    CrossFitted,
    Parts,
    cross_fitted,
    enough_for,
    parts_of,
)
from keras_calibration.layers.field_bias import FieldBias
from keras_calibration.layers.field_ids import (
    Fields,
    Reads,
    check_features,
    checked_fields,
    checked_numeric,
    ids_of_field,
    serialize_fields,
    vocabulary_sizes,
)
from keras_calibration.layers.fit import Fit
from keras_calibration.layers.fit_settings import FitSettings
from keras_calibration.layers.fit_summary import FitSummary
from keras_calibration.layers.head import Head
from keras_calibration.layers.ilps import ILPS
from keras_calibration.layers.logits import as_column, check_column

_NUM_FOLDS = 3
# A field of at most this many values gets a column for each.
_NUM_CATEGORIES = 16


@keras.saving.register_keras_serializable(package="keras_calibration")
class BoostedTrees(Head):
    """A head h plus boosted trees: calibrated logits `h(l, x) + Σ_t v_t(l, x)`.

    The inner head corrects the curve and the offsets of the field values; the trees correct errors
    that depend on several features at once. Their inputs are the logit, h, the numeric columns with
    missing values, the offset of each field value if h is a `FieldBias`, and an indicator of each
    value of a field with at most 16 values (without offsets, of its 16 most frequent values).

    The direct fit works as follows:

    1. For each fold of the development set, h is fitted on the other folds. This gives each row a
       logit and offsets from a fit that did not see its label.
    2. LightGBM adds trees of eight leaves to these logits, on the rows outside each fold, and
       scores the rows of the fold after every round. A fold is scored with the number of rounds
       that has the lowest mean log loss over the other folds. This number is 0 if the loss is not
       lower than without trees by a standard error. These trees get offsets from fits that saw
       neither the row's fold nor the scored fold: other offsets reveal the scored fold's labels.
    3. h is fitted to all rows, and trees to the cross-fitted logits of all rows, with the mean of
       these numbers of rounds. A bias gives the cross-fitted logits the observed total.

    Only the fit needs LightGBM: the trees become tables, and the layer computes them by comparisons
    and lookups, equal to LightGBM's prediction up to rounding. The trees cannot be trained by
    gradient. There is no interval: in simulations, the 95 % interval of h, widened by the
    differences between the trees of three folds, covered the truth in only 72 to 90 % of the rows
    where features interact.

    Args:
        fields: Field name → number of ids (ids in [0, number)), or a Keras lookup layer.
        numeric: Names of real-valued columns that are not in `fields`; NaN is a missing value.
        head: h; by default `FieldBias(fields, ILPS(smoothness="auto", monotonic="strict"))`, and
            without fields that `ILPS`.
        num_rounds: Largest number of trees. The time of a prediction grows with it, even if fewer
            trees are used.
        **kwargs: Keyword arguments of every Keras layer (`name`, `dtype`).

    Call arguments:
        logits: Uncalibrated logits (batch,) or (batch, 1).
        features: A mapping of feature names to tensors with `batch` rows.

    Raises:
        ValueError: If an argument is out of its range, or a feature is missing when called.
        ImportError: In a fit, if LightGBM cannot be loaded.

    Example:
        >>> generator = np.random.default_rng(0)
        >>> age, site = generator.uniform(20, 70, 4000), generator.integers(0, 3, 4000)
        >>> logits = np.where((age > 40) & (site == 1), 1.0, -1.0)
        >>> labels = generator.random(4000) < 1 / (1 + np.exp(-logits))
        >>> head = BoostedTrees({"site": 3}, ["age"])
        >>> summary = head.fit(np.full(4000, -0.5), labels, {"site": site, "age": age})
        >>> new = {"site": np.array([1, 1, 2]), "age": np.array([35.0, 45.0, 45.0])}
        >>> print(np.asarray(head(np.full(3, -0.5), new))[:, 0] > 0)
        [False  True False]

    Reference:
        Ke et al., *LightGBM: A Highly Efficient Gradient Boosting Decision Tree*, NIPS 2017;
        Perini et al., *MCGrad: Multicalibration at Web Scale*, 2025, for boosting from a logit.
    """

    draws_by_chance = True

    def __init__(
        self,
        fields: Fields,
        numeric: Sequence[str] = (),
        head: Head | None = None,
        num_rounds: int = 256,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.fields = checked_fields(fields)
        self.numeric = checked_numeric(numeric, self.fields)
        if head is None:
            curve = ILPS(smoothness="auto", monotonic="strict")
            head = FieldBias(self.fields, curve) if self.fields else curve
        self.head = head
        self.num_rounds = integer("num_rounds", num_rounds, 1)
        instance("head", head, Head, "a head of this package, or None", "Pass ILPS(), for example.")

    def parts(self) -> list[Head]:
        """h, the inner head."""
        return [self.head]

    @property
    def feature_names(self) -> tuple[str, ...] | None:
        """The features that the head reads, or None if h does not declare its features."""
        names = super().feature_names
        unique = dict.fromkeys((*(names or ()), *self.fields, *self.numeric))
        return None if names is None else tuple(unique)

    def reads(self) -> Reads:
        """Its fields and numeric columns, and those of h."""
        return super().reads() + Reads(self.fields, self.numeric)

    def check_logits(self, shape: Shape) -> None:
        """Raises for other logits than one per row."""
        check_column(shape, type(self).__name__, "logits")

    def build(
        self, logits_shape: Shape | None = None, features_shape: Mapping[str, Shape] | None = None
    ) -> None:
        """Creates the tables of the trees, which are 0 before a fit."""
        self.head.ensure_built(features_shape=features_shape)
        self._num_values = vocabulary_sizes(self.fields)
        num_trees = self._count_trees()
        tables = {
            "categories": ((len(self._list_categorical()), _NUM_CATEGORIES), "int32"),
            "splits": ((NUM_SPLITS, num_trees), "int32"),
            "thresholds": ((NUM_SPLITS, num_trees), "float32"),
            "leaves": ((num_trees, NUM_CODES), "float32"),
        }
        # Not trainable: trees have no gradient. Leaves of 0 make a new layer the inner head.
        self._categories, self._splits, self._thresholds, self._leaves = (
            self.add_weight(
                name=name, shape=shape, dtype=dtype, initializer="zeros", trainable=False
            )
            for name, (shape, dtype) in tables.items()
        )
        self.built = True

    @property
    def num_values(self) -> dict[str, int]:
        """The number of values of each field."""
        return self._num_values if self.built else vocabulary_sizes(self.fields)

    def call(self, logits: Tensor, features: Features | None = None) -> Tensor:
        """Calibrated logits (batch, 1)."""
        columns = ops.cast(as_column(logits), self.compute_dtype)
        features = {} if features is None else features
        check_features(features, [*self.fields, *self.numeric], type(self).__name__)
        inner = self.head(columns, features)
        effects = [self.head.effects(features)] if self.head.effect_names else []
        seen = self._stack_tree_columns(
            [columns, inner, *effects], features, ops.convert_to_tensor(self._categories)
        )
        # All trees are tables, so the layer needs no LightGBM.
        sums = tree_sums(seen, self._splits, self._thresholds, self._leaves)
        return inner + ops.cast(sums, inner.dtype)

    def _stack_tree_columns(
        self, columns: list[Tensor], features: Features, all_categories: Tensor
    ) -> Tensor:
        """What the trees see, (batch, C), float32; first the logits l and h, and h's effects."""
        for number, name in enumerate(self._list_categorical()):
            ids = self._find_ids(features, name)
            # One indicator for each frequent value: the trees can then split on a value.
            columns.append(ids[:, None] == all_categories[number])
        columns += [ops.reshape(features[name], (-1, 1)) for name in self.numeric]
        return ops.concatenate([ops.cast(column, "float32") for column in columns], axis=1)

    def fitted(self, rows: Rows, settings: FitSettings, start: Fit | None = None) -> Fit:
        """Fits h, and trees on top of its cross-fitted logits."""
        folds = _NUM_FOLDS if settings.folds is None else settings.folds
        if self.follows_time:
            # A level over time predicts what comes after the rows of its fit, so folds are blocks
            # of time, and each is scored by a fit to the earlier ones.
            folds = blocks_of_time(np.asarray(rows.times))
        fold = fold_of_rows(folds, rows, settings.seed)
        num_folds = int(fold.max()) + 1
        # With time, the first block is not scored: no rows come before it.
        scored = range(self.follows_time, num_folds) if enough_for(num_folds, rows) else ()
        parts = parts_of(fold, scored, self.follows_time)
        inner = self.head.fitted(rows, settings)
        # Too few rows to tell whether trees help: h alone.
        if not parts:
            return self.with_trees(rows, inner, Boosting())
        crossed = cross_fitted(self.head, rows, parts, inner, settings)
        # Blocks of time are dependent rows.
        boosting = self.boosted(
            rows, parts, inner, crossed, settings, clusters=fold if self.follows_time else None
        )
        return self.with_trees(rows, inner, boosting)

    def boosted(
        self,
        rows: Rows,
        parts: Parts,
        inner: Fit | None,
        crossed: CrossFitted,
        settings: FitSettings,
        clusters: np.ndarray | None = None,
    ) -> Boosting:
        """Trees on top of a cross-fitted h.

        Args:
            rows: The rows.
            parts: Numbers of the rows to fit and to score, of each fold.
            inner: The fit of h to all rows, where fits to a part of the rows start; None if there
                is none.
            crossed: Logits and effects of h, from `cross_fitted`.
            settings: Its seed is used for the trees; h is fitted with these settings.
            clusters: Which rows are dependent (n,), for the standard error.
        """
        folds = [scored for _, scored in parts]
        categories = self._find_categories(rows)

        def columns_with(logits: np.ndarray, effects: np.ndarray) -> np.ndarray:
            columns = [rows.logits[:, None], logits[:, None], effects]
            return np.asarray(self._stack_tree_columns(columns, rows.features, categories))

        @functools.cache
        def without(pair: frozenset[int]) -> CrossFitted:
            """Logits and effects of two folds, by a fit to the others, which serves both folds."""
            scored = np.concatenate([folds[number] for number in pair])
            # The pair of a scored fold and the fold of a row: this fit saw neither.
            fitted = np.setdiff1d(np.arange(len(rows)), scored)
            return cross_fitted(self.head, rows, [(fitted, scored)], inner, settings)

        def training(part: int) -> tuple[np.ndarray, np.ndarray]:
            logits = np.zeros_like(crossed.logits)
            effects = np.zeros_like(crossed.effects)
            # Each other fold by the fit that leaves out both this fold and the scored one.
            for number in set(range(len(folds))) - {part}:
                fold = folds[number]
                others = without(frozenset({part, number}))
                logits[fold] = others.logits[fold]
                effects[fold] = others.effects[fold]
            return logits, columns_with(logits, effects)

        # With time, the first block has no logits from another fit: no tree is fitted to it.
        is_scored = np.isin(np.arange(len(rows)), np.concatenate(folds))
        # Comparing an offset fitted without a fold to one fitted with it reveals the labels of that
        # fold. Trees that saw both would look better on the fold than on new rows. So `training`
        # returns offsets fitted without the scored fold and without the row's own fold.
        is_cross_fit = all(len(fitted) + len(scored) == len(rows) for fitted, scored in parts)
        is_told = is_cross_fit and bool(self.head.effect_names) and len(folds) > 2
        return boost(
            replace(rows, logits=crossed.logits),
            columns_with(*crossed),
            [(fitted[is_scored[fitted]], scored) for fitted, scored in parts],
            largest_num_rounds=self.num_rounds,
            seed=settings.seed,
            clusters=clusters,
            training=training if is_told else None,
        )

    def with_trees(self, rows: Rows, inner: Fit, boosting: Boosting) -> Fit:
        """The fit with trees on top of a fit of h to all rows."""
        categories = self._find_categories(rows)
        tables = tables_of(boosting.model, self._count_trees(), boosting.bias)

        def logits(rows: Rows) -> np.ndarray:
            h = inner.logits(rows)
            if not boosting.num_rounds:
                return h
            effects = [] if inner.effects is None else [inner.effects(rows)]
            sums = np.empty(len(rows))
            # In parts, because `tree_sums` makes an array with an entry for each row and tree.
            for part in row_parts(len(rows)):
                columns = [rows.logits[part, None], h[part, None], *(e[part] for e in effects)]
                seen = self._stack_tree_columns(columns, take(rows.features, part), categories)
                sums[part] = np.asarray(tree_sums(seen, *tables)).reshape(-1)
            return h + sums

        summary = replace(
            FitSummary.of(rows, logits(rows), boosting.num_rounds),
            cross_fitted_head=boosting.log_loss_without,
            cross_fitted_both=boosting.log_loss_with,
            standard_error=boosting.standard_error,
            cross_fitted_logits=boosting.logits,
        )
        names = ("_categories", "_splits", "_thresholds", "_leaves")
        weights = dict(zip(names, (categories, *tables), strict=True))
        return Fit(summary, logits, weights, (inner,))

    def _list_categorical(self) -> list[str]:
        """The fields that get a column per value."""
        effects, sizes = self.head.effect_names, self.num_values
        return [n for n in sizes if sizes[n] <= _NUM_CATEGORIES or n not in effects]

    def _find_ids(self, features: Features, name: str) -> Tensor:
        return ids_of_field(features[name], self.fields[name], self.num_values[name])

    def _count_trees(self) -> int:
        # `tree_sums` needs a multiple of 16. Trees beyond `num_rounds` stay 0.
        return -(-self.num_rounds // NUM_GROUPS) * NUM_GROUPS

    def _find_categories(self, rows: Rows) -> np.ndarray:
        """The most frequent ids of the fields that get a column per value; -1 for none."""
        categories = np.full((len(self._list_categorical()), _NUM_CATEGORIES), -1, "int32")
        for number, name in enumerate(self._list_categorical()):
            ids = np.asarray(self._find_ids(rows.features, name))
            values, place = np.unique(ids, return_inverse=True)
            counts = np.bincount(place.reshape(-1), rows.meant_counts)
            # A stable sort: of equally frequent ids, the lower come first, in every order of the
            # rows.
            most = values[np.argsort(-counts, kind="stable")][:_NUM_CATEGORIES]
            categories[number, : len(most)] = most
        return categories

    def get_config(self) -> dict[str, Any]:
        """The constructor arguments as plain Python values."""
        return {
            **super().get_config(),
            "fields": serialize_fields(self.fields),
            "numeric": list(self.numeric),
            "head": keras.saving.serialize_keras_object(self.head),
            "num_rounds": self.num_rounds,
        }
