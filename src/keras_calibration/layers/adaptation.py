"""Detects training before `adapt`: reads scalar weights in traced steps and hooks on gradients."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_calibration.ops.custom_gradients import with_gradient


def known_value(variable: Any) -> float | None:
    """The value of a scalar weight, or None where it is known only inside a compiled step.

    TensorFlow can read a variable while it traces a step, also under a distribution strategy. JAX
    passes variables to compiled steps as arguments, so their values are not known there.

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
    """Returns the values unchanged; `action` runs when their gradient is computed or traced.

    Every training loop takes gradients and prediction does not, so `action` can warn or raise
    without the `training` argument, which custom loops often omit. The gradient is multiplied by
    `factor`.
    """

    def identity(values: Any, factor: Any) -> tuple[Any, Any]:
        def gradient(*upstream: Any, **by_keyword: Any) -> tuple[Any, Any]:
            action()
            (by_values,) = upstream or by_keyword.values()
            return by_values * factor, ops.zeros_like(factor)

        return values, gradient

    factor = ops.convert_to_tensor(factor, values.dtype)
    return with_gradient(identity)(values, factor)
