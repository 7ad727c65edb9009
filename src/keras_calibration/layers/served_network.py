"""ServedNetwork: field networks in fewer operations, for exports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import keras
import numpy as np
from keras import ops

from keras_calibration._keras import throwaway_layers
from keras_calibration._typing import Features, Tensor
from keras_calibration.layers.field_ids import table_rows

if TYPE_CHECKING:
    from keras_calibration.layers.field_network import FieldNetwork


class ServedNetwork(keras.layers.Layer):
    """The mean of field networks with the same arguments, all computed at once.

    With one row a batch, the number of operations determines the latency. The weights of the
    members are therefore stacked, and each layer is one batched matrix product. The contribution of
    a numeric column to the first layer (hats and ramps times a matrix) is linear between the
    column's knots: a table holds its value and rise on each segment.

    Args:
        members: Built networks, created with the same arguments.

    Example:
        >>> from keras_calibration.layers import FieldNetwork
        >>> network = FieldNetwork({"site": 3}, ("price",))
        >>> features = {"site": np.array([0, 7]), "price": np.array([0.5, np.nan])}
        >>> print(network(features).shape, ServedNetwork([network])(features).shape)
        (2, 1) (2, 1)
    """

    def __init__(self, members: Sequence[FieldNetwork]) -> None:
        first = members[0]
        super().__init__(dtype=first.dtype_policy)
        self.fields, self.numeric = dict(first.fields), first.numeric
        self._num_values = {name: first.num_values(name) for name in self.fields}
        self._num_members = len(members)
        self._activations = [layer.activation for layer in first.dense_layers]
        self._embedded_width = len(self.fields) * first.embedding_dim
        if self.fields:
            tables = [ops.convert_to_numpy(member.embeddings) for member in members]
            self._embeddings = self._weight("embeddings", np.concatenate(tables))
        if self.numeric:
            columns = [_numeric_table(m, n) for m in members for n in range(len(self.numeric))]
            knots, rows = map(np.stack, zip(*columns, strict=True))
            self._numeric_ends = self._weight("numeric_ends", knots[:, 1:])
            # Constant outside the outermost knots.
            self._bounds = self._weight("numeric_bounds", knots.T[[0, -1]][..., None])
            self._numeric_table = self._weight("numeric_table", np.concatenate(rows))
        layers = zip(*(member.dense_layers for member in members), strict=True)
        self._dense_weights = []
        for number, member_layers in enumerate(layers):
            kernels = np.stack([ops.convert_to_numpy(layer.kernel) for layer in member_layers])
            biases = np.stack([ops.convert_to_numpy(layer.bias) for layer in member_layers])
            kernels = kernels[:, : self._embedded_width] if number == 0 else kernels
            self._dense_weights.append(
                (self._weight("kernel", kernels), self._weight("bias", biases[:, None]))
            )
        self.built = True

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The features that the network reads."""
        return (*self.fields, *self.numeric)

    def call(self, features: Features) -> Tensor:
        """g(x), logits (batch, 1)."""
        output = None
        for activation, (kernel, bias) in zip(self._activations, self._dense_weights, strict=True):
            if output is not None:
                output = _matmul(output, kernel)
            else:
                parts = [_matmul(self._embedded(features), kernel)] if self.fields else []
                parts += [self._numeric_part(features)] if self.numeric else []
                output = sum(parts[1:], parts[0])
            output = activation(output + ops.convert_to_tensor(bias))
        return ops.mean(output, axis=0)

    def _embedded(self, features: Features) -> Tensor:
        """Concatenated embeddings of all fields, (members, batch, fields · embedding_dim)."""
        import tensorflow as tf

        rows = ops.transpose(table_rows(features, self.fields, self._num_values))
        table = ops.convert_to_tensor(self._embeddings)
        num_rows = table.shape[0] // self._num_members
        starts = num_rows * np.arange(self._num_members, dtype="int32")[:, None, None]
        embedded = tf.gather(table, rows + starts)
        return ops.reshape(embedded, (self._num_members, -1, self._embedded_width))

    def _numeric_part(self, features: Features) -> Tensor:
        """Contribution of the numeric columns to the first layer, (members, batch, units)."""
        import tensorflow as tf

        columns = [
            ops.cast(ops.reshape(features[name], (-1,)), self.compute_dtype)
            for name in self.numeric
        ]
        lowest, highest = ops.unstack(ops.convert_to_tensor(self._bounds), 2, axis=0)
        values = ops.stack(columns * self._num_members, axis=0)
        num_tables, num_lines = self._numeric_ends.shape[0], self._numeric_ends.shape[1] + 1
        line = tf.raw_ops.UpperBound(
            sorted_inputs=ops.convert_to_tensor(self._numeric_ends),
            values=values,
            out_type=tf.int32,
        )
        # The last row of each table is for missing values.
        missing = ops.isnan(values)
        line = ops.where(missing, num_lines, line)
        start = np.arange(num_tables, dtype="int32")[:, None] * (num_lines + 1)
        rows = tf.gather(ops.convert_to_tensor(self._numeric_table), line + start)
        num_units = self._dense_weights[0][1].shape[-1]
        knot, gap, value, rise = ops.split(rows, (1, 2, 2 + num_units), axis=-1)
        inside = ops.where(missing, 0.0, ops.clip(values, lowest, highest))
        added = value + (inside[..., None] - knot) / gap * rise
        by_column = (self._num_members, len(self.numeric), -1, num_units)
        return ops.sum(ops.reshape(added, by_column), axis=1)

    def _weight(self, name: str, value: np.ndarray) -> keras.Variable:
        with throwaway_layers():
            weight = self.add_weight(name=name, shape=value.shape, trainable=False)
        weight.assign(value.astype(self.variable_dtype))
        return weight


def _matmul(values: Tensor, kernel: Tensor) -> Tensor:
    """`tf.matmul` by an operation that oneDNN does not replace: it is slow for a single row."""
    import tensorflow as tf

    kernel = ops.convert_to_tensor(kernel)
    return tf.raw_ops.BatchMatMulV3(x=values, y=kernel, Tout=kernel.dtype)


def _numeric_table(network: FieldNetwork, column: int) -> tuple[np.ndarray, np.ndarray]:
    """The knots of a numeric column, and the rows of its table.

    One row per segment, the last one for missing values: knot, gap to the next knot, value at the
    knot (units,), rise to the next knot (units,).
    """
    knots = np.concatenate([each[column] for each in network.knots()])
    distinct = np.unique(knots)
    # A fixed length, whatever the knots are, because a refresh must keep the shapes.
    knots = np.append(distinct, np.full(len(knots) - len(distinct), distinct[-1]))
    kernel = ops.convert_to_numpy(network.dense_layers[0].kernel).astype("float64")
    start = len(network.fields) * network.embedding_dim
    width = (len(kernel) - start) // len(network.numeric)
    kernel = kernel[start + column * width : start + (column + 1) * width]
    encoded = network.encode(np.append(knots, np.nan).astype(network.dtype), column)
    values = ops.convert_to_numpy(encoded).astype("float64") @ kernel
    rises = np.append(np.diff(values[:-1], axis=0), np.zeros((2, values.shape[1])), axis=0)
    gaps = np.append(np.diff(knots), [0.0, 0.0])
    gaps[gaps == 0] = 1.0
    return knots, np.column_stack([np.append(knots, 0.0), gaps, values, rises])
