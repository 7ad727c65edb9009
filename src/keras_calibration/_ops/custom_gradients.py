"""Custom gradients that are freed together with the graph in which they were traced."""

from __future__ import annotations

import functools
from collections.abc import Callable

import keras
from keras import ops

from keras_calibration._keras import let_graph_own_gradient
from keras_calibration._typing import Tensor


def with_gradient(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """As `keras.ops.custom_gradient`, for functions that return one tensor, without a memory leak.

    TensorFlow registers the gradient of every trace under a new name and never removes it, so the
    graph of the training step would stay in memory after the model is gone. Here the graph owns the
    gradient.
    """
    differentiable = ops.custom_gradient(function)
    if keras.backend.backend() != "tensorflow":
        return differentiable

    @functools.wraps(function)
    def call(*arguments: Tensor) -> Tensor:
        result = differentiable(*arguments)
        let_graph_own_gradient(result)
        return result

    return call
