"""ServedNetwork: field networks as they are served, their first layer worked out beforehand."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calibration.layers.calibrator import mean_of
from keras_calibration.layers.field_ids import table_rows
from keras_calibration.layers.field_network import FieldNetwork
from keras_calibration.ops.field_sums import known_ids


class ServedNetwork(keras.layers.Layer):
    """The mean of field networks of one form, with tables in place of their first layers.

    The first dense layer is linear in what goes into it, and each of its terms depends on a single
    column. So there is a table for each: for a field, `T[id] = E[id] W` takes the place of the
    embedding and of its part of the matrix; for a numeric column, the sum over the hats and ramps
    is linear between the knots of both, and its value and rise are kept for each segment. All
    fields are then one look-up, and all numeric columns of all members another.

    Args:
        members: Built networks that were made with the same arguments.
        with_bias: Whether the bias of the last layer is added; if not, `left_out` has its mean.

    Attributes:
        left_out: What has still to be added for the mean of the networks.

    Example:
        >>> network = FieldNetwork({"site": 3}, ("price",))
        >>> features = {"site": np.array([0, 7]), "price": np.array([0.5, np.nan])}
        >>> print(network(features).shape, ServedNetwork([network])(features).shape)
        (2, 1) (2, 1)
    """

    def __init__(self, members: Sequence[FieldNetwork], with_bias: bool = True) -> None:
        first = members[0]
        super().__init__(dtype=first.dtype_policy)
        self.fields, self.numeric = dict(first.fields), first.numeric
        self._num_values = {name: first.num_values(name) for name in self.fields}
        self._num_members = len(members)
        layers = [member.dense_layers for member in members]
        self._activations = [layer.activation for layer in layers[0]]
        self._num_units = layers[0][0].units
        if self.fields:
            tables = [_field_tables(member) for member in members]
            self._field_table = self._constant("field_table", np.concatenate(tables, axis=1))
        if self.numeric:
            columns = [_numeric_tables(m, n) for m in members for n in range(len(self.numeric))]
            knots, rows = map(np.stack, zip(*columns, strict=True))
            self._ends = self._constant("numeric_ends", knots[:, 1:])
            # Outside the outermost knots nothing changes.
            self._bounds = self._constant("bounds", knots.T[[0, -1]][..., None])
            self._numeric_table = self._constant("numeric_table", np.concatenate(rows))
        weights = [[[layer.kernel, layer.bias] for layer in own[1:]] for own in layers]
        self.left_out = 0.0
        if weights[0] and not with_bias:
            biases = [ops.convert_to_numpy(own[-1].pop()) for own in weights]
            self.left_out = float(np.mean(biases))
        self._later = [
            [[self._constant("later_layer", ops.convert_to_numpy(w)) for w in pair] for pair in own]
            for own in weights
        ]
        self.built = True

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The features that the network reads."""
        return (*self.fields, *self.numeric)

    def call(self, features: Mapping[str, Any]) -> Any:
        """g(x), logits (batch, 1)."""
        parts = [self._of_fields(features)] if self.fields else []
        parts += [self._of_numeric(features)] if self.numeric else []
        outputs = []
        for of_member, later in zip(zip(*parts, strict=True), self._later, strict=True):
            output = self._activations[0](sum(of_member[1:], of_member[0]))
            for activation, weights in zip(self._activations[1:], later, strict=True):
                output = activation(_dense(output, *map(ops.convert_to_tensor, weights)))
            outputs.append(output)
        return mean_of(outputs)

    def _of_fields(self, features: Mapping[str, Any]) -> list[Any]:
        """What the fields add to the first layer of each member (batch, units)."""
        import tensorflow as tf

        rows = table_rows(features, self.fields, self._num_values, _known_ids)
        of_fields = tf.gather(ops.convert_to_tensor(self._field_table), rows)
        # Of a large batch quicker than their sum over an axis.
        of_all = tf.add_n(tf.unstack(of_fields))
        return [of_all] if self._num_members == 1 else ops.split(of_all, self._num_members, axis=1)

    def _of_numeric(self, features: Mapping[str, Any]) -> list[Any]:
        """What the numeric columns add."""
        import tensorflow as tf

        columns = [
            ops.cast(ops.reshape(features[name], (-1,)), self.compute_dtype)
            for name in self.numeric
        ]
        lowest, highest = ops.unstack(ops.convert_to_tensor(self._bounds), 2, axis=0)
        values = ops.stack(columns * self._num_members, axis=0)
        num_tables, num_lines = self._ends.shape[0], self._ends.shape[1] + 1
        line = tf.raw_ops.UpperBound(
            sorted_inputs=ops.convert_to_tensor(self._ends), values=values, out_type=tf.int32
        )
        # The last row of each table is that of the missing value.
        missing = ops.isnan(values)
        line = ops.where(missing, num_lines, line)
        start = np.arange(num_tables, dtype="int32")[:, None] * (num_lines + 1)
        rows = tf.gather(ops.convert_to_tensor(self._numeric_table), line + start)
        knot, gap, value, rise = ops.split(rows, (1, 2, 2 + self._num_units), axis=-1)
        inside = ops.where(missing, 0.0, ops.clip(values, lowest, highest))
        added = value + (inside[..., None] - knot) / gap * rise
        of_members = (self._num_members, len(self.numeric), -1, self._num_units)
        of_all = ops.sum(ops.reshape(added, of_members), axis=1)
        return list(ops.unstack(of_all, self._num_members, axis=0))

    def _constant(self, name: str, value: np.ndarray) -> Any:
        weight = self.add_weight(name=name, shape=value.shape, trainable=False)
        weight.assign(value.astype(self.variable_dtype))
        return weight


def _known_ids(ids: Any, num_values: np.ndarray) -> Any:
    """`known_ids` in fewer operations, which ONNX and LiteRT do not have."""
    import tensorflow as tf

    if ids.dtype not in (tf.int32, tf.int64):
        return known_ids(ids, num_values)
    unsigned = tf.uint32 if ids.dtype == tf.int32 else tf.uint64
    # Without its sign, a negative id is larger than any number of values.
    known = tf.minimum(tf.bitcast(ids, unsigned), tf.constant(num_values, unsigned))
    return tf.cast(tf.bitcast(known, ids.dtype), tf.int32)


def _dense(values: Any, kernel: Any, bias: Any = None) -> Any:
    """A dense layer before its activation."""
    import tensorflow as tf

    if kernel.shape[1] == 1:
        column = ops.sum(values * kernel[:, 0], axis=1, keepdims=True)
        return column if bias is None else column + bias
    # As written here TensorFlow makes one operation of it.
    return tf.nn.bias_add(tf.matmul(values, kernel), bias)


def _first_layer(network: FieldNetwork) -> tuple[np.ndarray, np.ndarray]:
    """Kernel and bias of the first dense layer, float64."""
    first = network.dense_layers[0]
    kernel, bias = (ops.convert_to_numpy(weight) for weight in (first.kernel, first.bias))
    return kernel.astype("float64"), bias.astype("float64")


def _field_tables(network: FieldNetwork) -> np.ndarray:
    """`E[id] W` of the ids of all fields, float64; the first has the bias too."""
    embeddings = ops.convert_to_numpy(network.embeddings).astype("float64")
    kernel, bias = _first_layer(network)
    dim = network.embedding_dim
    tables, end = [], 0
    for number, name in enumerate(network.fields):
        start, end = end, end + network.num_values(name) + 1
        tables.append(embeddings[start:end] @ kernel[number * dim : (number + 1) * dim])
    tables[0] += bias
    return np.concatenate(tables)


def _numeric_tables(network: FieldNetwork, column: int) -> tuple[np.ndarray, np.ndarray]:
    """The knots of a numeric column, and the rows of its table.

    A row is a line, the last one a missing value: knot, gap to the next one, value at the knot
    (units,), rise to the next (units,).
    """
    knots = network.knots_of(column)
    distinct = np.unique(knots)
    # To one length whatever the knots are: a refresh keeps the shapes.
    knots = np.append(distinct, np.full(len(knots) - len(distinct), distinct[-1]))
    kernel, bias = _first_layer(network)
    start = len(network.fields) * network.embedding_dim
    width = (len(kernel) - start) // len(network.numeric)
    kernel = kernel[start + column * width : start + (column + 1) * width]
    encoded = network.encode(np.append(knots, np.nan).astype(network.dtype), column)
    values = ops.convert_to_numpy(encoded).astype("float64") @ kernel
    if column == 0 and not network.fields:
        values += bias
    rises = np.append(np.diff(values[:-1], axis=0), np.zeros((2, values.shape[1])), axis=0)
    gaps = np.append(np.diff(knots), [0.0, 0.0])
    gaps[gaps == 0] = 1.0
    lines = np.column_stack([np.append(knots, 0.0), gaps, values, rises])
    return knots, lines
