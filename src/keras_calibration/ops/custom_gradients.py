"""Custom gradients that are freed together with the graph they were traced in."""

import functools
import weakref
from collections.abc import Callable
from typing import Any

import keras
from keras import ops


def with_gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    """As `keras.ops.custom_gradient`, for functions that return one tensor, without a memory leak.

    TensorFlow registers the gradient of every trace under a new name and never removes it, so the
    graph of the training step would stay in memory after the model is gone. Here the graph owns the
    gradient.
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
    """Makes TensorFlow's gradient registry refer weakly to the gradient of an operation."""
    try:  # TensorFlow has no public access to it.
        from tensorflow.python.framework.ops import gradient_registry

        entries = gradient_registry._registry
        name = operation.get_attr("_gradient_op_type").decode()
        gradient = entries[name]["type"]
    except (ImportError, AttributeError, KeyError, ValueError):
        return  # The gradient then stays in memory.
    owned: Any = weakref.ref(gradient)
    graph._gradients_of_calibration = [*getattr(graph, "_gradients_of_calibration", ()), gradient]
    entries[name]["type"] = lambda *arguments: owned()(*arguments)
    weakref.finalize(graph, entries.pop, name, None).atexit = False
