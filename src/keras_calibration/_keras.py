"""Private parts of Keras and TensorFlow that the package needs, each with its public alternative.

Tested on Keras 3.15, TensorFlow 2.18 and 2.21. Nothing is imported before it is used.
"""

from __future__ import annotations

import collections
import contextlib
import re
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from keras_calibration._typing import Tensor

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

# Number of open blocks of `_skip_replica_sums`; the last one restores what the first patched.
_blocks_without_sums = 0
_COUNT_BLOCKS = threading.Lock()


def flatten_layers(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
    """A layer or model and all layers in it, at any depth.

    Public: `model.layers` has only the layers of a model, not those inside a layer.
    """
    return list(layer._flatten_layers())


def source_of(tensor: keras.KerasTensor) -> tuple[keras.Operation, Any]:
    """The operation that made a symbolic tensor, and its call: a shared layer has several.

    Public: `model.operations` lists the operations, but not which one gives which output.
    """
    history = tensor._keras_history
    return history.operation, history.operation._inbound_nodes[history.node_index]


def position_of(tensor: keras.KerasTensor) -> int:
    """The position of a symbolic tensor among the flat outputs of the operation that made it.

    Public: see `source_of`.
    """
    return int(tensor._keras_history.tensor_index)


def sequential_output(model: keras.Sequential) -> Any:
    """The symbolic output of a built Sequential model, in its structure.

    Public: `model.outputs` is flat; `model.output` exists only after a call on a symbolic tensor.
    """
    return model._functional.output


def metric_direction(metric: keras.metrics.Metric) -> str | None:
    """`"max"` or `"min"` if the class of a metric defines which way is better.

    A user's class does not inherit it: it may return 1 minus the value.
    Public: none; Keras sets it on its metrics, for its tuner.
    """
    kind = type(metric)
    is_ours = kind.__module__.partition(".")[0] in ("keras", "keras_calibration")
    if not (is_ours or "_direction" in vars(kind)):
        return None
    return {"up": "max", "down": "min"}.get(getattr(metric, "_direction", ""))


def metrics_by_name(model: keras.Model) -> dict[str, keras.metrics.Metric]:
    """The metrics of a model, under their names in the logs of `fit`.

    Keras adds the name of the output, `weighted_` or a number where `compile` has equal names.
    Public: `model.metrics` has one container for those of `compile`, whose `result` has the names.
    """
    named: dict[str, keras.metrics.Metric] = {}
    for metric in model.metrics:
        inner = getattr(metric, "metrics", None)
        named |= dict(zip(metric.result(), inner, strict=False)) if inner else {metric.name: metric}
    return named


def is_under_xla() -> bool:
    """Whether TensorFlow traces a function with `jit_compile=True`, or one inside of it.

    Public: `tf.inside_function()` detects graphs, but not XLA.
    """
    try:
        from tensorflow.python.framework.ops import get_default_graph
        from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext
    except ImportError:
        return False
    return bool(GraphOrParentsInXlaContext(get_default_graph()))


def is_deterministic() -> bool:
    """Whether TensorFlow's operations are deterministic.

    Public: `tf.config.experimental.enable_op_determinism` sets it; no function returns it.
    """
    from tensorflow.python.framework import config

    return bool(config.is_op_determinism_enabled())


def let_graph_own_gradient(tensor: Tensor) -> None:
    """Makes TensorFlow's registry of custom gradients hold that of a traced tensor weakly.

    Public: `tf.custom_gradient` and `tf.RegisterGradient` keep every gradient, and the graph in
    which it was traced, until the process ends.
    """
    graph = getattr(tensor, "graph", None)
    if graph is None:
        return
    try:
        from tensorflow.python.framework.ops import gradient_registry

        entries = gradient_registry._registry
        name = tensor.op.get_attr("_gradient_op_type").decode()
        gradient = entries[name]["type"]
    except (ImportError, AttributeError, KeyError, ValueError):
        return  # the gradient stays in memory
    owned: Callable[[], Any] = weakref.ref(gradient)
    graph._gradients_of_calibration = [*getattr(graph, "_gradients_of_calibration", ()), gradient]
    entries[name]["type"] = lambda *arguments: owned()(*arguments)
    weakref.finalize(graph, entries.pop, name, None).atexit = False


def restart_names(counts: dict[str, int] | None = None) -> dict[str, int]:
    """Makes Keras number the names of layers and metrics from these counts, or from the start.

    Returns the previous counts. Public: `keras.backend.clear_session`, which also ends the graphs
    of the user's other models.
    """
    from keras.src.backend.common import global_state

    before = global_state.get_global_attribute("object_name_uids")
    global_state.set_global_attribute(
        "object_name_uids", collections.defaultdict(int, counts or {})
    )
    return dict(before or {})


def outside_of_graphs() -> contextlib.AbstractContextManager[Any]:
    """A context in which TensorFlow reads values while it traces a step; elsewhere, none is needed.

    Public: `tf.init_scope`.
    """
    import keras

    if keras.backend.backend() != "tensorflow":
        return contextlib.nullcontext()
    import tensorflow as tf

    return tf.init_scope()


@contextlib.contextmanager
def throwaway_layers() -> Iterator[None]:
    """Keeps temporary layers, metrics and optimizers from leaving memory with TensorFlow.

    For objects that are created in every fit and then thrown away, and what they trace. Inside the
    block, layers have the names of a new process; later layers, the names that they would have
    without it. Public: see the parts.
    """
    # TensorFlow keeps 35 kB for each new name of a variable, in its cache of eager kernels.
    names = restart_names()
    try:
        with _name_without_numbers(), _skip_replica_sums():
            yield
    finally:
        restart_names(names)


@contextlib.contextmanager
def _name_without_numbers() -> Iterator[None]:
    """Names TensorFlow's variables without their scope and its numbers.

    The user's layers around them have numbered names: see `throwaway_layers`. TensorFlow does not
    identify variables by this name; Keras' `name` and `path` stay. Public:
    `tf.variable_creator_scope`, used here.
    """
    import keras

    if keras.backend.backend() != "tensorflow":
        yield
        return
    import tensorflow as tf

    def create(next_creator: Callable[..., tf.Variable], **arguments: Any) -> tf.Variable:
        name = re.sub(r"_\d+(?=_|$)", "", arguments.get("name") or "variable")
        with tf.name_scope(""):
            return next_creator(**{**arguments, "name": name})

    with tf.variable_creator_scope(create):
        yield


@contextlib.contextmanager
def _skip_replica_sums() -> Iterator[None]:
    """Makes Keras' optimizers skip the sum of gradients over replicas if there is only one replica.

    On TensorFlow this sum has a custom gradient, which keeps the traced step in memory (see
    `let_graph_own_gradient`). With one replica the sum changes nothing, so other threads may train
    meanwhile. Public: none.
    """
    global _blocks_without_sums
    import keras

    name, optimizer = "_all_reduce_sum_gradients", keras.optimizers.Optimizer
    sum_over_replicas = getattr(super(optimizer, optimizer), name, None)
    if sum_over_replicas is None:  # another backend
        yield
        return
    import tensorflow as tf

    def sum_over_several(self: keras.optimizers.Optimizer, grads_and_vars: Any) -> Any:
        if tf.distribute.get_strategy().num_replicas_in_sync > 1:
            return sum_over_replicas(self, grads_and_vars)
        return grads_and_vars

    with _COUNT_BLOCKS:
        _blocks_without_sums += 1
        setattr(optimizer, name, sum_over_several)
    try:
        yield
    finally:
        with _COUNT_BLOCKS:
            _blocks_without_sums -= 1
            if not _blocks_without_sums:
                delattr(optimizer, name)


def build_for_fit(model: keras.Model, batch: tuple[Any, ...]) -> None:
    """Creates all variables of a compiled model, also those of its metrics and optimizer.

    Public: `model.train_on_batch`, which also trains, and takes seconds to trace.
    """
    model._symbolic_build(data_batch=batch)


def call_after_callbacks(model: keras.Model, function: Callable[[], Any]) -> bool:
    """Calls a function once, when all callbacks of a `fit` that begins have ended.

    Returns False if that is not possible. Call it in `on_train_begin` of a callback. Public: none;
    a callback does not see the others.
    """
    import keras

    history = getattr(model, "history", None)
    # `fit` appends a new `History` to the callbacks. One that has begun is from an earlier fit, or
    # one of the user that stands before the caller, so that others may follow.
    if not isinstance(history, keras.callbacks.History) or hasattr(history, "epoch"):
        return False
    end = history.on_train_end

    def on_train_end(logs: Any = None) -> None:
        vars(history).pop("on_train_end", None)
        end(logs)
        function()

    history.on_train_end = on_train_end
    return True


def write_fingerprint(savedmodel: str) -> None:
    """Writes `fingerprint.pb` of a complete SavedModel.

    Public: `tf.saved_model.save` writes it only for the model that it saves.
    """
    from tensorflow.python.saved_model import fingerprinting_utils

    fingerprinting_utils.write_fingerprint(savedmodel)


def patch_tf2onnx() -> None:
    """Makes tf2onnx work with the installed NumPy and TensorFlow.

    Public: `model.export(format="onnx")` does so too, but does not take a function to export.
    """
    from keras.src.export import tf2onnx_lib

    tf2onnx_lib.patch_tf2onnx()
