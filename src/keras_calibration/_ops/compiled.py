"""XLA compilation of functions of tensors, independent of the model around them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_calibration._keras import is_under_xla
from keras_calibration._typing import Tensor

# Batches are padded to a multiple of this, so that a smaller last batch is not a new shape for XLA.
_ROWS_TOGETHER = 512


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles a function of tensors of fixed shapes and Python values by XLA.

    Keras compiles models by XLA only on a GPU or on request. A metric computes a hundred small
    operations at every step: compiled, they cost as much as one. On backends other than TensorFlow
    and JAX, the function is returned as it is.
    """
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        under_xla = tf.function(function, jit_compile=True, autograph=False)
        # Call it from a graph of its own in any case: TensorFlow would compile it once for calls
        # from a graph, and once more for eager calls.
        in_graph = tf.function(lambda *arguments: under_xla(*arguments), autograph=False)

        @functools.wraps(function)
        def call(*arguments: Any) -> Any:
            # Other operations accept a Keras variable; `tf.function` needs its value, a tensor.
            return in_graph(*(tf.convert_to_tensor(a) if tf.is_tensor(a) else a for a in arguments))

        return call
    if keras.backend.backend() == "jax":
        import jax

        @functools.wraps(function)
        def call(*arguments: Any) -> Any:
            # JAX compiles Python values, such as a number of bins, into the program as constants.
            plain = (place for place, a in enumerate(arguments) if not ops.is_tensor(a))
            return jax.jit(function, static_argnums=tuple(plain))(*arguments)

        return call
    return function


def is_compiled(tensor: Tensor) -> bool:
    """Whether operations on a tensor become part of an XLA program."""
    if keras.backend.backend() == "tensorflow":
        return is_under_xla()
    if keras.backend.backend() == "jax":
        import jax

        return isinstance(tensor, jax.core.Tracer)
    return False


def runs_on_gpu() -> bool:
    """Whether the backend has a GPU, which it then uses by default."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return bool(tf.config.list_physical_devices("GPU"))
    if keras.backend.backend() == "jax":
        import jax

        return bool(jax.default_backend() == "gpu")
    return False


def filled_up(*rows: Tensor) -> tuple[Tensor, ...]:
    """Pads a batch with rows of zeros to a multiple of 512: XLA compiles once for every shape.

    For functions that sum over rows, where rows of weight 0 add nothing.
    """
    # `-n % 512` is the distance from n up to the next multiple of 512, and 0 for a multiple.
    num_missing = -ops.shape(rows[0])[0] % _ROWS_TOGETHER
    return tuple(
        ops.pad(tensor, [[0, num_missing], *[[0, 0]] * (len(tensor.shape) - 1)]) for tensor in rows
    )
