"""curves_as_tables: the `ILPS` curves of a head in fewer operations, while an export is traced."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from keras import ops

from keras_calibration._keras import flatten_layers
from keras_calibration._ops.piecewise_linear import curve_on, lines, with_following
from keras_calibration._typing import Tensor
from keras_calibration.layers.head import Head
from keras_calibration.layers.ilps import ILPS

if TYPE_CHECKING:
    import tensorflow as tf


def tables_of(head: Head) -> list[np.ndarray]:
    """For each curve in a head: knot, value, slope and next value of each line, (K, 4)."""
    tables = (with_following(lines(*curve.curve())) for curve in _find_curves(head))
    return [np.asarray(ops.transpose(table)) for table in tables]


@contextlib.contextmanager
def curves_as_tables(head: Head) -> Iterator[list[tf.Variable]]:
    """Makes a head read its curves from tables inside the block; yields these tables.

    Without it, the layer computes its lines from its knots and values in every call: some forty
    operations, which take as long for one row as for a thousand. The curve is the same to the last
    bit.
    """
    import tensorflow as tf

    curves = _find_curves(head)
    tables = [tf.Variable(table, trainable=False) for table in tables_of(head)]
    for curve, table in zip(curves, tables, strict=True):
        read = functools.partial(_read, table=table, extrapolation=curve.extrapolation)
        # Keras' `__setattr__` would track the attribute, which is there only inside of the block.
        object.__setattr__(curve, "calibrate", read)
    try:
        yield tables
    finally:
        for curve in curves:
            object.__delattr__(curve, "calibrate")


def _find_curves(head: Head) -> list[ILPS]:
    """The curves in a head, without those of subclasses, which may compute anything."""
    return [layer for layer in flatten_layers(head) if type(layer) is ILPS]


def _read(logits: Tensor, table: tf.Variable, extrapolation: str) -> Tensor:
    """η(l) = b_k + (l - a_k) s_k, where k is the last knot left of l, or the first."""
    import tensorflow as tf

    rows = tf.reshape(logits, (1, -1))
    line_of_knot = tf.convert_to_tensor(table)
    if extrapolation == "constant":
        # Keeps NaN, which a clip may turn into an end of the range.
        inside = tf.clip_by_value(rows, line_of_knot[0, 0], line_of_knot[-1, 0])
        rows = tf.where(tf.math.is_nan(rows), rows, inside)
    # The number of knots at or left of the logit, without the first one. The raw operation saves
    # the ten operations on shapes that `tf.searchsorted` adds.
    line = tf.raw_ops.UpperBound(
        sorted_inputs=line_of_knot[None, 1:, 0], values=rows, out_type=tf.int32
    )
    curve = curve_on(rows, tf.unstack(tf.gather(line_of_knot, line), axis=-1))
    return tf.reshape(curve, (-1, 1)[: len(logits.shape)])
