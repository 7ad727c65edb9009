"""The check of the shapes of a request, written into the graphs of SavedModels.

That of ONNX files is `onnx.operators.check_rows`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from keras_calibration._typing import Features, Tensor

if TYPE_CHECKING:
    import tensorflow as tf

# Runtimes name the node that fails: this, and the input.
CHECK = "shapes_must_fit_the_signature_and_each_other"
_MOST_ROWS = 2**31 - 1
# A shape that no runtime makes.
_NOTHING = (-2, 1)


def with_checked_inputs(
    function: Callable[[Features], Any], specs: Mapping[str, tf.TensorSpec]
) -> Callable[[Features], Any]:
    """The function, of a request whose shapes the graph itself checks when it runs.

    TensorFlow Serving and C do not compare a request with the shapes of a signature. What
    does not fit would be broadcast to wrong probabilities.

    Args:
        function: From inputs by name to anything.
        specs: Input → its shape in the signature: one value a row, `(batch,)` or `(batch, 1)`,
            comes in either form; any other shape as it is.
    """

    def checked(given: Features) -> Any:
        return function(_checked(given, specs))

    return checked


def _checked(given: Features, specs: Mapping[str, tf.TensorSpec]) -> dict[str, Tensor]:
    """The inputs in the shapes of the signature; fails for others where a result depends on them.

    Converters leave out assertions. The check therefore consists of operations that fail: a minimum
    that takes no shape of more than two sizes, and reshapes to the least number of rows.
    """
    import tensorflow as tf

    with tf.name_scope(CHECK):
        shapes = {name: tf.shape(values) for name, values in given.items()}
        # Number of rows, and 1: at the end, the shape of every column.
        least = tf.constant([_MOST_ROWS, 1])
        for name, shape in shapes.items():
            sizes = shape if _is_column(specs[name]) else shape[:1]
            least = tf.minimum(least, sizes, name=f"{specs[name].name}/sizes")
        column = tf.maximum(least, [0, 1])  # Of no rows, both are 0.
        return {
            name: _in_rows(values, shapes[name], column, specs[name])
            for name, values in given.items()
        }


def _is_column(spec: tf.TensorSpec) -> bool:
    """Whether an input has one value a row."""
    return tuple(spec.shape[1:]) in ((), (1,))


def _in_rows(values: Tensor, shape: Tensor, column: Tensor, spec: tf.TensorSpec) -> Tensor:
    """An input in the shape of the signature; fails unless it has as many rows as the column."""
    import tensorflow as tf

    sizes = [shape[n] if size is None else size for n, size in enumerate(spec.shape)][1:]
    if not _is_column(spec):
        fits = tf.reduce_all(tf.equal(shape, tf.stack([column[0], *sizes])))
        column = tf.where(fits, column, _NOTHING)
    # Optimizers trust the shape of the signature, and leave out a reshape that seems to keep it.
    # This one seems to add a dimension.
    target = tf.concat([column, sizes], 0) if sizes else column
    return tf.reshape(values, target, name=f"{spec.name}/values")[:, 0]
