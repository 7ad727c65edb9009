"""FieldNetwork: the network g(x) over fields and numeric columns."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops
from numpy.typing import ArrayLike

from calibration_records._check import integer, not_negative, refused, share
from calibration_records._columns import check_same_rows, column_of, select_features
from calibration_records._warn import warn
from keras_calibration._keras import throwaway_layers
from keras_calibration._ops.piecewise_linear import hat_basis
from keras_calibration._solvers.knots import numeric_knots
from keras_calibration._typing import Features, Shape, Tensor
from keras_calibration.layers.adaptation import known_value, on_gradient
from keras_calibration.layers.field_ids import (
    Fields,
    Reads,
    called_features,
    check_features,
    checked_fields,
    checked_numeric,
    serialize_fields,
    table_rows,
    vocabulary_sizes,
)
from keras_calibration.layers.logits import calibration_dtype


@keras.saving.register_keras_serializable(package="keras_calibration")
class FieldNetwork(keras.layers.Layer):
    """The network g(x) over the fields: embeddings, a small MLP, one logit.

    Each field has an embedding. Each numeric column is encoded by hat functions on knots, which
    `adapt` places, and by an indicator of missing values. All encodings are concatenated and passed
    through ReLU layers. The last layer is initialized to zero, so that g = 0 and training starts
    from the base model's probabilities.

    All ids outside a field's vocabulary share one embedding, "other". The embeddings have dense
    gradients: with the sparse gradients of `keras.layers.Embedding`, adaptive optimizers of Keras 3
    compute a wrong second moment if an id occurs twice in a batch, as ids of small fields do.

    Args:
        fields: Field name → number of ids (ids in [0, number)), or a Keras lookup layer
            (`StringLookup`, `IntegerLookup`, `Hashing`) that turns the feature into ids.
        numeric: Names of real-valued columns that are not in `fields`; NaN is a missing value.
        embedding_dim: Size of each embedding.
        hidden_units: Units of the ReLU layers.
        num_numeric_knots: Knots of each numeric column. Use many: special codes and caps need a
            knot of their own.
        num_coarse_knots: Knots of a second, coarse encoding of each numeric column. It uses ramps
            instead of hats, so that an effect on one side of a knot holds on all of that side.
        dropout: Share of hidden units dropped at random in training, in [0, 1).
        regularization: L2 precision of the embeddings and hidden kernels, in units of summed log
            likelihood: `regularization/2 Σ θ² / n`. It is left out until `adapt` has set the number
            of rows n. A network of ids alone can be trained without `adapt`; with numeric columns,
            call `adapt(features)` before training, also together with the base model, because the
            features are known then.
        seed: Seed of the initial weights and of dropout; None draws one, which
            `keras.utils.set_random_seed` repeats.
        **kwargs: Keyword arguments of every Keras layer (`name`, `dtype`, `trainable`).

    Call arguments:
        features: A mapping of feature names to tensors (batch,) or (batch, 1). Other features are
            ignored.

    Raises:
        ValueError: If an argument is out of its range, a feature is missing when called, or a
            network with numeric columns is trained before `adapt` (in a compiled step of JAX, the
            gradients are NaN instead).

    Example:
        >>> network = FieldNetwork({"site": 3}, embedding_dim=2)
        >>> print(network({"site": np.array([0, 2, 7])}).numpy())
        [[0.]
         [0.]
         [0.]]

    Reference:
        Pan et al., *Field-aware Calibration*, WWW 2020, section 4.2. (The paper uses
        `embedding_dim=256, hidden_units=(200, 200)`, section 5.1.)
    """

    def __init__(
        self,
        fields: Fields,
        numeric: Sequence[str] = (),
        embedding_dim: int = 16,
        hidden_units: Sequence[int] = (64, 32),
        num_numeric_knots: int = 64,
        regularization: float = 1.0,
        seed: int | None = None,
        num_coarse_knots: int = 16,
        dropout: float = 0.25,
        **kwargs: Any,
    ) -> None:
        super().__init__(dtype=calibration_dtype(kwargs.pop("dtype", None)), **kwargs)
        self.fields = checked_fields(fields)
        self.numeric = checked_numeric(numeric, self.fields)
        if not self.feature_names:
            example = 'Pass fields={"site_id": 5000}, for example, or `numeric`.'
            raise refused("fields", "a mapping with at least one field", self.fields, example)
        self.embedding_dim = integer("embedding_dim", embedding_dim, 1)
        self.hidden_units = tuple(integer("hidden_units", units, 1) for units in hidden_units)
        self.num_numeric_knots = integer("num_numeric_knots", num_numeric_knots, 2)
        self.regularization = float(regularization)
        not_negative("regularization", self.regularization)
        self.seed = seed
        self.num_coarse_knots = integer("num_coarse_knots", num_coarse_knots, 2)
        self.dropout = float(dropout)
        share("dropout", self.dropout, also=": the share of hidden units to drop", ends="0")
        if (num_numeric_knots, num_coarse_knots) != (64, 16) and not self.numeric:
            warn("Numbers of knots have no effect without `numeric` columns.")
        with throwaway_layers():
            # A generator gives each layer a seed of its own; one integer would start equal layers
            # alike.
            initializers = keras.random.SeedGenerator(seed)
            # A seed generator is part of the layer's state: created only if dropout is used.
            self._dropout_seeds = keras.random.SeedGenerator(seed) if self.dropout else None
        dense = functools.partial(keras.layers.Dense, dtype=self.dtype_policy)
        by_chance = keras.initializers.GlorotUniform(seed=initializers)
        self._hidden = [
            dense(units, activation="relu", kernel_initializer=by_chance, name=f"hidden_{number}")
            for number, units in enumerate(self.hidden_units)
        ]
        self._output = dense(1, kernel_initializer="zeros", name="output")
        self._embedding_initializer = keras.initializers.RandomUniform(seed=initializers)

    def __call__(self, features: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Calls the layer; `features` may also hold columns of a data frame, or be one."""
        columns = called_features(features, self.feature_names, self.reads(), type(self).__name__)
        return super().__call__(columns, *args, **kwargs)

    def reads(self) -> Reads:
        """Its fields and numeric columns."""
        return Reads(self.fields, self.numeric)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The features that the network reads."""
        return (*self.fields, *self.numeric)

    @throwaway_layers()
    def build(self, input_shape: Shape | None = None) -> None:
        """Creates the embeddings, the knots and the layers."""
        self.num_values = vocabulary_sizes(self.fields)
        if self.fields:
            shape = sum(self.num_values.values()) + len(self.fields), self.embedding_dim
            self.embeddings = self.add_weight(
                name="embeddings", shape=shape, initializer=self._embedding_initializer
            )
        adapted = functools.partial(self.add_weight, initializer="zeros", trainable=False)
        self._knots = adapted(
            name="numeric_knots", shape=(len(self.numeric), self.num_numeric_knots)
        )
        self._coarse_knots = adapted(
            name="coarse_knots", shape=(len(self.numeric), self.num_coarse_knots)
        )
        self._num_rows = adapted(name="num_rows", shape=())
        # The input: the embeddings; and hats, ramps and the indicator of missing values of each
        # column.
        width = len(self.fields) * self.embedding_dim
        width += len(self.numeric) * (self.num_numeric_knots + self.num_coarse_knots + 1)
        for layer in (*self._hidden, self._output):
            layer.build((None, width))
            width = layer.units
        self.built = True

    def call(self, features: Features, training: bool | None = None) -> Tensor:
        """g(x), logits (batch, 1); with dropout if `training` is true."""
        check_features(features, self.feature_names, type(self).__name__)
        encoded = [self.embed(features)] if self.fields else []
        encoded += [self.encode(features[name], row) for row, name in enumerate(self.numeric)]
        # (batch, width): embeddings, then the encoding of each numeric column.
        hidden = ops.concatenate(encoded, axis=1)
        for layer in self._hidden:
            hidden = layer(hidden)
            if training and self.dropout:
                hidden = keras.random.dropout(hidden, self.dropout, seed=self._dropout_seeds)
        self._add_regularization()
        return self._require_adapt(self._output(hidden))

    def adapt(self, features: Mapping[str, ArrayLike]) -> None:
        """Places the knots of the numeric columns and stores the number of rows.

        Args:
            features: A mapping of feature names to arrays (n,) or (n, 1).

        Raises:
            ValueError: If a feature is missing, or has another shape or number of rows.
        """
        read = select_features(features, self.feature_names, type(self).__name__)
        columns = {name: np.asarray(column_of(values, repr(name))) for name, values in read.items()}
        check_features(columns, self.feature_names, type(self).__name__)
        num_rows = {name: len(column) for name, column in columns.items()}
        check_same_rows("The features", num_rows)
        if not self.built:
            self.build()
        numbers = [columns[name].astype(np.float64).reshape(-1) for name in self.numeric]
        if numbers:
            self._knots.assign([numeric_knots(c, self.num_numeric_knots) for c in numbers])
            self._coarse_knots.assign([numeric_knots(c, self.num_coarse_knots) for c in numbers])
        self._num_rows.assign(float(num_rows[self.feature_names[0]]))

    def compute_output_shape(self, input_shape: Mapping[str, Shape]) -> tuple[int | None, int]:
        """`(batch, 1)`."""
        return (input_shape[self.feature_names[0]][0], 1)

    def get_config(self) -> dict[str, Any]:
        """The constructor arguments as plain Python values."""
        return {
            **super().get_config(),
            "fields": serialize_fields(self.fields),
            "numeric": list(self.numeric),
            "embedding_dim": self.embedding_dim,
            "hidden_units": list(self.hidden_units),
            "num_numeric_knots": self.num_numeric_knots,
            "regularization": self.regularization,
            "seed": self.seed,
            "num_coarse_knots": self.num_coarse_knots,
            "dropout": self.dropout,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> FieldNetwork:
        """Creates the layer from its `get_config`."""
        fields = keras.saving.deserialize_keras_object(config["fields"])
        return cls(**{**config, "fields": fields})

    def embed(self, features: Features) -> Tensor:
        """Concatenated embeddings of all fields, shape (batch, fields · embedding_dim)."""
        # One table holds the embeddings of all fields: one read gives all of a row.
        rows = ops.transpose(table_rows(features, self.fields, self.num_values))
        # Reading the table through a reshape makes its gradient dense.
        table = ops.reshape(self.embeddings, self.embeddings.shape)
        embedded = ops.take(table, rows, axis=0)
        return ops.reshape(embedded, (-1, len(self.fields) * self.embedding_dim))

    def encode(self, values: Tensor, row: int) -> Tensor:
        """Encoding of numeric column number `row`, shape (n, width)."""
        values = ops.cast(ops.reshape(values, (-1,)), self.compute_dtype)
        missing = ops.cast(ops.isnan(values), self.compute_dtype)
        hats = hat_basis(values, ops.convert_to_tensor(self._knots)[row])
        coarse = hat_basis(values, ops.convert_to_tensor(self._coarse_knots)[row])
        # Ramps are sums of hats from the right: each rises from 0 to 1 between two knots, and stays
        # 1. The first is 1 if the value is present.
        ramps = ops.flip(ops.cumsum(ops.flip(coarse, 1), axis=1), 1)
        return ops.concatenate([hats, missing[:, None], ramps], axis=1)

    def _require_adapt(self, output: Tensor) -> Tensor:
        """The output; raises in training before `adapt` has placed the knots of numeric columns."""
        if not self.numeric:
            return output
        num_rows = known_value(self._num_rows)
        if num_rows is None:
            # A compiled step of JAX cannot read the weight and raise, so the gradients become NaN.
            adapted = ops.convert_to_tensor(self._num_rows) > 0
            return on_gradient(output, lambda: None, ops.where(adapted, 1.0, float("nan")))
        return on_gradient(output, self._refuse_training) if num_rows == 0 else output

    def _refuse_training(self) -> None:
        raise ValueError(
            "FieldNetwork cannot be trained before `adapt` has placed the knots of its numeric "
            f"columns. Received: numeric={list(self.numeric)}, with all knots at 0. Call "
            f"{self.name}.adapt(features) with the features of the training rows first."
        )

    def _add_regularization(self) -> None:
        if self.regularization:
            weights = [layer.kernel for layer in self._hidden]
            weights += [self.embeddings] if self.fields else []
            # A Gaussian prior, per row. `divide_no_nan` makes it 0 before `adapt` sets the rows.
            squares = sum((ops.sum(ops.square(weight)) for weight in weights), 0.0)
            prior = 0.5 * self.regularization * squares
            self.add_loss(ops.divide_no_nan(prior, ops.convert_to_tensor(self._num_rows)))
