"""Custom gradients that do not outlive the graph they were traced in."""

import functools
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_calibration._compat import let_graph_own_gradient


def with_gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    """As `keras.ops.custom_gradient`, for functions of tensors that return one tensor.

    TensorFlow registers the gradient of every trace under a name of its own, for good: with it, the
    whole graph of the training step would stay in memory after the model has gone. Here the graph
    owns the gradient.

    Args:
        function: A function of tensors that returns a tensor and the function of its gradient.

    Returns:
        A function of tensors that returns the tensor.

    Example:
        >>> square = with_gradient(lambda x: (x * x, lambda upstream: upstream * 2 * x))
        >>> float(square(ops.convert_to_tensor(3.0)))
        9.0
    """
    differentiable = ops.custom_gradient(function)
    if keras.backend.backend() != "tensorflow":
        return differentiable

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        result = differentiable(*arguments)
        let_graph_own_gradient(result)
        return result

    return call
