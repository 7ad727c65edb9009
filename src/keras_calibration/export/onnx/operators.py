"""Operations that the converter would write wrongly or not at all, and checks."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from keras_calibration._typing import Tensor
from keras_calibration.export.checked_inputs import CHECK

if TYPE_CHECKING:
    import onnx
    import tensorflow as tf

# Two exports at once must not restore each other's patch.
_ONE_PATCH = threading.Lock()
_INT64 = 7  # ONNX' number of the type
# Operation of TensorFlow → function that writes it in ONNX.
Handlers = dict[str, Callable[..., None]]


def handlers() -> Handlers:
    """Handlers that replace those of the converter."""
    return {"SelectV2": _select, "DenseBincount": _leave, "Bucketize": _leave}


@contextlib.contextmanager
def counted_searches() -> Iterator[None]:
    """Makes `tf.searchsorted` count comparisons inside the block: ONNX has no search."""
    import tensorflow as tf

    def count(
        sorted_sequence: Tensor, values: Tensor, side: str = "left", out_type: Any = "int32"
    ) -> Tensor:
        # The place of a value in a sorted sequence is the number of entries to its left.
        starts = tf.expand_dims(sorted_sequence, -2)
        rows = tf.expand_dims(values, -1)
        is_left = starts <= rows if side == "right" else starts < rows
        return tf.reduce_sum(tf.cast(is_left, out_type), axis=-1)

    with _ONE_PATCH, contextlib.ExitStack() as at_end:
        at_end.callback(setattr, tf, "searchsorted", tf.searchsorted)
        tf.searchsorted = count
        yield


def _select(context: Any, node: Any, name: str, arguments: object) -> None:
    """Selects by `Where`: the converter's handler multiplies by 0 and 1, also NaN."""
    node.type = "Where"


def _leave(context: Any, node: Any, name: str, arguments: object) -> None:
    """Leaves an operation as it is, so that ONNX Runtime refuses the file.

    The converter would count the ids of all rows as one (`CategoryEncoding` of several values), or
    write an invalid node (`Discretization`).
    """


def correct(model: onnx.ModelProto) -> None:
    """Makes operations agree with TensorFlow for a request without rows."""
    import onnx

    inferred = onnx.shape_inference.infer_shapes(model).graph
    ranks = {
        value.name: len(value.type.tensor_type.shape.dim)
        for value in (*inferred.input, *inferred.value_info, *inferred.output)
        if value.type.tensor_type.HasField("shape")
    }
    _count_axes(model.graph, ranks, {})


def _count_axes(graph: onnx.GraphProto, ranks: dict[str, int], constants: dict[str, Any]) -> None:
    """Counts the axes of reductions from the start: negative ones are not reduced without rows."""
    from onnx import numpy_helper

    constants = {**constants, **{tensor.name: tensor for tensor in graph.initializer}}
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _count_axes(attribute.g, ranks, constants)
        rank = ranks.get(node.input[0]) if node.input else None
        if not node.op_type.startswith("Reduce") or rank is None:
            continue
        for attribute in node.attribute:
            if attribute.name == "axes":
                attribute.ints[:] = [axis % rank for axis in attribute.ints]
        if len(node.input) > 1 and node.input[1] in constants:
            axes = numpy_helper.to_array(constants[node.input[1]])
            node.input[1] = f"{node.output[0]}/axes"
            graph.initializer.append(numpy_helper.from_array(axes % rank, node.input[1]))


def keep_for_tools(model: onnx.ModelProto, exact: str) -> None:
    """Rewrites operations that tools for quantization and for float16 would break.

    ONNX Runtime's quantization rounds the tables of `Gather` to 8 bits, in which knots and slopes
    are lost: `GatherND` reads those of the layer `exact`. Its conversion to float16 writes an
    invalid file if two `Min` or `Max` share a constant: each gets a copy.
    """
    from onnx import helper

    graph, shared = model.graph, set[str]()
    constants = {tensor.name: tensor for tensor in graph.initializer}
    # From the end, because inserted nodes move the places of later ones only.
    for place, node in reversed(list(enumerate(graph.node))):
        table = [*node.input, ""][0]
        output = node.output[0]
        is_read = node.op_type == "Gather" and not any(value.i for value in node.attribute)
        if is_read and table in constants and re.match(rf"{re.escape(exact)}(_\d+)?/", node.name):
            axis, ids, places = (f"{output}/{part}" for part in ("axis", "whole", "places"))
            graph.initializer.append(helper.make_tensor(axis, _INT64, [1], [-1]))
            # `GatherND` reads the rows of a table at places (n, 1), int64: the same as `Gather` at
            # (n,).
            cast = helper.make_node("Cast", [node.input[1]], [ids], ids, to=_INT64)
            column = helper.make_node("Unsqueeze", [ids, axis], [places], places)
            node.CopyFrom(helper.make_node("GatherND", [table, places], [output], node.name))
            graph.node.insert(place, column)
            graph.node.insert(place, cast)
        for number, name in enumerate(node.input if node.op_type in ("Min", "Max") else ()):
            if name in shared & constants.keys():
                copy = graph.initializer.add()
                copy.CopyFrom(constants[name])
                copy.name = node.input[number] = f"{output}/{number}"
            shared.add(name)


def check_rows(model: onnx.ModelProto, inputs: Mapping[str, tf.TensorSpec]) -> None:
    """Makes the graph fail unless all inputs that it reads have the same number of rows.

    ONNX Runtime compares ranks and widths with the file. So each input except the first is only
    reshaped to the rows of the first: one node for each input, and one for each width.

    Args:
        model: The graph; its nodes are changed to read the reshaped inputs.
        inputs: Name → shape of its inputs.
    """
    from onnx import helper

    graph, rows = model.graph, f"{CHECK}/rows"
    used = set(tensors_read(graph))
    first, *others = [name for name in inputs if name in used] or [""]
    if not others:
        return
    nodes = [helper.make_node("Shape", [first], [rows], rows, start=0, end=1)]
    shapes: dict[tuple[int | None, ...], str] = {(): rows}
    for name in others:
        width = tuple(inputs[name].shape[1:])
        # Inputs of one fixed width share a target shape. If a width is not fixed, the input gets a
        # target of its own, with the width of the request.
        key = width if None not in width else (None, len(shapes))
        if key not in shapes:
            shapes[key] = shape = f"{CHECK}/shape_{len(shapes)}"
            size = f"{shape}/width"
            if None in width:
                nodes.append(helper.make_node("Shape", [name], [size], size, start=1))
            else:
                graph.initializer.append(helper.make_tensor(size, _INT64, [len(width)], width))
            nodes.append(helper.make_node("Concat", [rows, size], [shape], shape, axis=0))
        checked = f"{CHECK}/{name}/values"
        _rename(graph, name, checked)
        # `allowzero`: a size of 0 is 0 rows. By default, ONNX takes it for the size of the input.
        nodes.append(
            helper.make_node("Reshape", [name, shapes[key]], [checked], checked, allowzero=1)
        )
    for place, node in enumerate(nodes):
        graph.node.insert(place, node)


def tensors_read(graph: onnx.GraphProto) -> Iterator[str]:
    """The names of the tensors that nodes of a graph read, also those in branches."""
    for node in graph.node:
        yield from node.input
        for attribute in node.attribute:
            yield from tensors_read(attribute.g)


def _rename(graph: onnx.GraphProto, name: str, new: str) -> None:
    """Makes all nodes that read a tensor, also those in branches, read another."""
    for node in graph.node:
        node.input[:] = [new if tensor == name else tensor for tensor in node.input]
        for attribute in node.attribute:
            _rename(attribute.g, name, new)
