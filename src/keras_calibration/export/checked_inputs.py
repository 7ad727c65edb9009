"""Checks the shapes of requests inside the graph of a SavedModel.

For ONNX files, see `onnx.operators.check_rows`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from keras_calibration._typing import Features, Tensor

if TYPE_CHECKING:
    import tensorflow as tf

# The name of the checking nodes, with that of the input: runtimes show it in their errors.
CHECK = "shapes_must_fit_the_signature_and_each_other"
_MOST_ROWS = 2**31 - 1
# A shape that every runtime refuses.
_NOTHING = (-2, 1)


def with_checked_inputs(
    function: Callable[[Features], Any], specs: Mapping[str, tf.TensorSpec]
) -> Callable[[Features], Any]:
    """The function with a check of the shapes of its inputs, which the graph makes when it runs.

    TensorFlow Serving and C do not compare a request with the shapes of a signature. Other shapes
    would be broadcast to wrong probabilities.

    Args:
        function: Function of inputs by name.
        specs: Input → its shape in the signature. Inputs with one value per row may come as
            `(batch,)` or `(batch, 1)`; others must have this shape.
    """
    return lambda inputs: function(_check_shapes(inputs, specs))


def _check_shapes(inputs: Features, specs: Mapping[str, tf.TensorSpec]) -> dict[str, Tensor]:
    """The inputs in the shapes of the signature; fails for other shapes that a result depends on.

    Converters drop assertions. The check therefore consists of operations that fail: a minimum that
    refuses shapes of more than two sizes, and reshapes to the smallest number of rows.
    """
    import tensorflow as tf

    with tf.name_scope(CHECK):
        shapes = {name: tf.shape(values) for name, values in inputs.items()}
        # Number of rows, and 1: at the end, the shape of every column.
        least = tf.constant([_MOST_ROWS, 1])
        for name, shape in shapes.items():
            # A minimum of two numbers fails for a shape of three or more sizes. (batch,) is
            # broadcast to it, so that both forms of a column pass.
            sizes = shape if _is_column(specs[name]) else shape[:1]
            least = tf.minimum(least, sizes, name=f"{specs[name].name}/sizes")
        column = tf.maximum(least, [0, 1])  # without rows, both are 0
        return {
            name: _reshape_input(values, shapes[name], column, specs[name])
            for name, values in inputs.items()
        }


def _is_column(spec: tf.TensorSpec) -> bool:
    """Whether an input has one value a row."""
    return tuple(spec.shape[1:]) in ((), (1,))


def _reshape_input(values: Tensor, shape: Tensor, column: Tensor, spec: tf.TensorSpec) -> Tensor:
    """An input in the shape of the signature; fails unless it has as many rows as the column."""
    import tensorflow as tf

    sizes = [shape[n] if size is None else size for n, size in enumerate(spec.shape)][1:]
    if not _is_column(spec):
        # Where a check cannot be a minimum, a reshape to an impossible shape fails instead.
        fits = tf.reduce_all(tf.equal(shape, tf.stack([column[0], *sizes])))
        column = tf.where(fits, column, _NOTHING)
    # Optimizers trust the shape of the signature, and drop a reshape that seems to change nothing.
    # This one seems to add a dimension.
    target = tf.concat([column, sizes], 0) if sizes else column
    return tf.reshape(values, target, name=f"{spec.name}/values")[:, 0]
