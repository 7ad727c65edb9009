"""Detects training before `adapt`: reads scalar weights in traced steps and hooks on gradients."""

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np
from keras import ops

from keras_calibration._keras import outside_of_graphs
from keras_calibration._ops.compiled import is_compiled
from keras_calibration._ops.custom_gradients import with_gradient
from keras_calibration._typing import Tensor


def known_value(variable: keras.Variable) -> float | None:
    """The value of a scalar weight, or None where it is known only inside a compiled step.

    TensorFlow can read a variable while it traces a step, also under a distribution strategy. JAX
    passes variables to compiled steps as arguments, so their values are not known there.

    Example:
        >>> known_value(keras.Variable(3.0))
        3.0
    """
    if keras.backend.backend() == "jax" and is_compiled(variable.value):
        return None
    # While TensorFlow traces a step, the variable outside of the graph still has its value.
    with outside_of_graphs():
        return float(np.asarray(variable))


def on_gradient(values: Tensor, action: Callable[[], None], factor: Tensor | float = 1.0) -> Tensor:
    """Returns the values unchanged; `action` runs when their gradient is computed or traced.

    Every training loop takes gradients and prediction does not, so `action` can raise without
    the `training` argument, which custom loops often omit. The gradient is multiplied by `factor`.
    """

    def identity(values: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
        def gradient(*upstream: Tensor, **by_keyword: Tensor) -> tuple[Tensor, Tensor]:
            # In a compiled step, this runs while the step is traced, else at every step: in both
            # cases before a weight changes.
            action()
            (by_values,) = upstream or by_keyword.values()
            # The factor is an argument, because a custom gradient of JAX cannot close over a traced
            # value.
            return by_values * factor, ops.zeros_like(factor)

        return values, gradient

    factor = ops.convert_to_tensor(factor, values.dtype)
    return with_gradient(identity)(values, factor)
