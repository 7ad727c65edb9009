"""XLA for a function of fixed shapes, whatever surrounds it."""

import functools
from collections.abc import Callable
from typing import Any

import keras


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function under XLA, also where the model around it runs op by op.

    Keras compiles models by XLA only on a GPU or when told to. What a metric computes from its
    state at every step is a hundred small operations on arrays of one fixed shape: compiled, they
    cost one. On the other backends, which compile the whole step, the function is returned as it
    is.

    Args:
        function: A function of tensors of fixed shapes, and of plain Python values.

    Returns:
        A function that takes and returns the same.

    Example:
        >>> float(compiled(lambda x: 2 * x + 1)(3.0))
        7.0
    """
    if keras.backend.backend() != "tensorflow":
        return function
    import tensorflow as tf

    under_xla = tf.function(function, jit_compile=True, autograph=False)

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        # A Keras variable passes for a tensor everywhere but here.
        return under_xla(*(tf.convert_to_tensor(a) if tf.is_tensor(a) else a for a in arguments))

    return call
