"""XLA for a function of tensors, whatever surrounds it."""

import functools
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_calibration._compat import is_under_xla

# Batches are filled up to a multiple of this: a last batch of any size is then nothing new to XLA,
# which compiles once for every shape.
_ROWS_TOGETHER = 512


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function under XLA, also where the model around it runs op by op.

    Keras compiles models by XLA only on a GPU or when told to. What a metric computes at every step
    is a hundred small operations: compiled, they cost one. On a backend other than TensorFlow and
    JAX the function is returned as it is.

    Args:
        function: A function of tensors of fixed shapes, and of plain Python values.

    Returns:
        A function that takes and returns the same.

    Example:
        >>> float(compiled(lambda x: 2 * x + 1)(ops.ones(())))
        3.0
    """
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        under_xla = tf.function(function, jit_compile=True, autograph=False)
        # Called from a graph of its own, also outside of any, it is compiled once: TensorFlow keeps
        # what it compiles for a call within a graph apart from what it does for one outside.
        in_graph = tf.function(lambda *arguments: under_xla(*arguments), autograph=False)

        @functools.wraps(function)
        def call(*arguments: Any) -> Any:
            # A Keras variable passes for a tensor everywhere but here.
            return in_graph(*(tf.convert_to_tensor(a) if tf.is_tensor(a) else a for a in arguments))

        return call
    if keras.backend.backend() == "jax":
        import jax

        @functools.wraps(function)
        def call(*arguments: Any) -> Any:
            plain = (place for place, a in enumerate(arguments) if not ops.is_tensor(a))
            return jax.jit(function, static_argnums=tuple(plain))(*arguments)

        return call
    return function


def is_compiled(tensor: Any) -> bool:
    """Whether what is done with a tensor becomes part of a program of XLA's.

    On TensorFlow, whether the function being traced is one with `jit_compile=True`, or inside one.

    Args:
        tensor: The tensor.

    Example:
        >>> is_compiled(ops.ones(()))
        False
    """
    if keras.backend.backend() == "tensorflow":
        return is_under_xla()
    if keras.backend.backend() == "jax":
        import jax

        return isinstance(tensor, jax.core.Tracer)
    return False


def runs_on_gpu() -> bool:
    """Whether the backend has a GPU, on which it then computes unless told otherwise.

    Example:
        >>> isinstance(runs_on_gpu(), bool)
        True
    """
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return bool(tf.config.list_physical_devices("GPU"))
    if keras.backend.backend() == "jax":
        import jax

        return bool(jax.default_backend() == "gpu")
    return False


def filled_up(*rows: Any) -> tuple[Any, ...]:
    """Rows of zeros added to a batch, up to a multiple of 512: XLA compiles once for every shape.

    For functions that sum over rows, of which those of weight 0 add nothing.

    Args:
        *rows: Tensors of the same number of rows (n,).

    Returns:
        Tensors of a multiple of 512 rows.

    Example:
        >>> [tensor.shape[0] for tensor in filled_up(ops.ones(3), ops.ones(3))]
        [512, 512]
    """
    num_missing = -ops.shape(rows[0])[0] % _ROWS_TOGETHER
    return tuple(ops.pad(tensor, [[0, num_missing]]) for tensor in rows)
