"""ServedCurve: an ILPS curve as it is served, its lines worked out beforehand."""

from typing import Any

from keras import ops

from keras_calibration.layers.calibrator import Calibrator
from keras_calibration.layers.ilps import ILPS
from keras_calibration.ops.piecewise_linear import ceilings, lines


class ServedCurve(Calibrator):
    """The curve of an `ILPS` layer, from a table: knot, value, slope and ceiling of each line.

    `η(l) = min(b_k + (l - a_k) s_k, c_k)`, k the last knot left of l. It is the same arithmetic as
    that of `ops.piecewise_linear` on the same numbers, hence the same curve to the last bit, and
    as little falling; but neither slopes nor softplus are computed for every request.

    Args:
        curve: The layer, fitted or trained.

    Example:
        >>> import numpy as np
        >>> curve = ServedCurve(ILPS(num_knots=3, knots="sigmoid"))
        >>> print(curve(np.array([[-2.0], [0.5]], "float32")).numpy().tolist())
        [[-2.0], [0.5]]
    """

    def __init__(self, curve: ILPS) -> None:
        super().__init__(dtype=curve.dtype_policy)
        self.is_constant_outside = curve.extrapolation == "constant"
        of_lines = lines(curve.get_knots(), curve.get_values())
        table = ops.concatenate([of_lines, ceilings(of_lines)[None]])
        self._table = self.add_weight(name="lines", shape=table.shape, trainable=False)
        self._table.assign(table)
        self.built = True

    def calibrate(self, logits: Any) -> Any:
        """η(l)."""
        import tensorflow as tf

        rows = ops.reshape(logits, (1, -1))
        knots, values, slopes, ceiling = ops.unstack(ops.convert_to_tensor(self._table), 4)
        if self.is_constant_outside:
            inside = ops.clip(rows, knots[0], knots[-1])
            rows = ops.where(ops.isnan(rows), rows, inside)
        # `searchsorted` is this, behind ten operations for the shapes; no line begins at the first
        # knot.
        line = tf.raw_ops.UpperBound(sorted_inputs=knots[None, 1:], values=rows, out_type=tf.int32)
        curve = tf.gather(values, line) + (rows - tf.gather(knots, line)) * tf.gather(slopes, line)
        curve = ops.minimum(curve, tf.gather(ceiling, line))
        return ops.reshape(curve, (-1, 1)[: len(logits.shape)])
