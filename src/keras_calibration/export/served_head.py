"""Heads for serving: the same function in fewer operations."""

from __future__ import annotations

from collections.abc import Sequence

import keras
import numpy as np
from keras import ops

from keras_calibration._keras import unnumbered_variables
from keras_calibration._ops.piecewise_linear import lines
from keras_calibration._typing import Features, Tensor
from keras_calibration.layers.blended_head import BlendedHead
from keras_calibration.layers.boosted_trees import BoostedTrees
from keras_calibration.layers.field_bias import FieldBias
from keras_calibration.layers.field_ids import table_rows
from keras_calibration.layers.field_ilps import FieldILPS
from keras_calibration.layers.field_network import FieldNetwork
from keras_calibration.layers.head import Head
from keras_calibration.layers.ilps import ILPS
from keras_calibration.layers.neural_calibration import NeuralCalibration
from keras_calibration.layers.posterior import without_posterior


def served_head(head: Head) -> Head:
    """An equivalent head with fewer operations, which cannot be trained.

    `ILPS` curves become `ServedCurve`, field networks become `ServedNetwork`; other layers are
    kept. Number and shapes of the weights depend only on the head's arguments, so they are the same
    after a refit.

    Args:
        head: A fitted head, called as `head(logits, features)`.

    Returns:
        A layer with the same call arguments.

    Example:
        >>> head = served_head(ILPS())
        >>> head(np.array([[0.5]], "float32"), {}).numpy().tolist()
        [[0.5]]
    """
    # Exact types, here and below, because subclasses may compute anything.
    if type(head) is BlendedHead:
        parts = [served_head(part) for part in head.heads]
        return BlendedHead(parts, head.head_weights, dtype=head.dtype_policy)
    if type(head) is ILPS:
        return ServedCurve(head)
    if type(head) is BoostedTrees:
        return _served_trees(head)
    if type(head) is NeuralCalibration:
        return _served_neural(head)
    if type(head) in (FieldBias, FieldILPS) and type(head.calibrator) is ILPS:
        return _with_served_curve(head)
    return head


def _served_neural(head: NeuralCalibration) -> Head:
    curve = None if head.calibrator is None else served_head(head.calibrator)
    network: keras.layers.Layer | None = head.field_network
    if head.members and all(type(member) is FieldNetwork for member in head.members):
        network = ServedNetwork(head.members)
    elif len(head.members) > 1:
        return head
    return NeuralCalibration(curve, network, dtype=head.dtype_policy)


def _served_trees(head: BoostedTrees) -> Head:
    served = BoostedTrees(
        head.fields,
        head.numeric,
        served_head(head.head),
        num_rounds=head.num_rounds,
        dtype=head.dtype_policy,
    )
    served.build((None, head.num_outputs))
    for weight, value in zip(served.tables, head.tables, strict=True):
        weight.assign(value)
    return served


def _with_served_curve(head: Head) -> Head:
    served = type(head).from_config({**head.get_config(), "calibrator": None})
    served.calibrator = ServedCurve(head.calibrator)
    served.build()
    for weight, value in zip(_own_weights(served), _own_weights(head), strict=True):
        weight.assign(value)
    return served


def _own_weights(head: Head) -> list[keras.Variable]:
    """The weights of a head without those of its curve, and without the posterior."""
    curve_weights = {id(weight) for weight in head.calibrator.weights}
    return [each for each in without_posterior(head.weights) if id(each) not in curve_weights]


class ServedCurve(Head):
    """The curve of an `ILPS` layer, as a table with the knot, value and slope of each segment.

    `η(l) = b_k + (l - a_k) s_k`, where k is the last knot left of l. By rounding, a rising segment
    could end above the start of the next one; its slope is then reduced accordingly. The curve
    equals the layer's up to rounding, and never decreases where the layer's does not.

    Args:
        curve: The `ILPS` layer, fitted or trained.

    Example:
        >>> curve = ServedCurve(ILPS(num_knots=3, knots="sigmoid"))
        >>> print(curve(np.array([[-2.0], [0.5]], "float32")).numpy().tolist())
        [[-2.0], [0.5]]
    """

    def __init__(self, curve: ILPS) -> None:
        super().__init__(dtype=curve.dtype_policy)
        self.is_constant_outside = curve.extrapolation == "constant"
        table = ops.convert_to_numpy(lines(curve.get_knots(), curve.get_values()))
        table = _without_steps_down(*table)
        # The first segment also covers everything left of the first knot.
        self._starts = self._weight("starts", table[:1, 1:])
        self._lines = self._weight("lines", table.T)
        self.built = True

    def call(self, logits: Tensor, features: Features | None = None) -> Tensor:
        """η(l)."""
        import tensorflow as tf

        logits = ops.cast(logits, self.compute_dtype)
        rows = ops.reshape(logits, (1, -1))
        table = ops.convert_to_tensor(self._lines)
        if self.is_constant_outside:
            inside = ops.clip(rows, table[0, 0], table[-1, 0])
            rows = ops.where(ops.isnan(rows), rows, inside)
        # `tf.searchsorted` would add ten operations on shapes.
        line = tf.raw_ops.UpperBound(
            sorted_inputs=ops.convert_to_tensor(self._starts), values=rows, out_type=tf.int32
        )
        knot, value, slope = tf.unstack(tf.gather(table, line), axis=-1)
        return ops.reshape(value + (rows - knot) * slope, (-1, 1)[: len(logits.shape)])

    def _weight(self, name: str, value: np.ndarray) -> keras.Variable:
        weight = self.add_weight(name=name, shape=value.shape, trainable=False)
        weight.assign(value)
        return weight


def _without_steps_down(knot: np.ndarray, value: np.ndarray, slope: np.ndarray) -> np.ndarray:
    """The segments as a table (3, K); no rising one ends above the start of the next."""
    slope = slope.copy()
    start, gap, next_value = value[:-1], np.diff(knot), value[1:]
    length = np.nextafter(knot[1:], knot[:-1]) - knot[:-1]
    digit = np.spacing(np.maximum(np.abs(start), np.abs(next_value)))
    exact = start.astype("float64"), length.astype("float64")
    for num_digits in range(1, 9):
        # Compilers may fuse product and sum, with a single rounding.
        ends = start + length * slope[:-1], (exact[0] + exact[1] * slope[:-1]).astype(start.dtype)
        is_above = (slope[:-1] > 0) & (np.maximum(*ends) > next_value)
        lower = np.maximum((next_value - start - num_digits * digit) / gap, 0)
        slope[:-1] = np.where(is_above, lower, slope[:-1])
    return np.stack([knot, value, slope])


class ServedNetwork(keras.layers.Layer):
    """The mean of field networks with the same arguments, all computed at once.

    With one row a batch, the number of operations determines the latency. The weights of the
    members are therefore stacked, and each layer is one batched matrix product. The contribution of
    a numeric column to the first layer (hats and ramps times a matrix) is linear between the
    column's knots: a table holds its value and rise on each segment.

    Args:
        members: Built networks, created with the same arguments.

    Example:
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
        with unnumbered_variables():
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
