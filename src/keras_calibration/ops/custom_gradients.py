"""Custom gradients that do not outlive the graph they were traced in."""

import functools
import weakref
from collections.abc import Callable
from typing import Any

import keras
from keras import ops


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
        graph = getattr(result, "graph", None)
        if graph is not None:
            _let_graph_own_gradient(graph, result.op)
        return result

    return call


def _let_graph_own_gradient(graph: Any, operation: Any) -> None:
    """Makes TensorFlow's registry of gradients refer weakly to that of an operation."""
    try:  # TensorFlow keeps it to itself.
        from tensorflow.python.framework.ops import gradient_registry

        entries = gradient_registry._registry
        name = operation.get_attr("_gradient_op_type").decode()
        gradient = entries[name]["type"]
    except (ImportError, AttributeError, KeyError, ValueError):
        return  # Then it stays in memory.
    owned: Any = weakref.ref(gradient)
    graph._gradients_of_calibration = [*getattr(graph, "_gradients_of_calibration", ()), gradient]
    entries[name]["type"] = lambda *arguments: owned()(*arguments)
    weakref.finalize(graph, entries.pop, name, None).atexit = False
