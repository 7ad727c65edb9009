"""What a layer does when it is trained before `adapt`, at the moment a gradient is taken."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_calibration.ops.custom_gradients import with_gradient


def known_value(variable: Any) -> float | None:
    """The value of a scalar weight, also while a step is traced; None where only the step has it.

    TensorFlow can read a variable while it traces a step, also under a distribution strategy. JAX
    hands compiled steps their variables as arguments.

    Example:
        >>> known_value(keras.Variable(3.0))
        3.0
    """
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        with tf.init_scope():
            return float(ops.convert_to_numpy(variable))
    if keras.backend.backend() == "jax":
        import jax

        if isinstance(variable.value, jax.core.Tracer):
            return None
    return float(variable.value)


def on_gradient(values: Any, action: Callable[[], None], factor: Any = 1.0) -> Any:
    """The values themselves, whose gradient calls `action` when it is computed or traced.

    A training step takes gradients, whatever loop it is in, and a prediction does not: `action`
    may warn or raise without a look at `training`, which loops of users' own often leave out.
    """

    def identity(values: Any, factor: Any) -> tuple[Any, Any]:
        def gradient(*upstream: Any, **by_keyword: Any) -> tuple[Any, Any]:
            action()
            (by_values,) = upstream or by_keyword.values()
            return by_values * factor, ops.zeros_like(factor)

        return values, gradient

    factor = ops.convert_to_tensor(factor, values.dtype)
    return with_gradient(identity)(values, factor)
