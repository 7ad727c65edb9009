"""ServedCurve: the curve of an ILPS layer in fewer operations, for exports."""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
import numpy as np
from keras import ops

from keras_calibration._ops.piecewise_linear import lines
from keras_calibration._typing import Features, Tensor
from keras_calibration.layers.head import Head

if TYPE_CHECKING:
    from keras_calibration.layers.ilps import ILPS


class ServedCurve(Head):
    """The curve of an `ILPS` layer, as a table with the knot, value and slope of each segment.

    `η(l) = b_k + (l - a_k) s_k`, where k is the last knot left of l. By rounding, a rising segment
    could end above the start of the next one; its slope is then reduced accordingly. The curve
    equals the layer's up to rounding, and never decreases where the layer's does not.

    Args:
        curve: The `ILPS` layer, fitted or trained.

    Example:
        >>> from keras_calibration.layers import ILPS
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
