"""ServedCurve: an ILPS curve as it is served, its lines worked out beforehand."""

from typing import Any

import numpy as np
from keras import ops

from keras_calibration.layers.calibrator import Calibrator
from keras_calibration.layers.ilps import ILPS
from keras_calibration.ops.piecewise_linear import lines


class ServedCurve(Calibrator):
    """The curve of an `ILPS` layer, from a table: knot, value and slope of each line.

    `η(l) = b_k + (l - a_k) s_k`, k the last knot left of l. Neither slopes nor softplus are
    computed for a request. Rounding would carry the end of a rising line past the start of the next
    now and then; its slope is made smaller by as much, in place of a minimum at every request. So
    the curve is the layer's to the last digits, and never falls where the layer's does not.

    Args:
        curve: The layer, fitted or trained.
        shift: A number to be added to all of it.

    Example:
        >>> curve = ServedCurve(ILPS(num_knots=3, knots="sigmoid"))
        >>> print(curve(np.array([[-2.0], [0.5]], "float32")).numpy().tolist())
        [[-2.0], [0.5]]
    """

    def __init__(self, curve: ILPS, shift: float = 0.0) -> None:
        super().__init__(dtype=curve.dtype_policy)
        self.is_constant_outside = curve.extrapolation == "constant"
        knot, value, slope = ops.convert_to_numpy(lines(curve.get_knots(), curve.get_values()))
        table = _without_steps_down(knot, value + knot.dtype.type(shift), slope)
        self._table = self.add_weight(name="lines", shape=table.shape, trainable=False)
        self._table.assign(table)
        self.built = True

    def calibrate(self, logits: Any) -> Any:
        """η(l)."""
        import tensorflow as tf

        rows = ops.reshape(logits, (1, -1))
        knots, values, slopes = ops.unstack(ops.convert_to_tensor(self._table), 3)
        if self.is_constant_outside:
            inside = ops.clip(rows, knots[0], knots[-1])
            rows = ops.where(ops.isnan(rows), rows, inside)
        # `searchsorted` is this, behind ten operations for the shapes; no line begins at the first
        # knot.
        line = tf.raw_ops.UpperBound(sorted_inputs=knots[None, 1:], values=rows, out_type=tf.int32)
        curve = tf.gather(values, line) + (rows - tf.gather(knots, line)) * tf.gather(slopes, line)
        return ops.reshape(curve, (-1, 1)[: len(logits.shape)])


def _without_steps_down(knot: np.ndarray, value: np.ndarray, slope: np.ndarray) -> np.ndarray:
    """The lines as a table (3, K), in which no rising one ends above the start of the next."""
    slope = slope.copy()
    start, gap, next_value = value[:-1], np.diff(knot), value[1:]
    length = np.nextafter(knot[1:], knot[:-1]) - knot[:-1]
    digit = np.spacing(np.maximum(np.abs(start), np.abs(next_value)))
    exact = start.astype("float64"), length.astype("float64")
    for num_digits in range(1, 9):
        # Compilers may round the product and the sum at once.
        ends = start + length * slope[:-1], (exact[0] + exact[1] * slope[:-1]).astype(start.dtype)
        is_above = (slope[:-1] > 0) & (np.maximum(*ends) > next_value)
        lower = np.maximum((next_value - start - num_digits * digit) / gap, 0)
        slope[:-1] = np.where(is_above, lower, slope[:-1])
    return np.stack([knot, value, slope])
