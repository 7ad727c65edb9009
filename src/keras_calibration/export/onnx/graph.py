"""ONNX graphs of functions, and graphs that are put together. The converter is tf2onnx."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

import keras

from calibration_records._warn import without_notices
from keras_calibration._keras import counted_searches, patch_tf2onnx
from keras_calibration._typing import Features, Tensor
from keras_calibration.export.onnx.lookups import ML_DOMAIN, ML_OPSET, label_encoders
from keras_calibration.export.onnx.operators import check_rows, correct, handlers, tensors_read

if TYPE_CHECKING:
    import onnx
    import tensorflow as tf

OPSET = 17
# What tensors and nodes of the head's graph are named by, and those of a base from elsewhere.
HEAD, BASE = "head/", "base/"


def onnx_packages() -> tuple[ModuleType, ModuleType]:
    """Imports `tf2onnx` and `onnxruntime`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import onnxruntime
            import tf2onnx
    except ImportError as error:
        raise ImportError(
            f"export_onnx requires tf2onnx, onnx and onnxruntime ({error}). Install them with `pip "
            'install "keras-calibration[onnx]"`.'
        ) from error
    return tf2onnx, onnxruntime


def to_onnx(
    function: Callable[[Features], dict[str, Tensor]],
    inputs: Mapping[str, tf.TensorSpec],
    layers: Iterable[keras.layers.Layer],
) -> onnx.ModelProto:
    """Converts a function of inputs by name; its inputs and outputs keep their names.

    The graph fails for inputs that differ in their numbers of rows.

    Args:
        function: From tensors by name to outputs by name.
        inputs: Name → shape and dtype.
        layers: The layers that it calls, at any depth.
    """
    import tensorflow as tf

    tf2onnx, _ = onnx_packages()
    from onnx import helper

    traced = tf.function(function, autograph=False)
    signature = {name: _named(name, spec) for name, spec in inputs.items()}
    with (
        warnings.catch_warnings(),
        without_notices("tensorflow", logging.ERROR),
        # It says which shapes it cannot infer.
        without_notices("tf2onnx", logging.CRITICAL),
        counted_searches(),
        label_encoders(layers) as lookups,
    ):
        # Warnings about NumPy from the converter's own code.
        warnings.simplefilter("ignore")
        patch_tf2onnx()
        written = {**handlers(), **lookups}
        converted, _ = tf2onnx.convert.from_function(
            traced,
            [signature],
            opset=OPSET,
            extra_opset=[helper.make_opsetid(ML_DOMAIN, ML_OPSET)],
            custom_op_handlers={name: (handler, []) for name, handler in written.items()},
        )
        concrete = traced.get_concrete_function(signature)
    _keep_inputs(converted, inputs, concrete)
    correct(converted)
    check_rows(converted, inputs)
    for value in converted.graph.input:
        _set_shape(value, signature[value.name].shape)
    for value in converted.graph.output:
        _set_shape(value, concrete.structured_outputs[value.name].shape)
    return converted


def _keep_inputs(model: onnx.ModelProto, inputs: Collection[str], traced: Any) -> None:
    """Leaves the inputs alone; tensors that the function captures become constants.

    Keras' `Normalization`, for example, holds its mean as a tensor, which the converter makes an
    input. Tables are captured as well: `label_encoders` has replaced them.
    """
    from onnx import numpy_helper

    values = {inner.name: value for value, inner in traced.graph.captures}
    used = set(tensors_read(model.graph))
    kept = []
    for value in model.graph.input:
        if value.name in inputs:
            kept.append(value)
        elif value.name in used:
            array = values[value.name].numpy()
            model.graph.initializer.append(numpy_helper.from_array(array, value.name))
    del model.graph.input[:]
    model.graph.input.extend(kept)


def _set_shape(value: onnx.ValueInfoProto, shape: tf.TensorShape) -> None:
    """Writes a shape of any number of rows.

    It has to be written. The format demands it, and Triton loads no model without: "the shape
    should have at least 1 dimension". ONNX Runtime compares requests with it, but for the rows.
    """
    dims = value.type.tensor_type.shape.dim
    del dims[:]
    for place, size in enumerate(shape):
        dim = dims.add()
        if place == 0:
            dim.dim_param = "batch"
        elif size is not None:
            dim.dim_value = size


def _named(name: str, spec: tf.TensorSpec) -> tf.TensorSpec:
    """A spec with the name of its input: the converter takes it from there."""
    import tensorflow as tf

    return tf.TensorSpec(spec.shape, spec.dtype, name=name)


def with_head(base: onnx.ModelProto, head: onnx.ModelProto, outputs: list[str]) -> onnx.ModelProto:
    """One graph of a base model and a head that reads its outputs and inputs, by their names.

    Args:
        base: The graph of the base model.
        head: The graph of the head.
        outputs: The outputs of the base that are outputs of the whole.
    """
    known = {value.name for value in (*base.graph.input, *base.graph.output)}
    inputs = [value for value in head.graph.input if value.name not in known]
    kept = [value for value in base.graph.output if value.name in outputs]
    parts = [base.graph, *_prefixed(head, HEAD)]
    return _model([base, head], parts, [*base.graph.input, *inputs], [*head.graph.output, *kept])


def on_base(
    base: onnx.ModelProto,
    model: onnx.ModelProto,
    between: onnx.GraphProto,
    computed: Collection[str],
) -> onnx.ModelProto:
    """One graph of a model of scores and the model from elsewhere that computes them.

    Args:
        base: The model that computes scores. Inputs of the same name are one.
        model: The calibrated model.
        between: From an output of the base, whose name it prefixes, and its inputs to `computed`.
        computed: The inputs of `model` that `between` computes.
    """
    base, model = _same_operators(base, model)
    known = {value.name for value in base.graph.input}
    inputs = [v for v in model.graph.input if v.name not in {*known, *computed}]
    before = _prefixed(base, BASE, with_outputs=False)
    return _model(
        [base, model],
        [*before, between, model.graph],
        [*base.graph.input, *inputs],
        list(model.graph.output),
    )


def replace_head(model: onnx.ModelProto, head: onnx.ModelProto) -> onnx.ModelProto:
    """The model with another head of the same inputs and outputs; all else stays as it is."""
    import onnx

    present, head = _same_operators(model, head)
    rest = onnx.GraphProto()
    rest.CopyFrom(present.graph)
    for name in ("node", "initializer", "value_info"):
        kept = [each for each in getattr(present.graph, name) if not each.name.startswith(HEAD)]
        del getattr(rest, name)[:]
        getattr(rest, name).extend(kept)
    parts = [rest, *_prefixed(head, HEAD)]
    replaced = _model([present, head], parts, model.graph.input, model.graph.output)
    replaced.metadata_props.extend(model.metadata_props)
    return replaced


def _same_operators(*models: onnx.ModelProto) -> list[onnx.ModelProto]:
    """The models, the older ones with the operators of the newest, for these may differ."""
    from onnx import version_converter

    versions = [_versions(model).get("", OPSET) for model in models]
    return [
        model
        if version == max(versions)
        else version_converter.convert_version(model, max(versions))
        for model, version in zip(models, versions, strict=True)
    ]


def _versions(*models: onnx.ModelProto) -> dict[str, int]:
    """Domain → the newest version of its operators."""
    found: dict[str, int] = {}
    for model in models:
        for each in model.opset_import:
            domain = "" if each.domain == "ai.onnx" else each.domain
            found[domain] = max(found.get(domain, 0), each.version)
    return found


def _prefixed(
    model: onnx.ModelProto, prefix: str, with_outputs: bool = True
) -> list[onnx.GraphProto]:
    """The graph with a prefix to all names, and around it nodes from and to the names without."""
    import onnx
    from onnx import compose, helper

    inner = compose.add_prefix(model, prefix, rename_functions=False).graph
    entry, leave = onnx.GraphProto(), onnx.GraphProto()
    produced = {each.name for each in model.graph.initializer}
    for value in model.graph.input:
        if value.name not in produced:
            name = prefix + value.name
            entry.node.append(helper.make_node("Identity", [value.name], [name], f"{name}/from"))
    for value in model.graph.output if with_outputs else []:
        name = prefix + value.name
        leave.node.append(helper.make_node("Identity", [name], [value.name], f"{name}/to"))
    return [entry, inner, leave]


def _model(
    models: Iterable[onnx.ModelProto],
    graphs: Iterable[onnx.GraphProto],
    inputs: Iterable[onnx.ValueInfoProto],
    outputs: Iterable[onnx.ValueInfoProto],
) -> onnx.ModelProto:
    """A model of the nodes of all graphs, with the operators and functions of the models."""
    from onnx import helper

    models, graphs = list(models), list(graphs)
    graph = helper.make_graph(
        [node for each in graphs for node in each.node],
        "calibrated",
        list(inputs),
        list(outputs),
        initializer=[tensor for each in graphs for tensor in each.initializer],
        value_info=[value for each in graphs for value in each.value_info],
        sparse_initializer=[tensor for each in graphs for tensor in each.sparse_initializer],
    )
    merged = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid(*each) for each in _versions(*models).items()],
        functions=[function for model in models for function in model.functions],
    )
    merged.ir_version = max(model.ir_version for model in models)
    return merged
