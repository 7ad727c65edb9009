"""to_onnx: converts a function to an ONNX graph, by tf2onnx."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

import keras

from calibration_records._warn import without_notices
from keras_calibration._keras import patch_tf2onnx
from keras_calibration._typing import Features, Tensor
from keras_calibration.export.onnx.lookups import ML_DOMAIN, ML_OPSET, label_encoders
from keras_calibration.export.onnx.operators import (
    check_rows,
    correct,
    counted_searches,
    handlers,
    keep_for_tools,
    tensors_read,
)

if TYPE_CHECKING:
    import onnx
    import tensorflow as tf

OPSET = 17


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
    exact: str,
) -> onnx.ModelProto:
    """Converts a function of inputs by name; its inputs and outputs keep their names.

    The graph fails for inputs that differ in their numbers of rows.

    Args:
        function: From tensors by name to outputs by name.
        inputs: Name → shape, dtype and the same name, which the converter uses.
        layers: The layers that it calls, at any depth.
        exact: Name of the layer whose tables must not be quantized.
    """
    import tensorflow as tf

    tf2onnx, _ = onnx_packages()
    from onnx import helper

    traced = tf.function(function, autograph=False)
    with (
        warnings.catch_warnings(),
        without_notices("tensorflow", logging.ERROR),
        # tf2onnx logs the shapes that it cannot infer.
        without_notices("tf2onnx", logging.CRITICAL),
        counted_searches(),
        label_encoders(layers) as lookups,
    ):
        # Users need no warnings of tf2onnx's own use of NumPy.
        warnings.simplefilter("ignore")
        patch_tf2onnx()
        converted, _ = tf2onnx.convert.from_function(
            traced,
            [dict(inputs)],
            opset=OPSET,
            extra_opset=[helper.make_opsetid(ML_DOMAIN, ML_OPSET)],
            custom_op_handlers={
                name: (handler, []) for name, handler in (handlers() | lookups).items()
            },
        )
        concrete = traced.get_concrete_function(dict(inputs))
    _keep_inputs(converted, inputs, concrete)
    correct(converted)
    keep_for_tools(converted, exact)
    check_rows(converted, inputs)
    named = {**inputs, **concrete.structured_outputs}
    for value in (*converted.graph.input, *converted.graph.output):
        _set_shape(value, named[value.name].shape)
    return converted


def _keep_inputs(model: onnx.ModelProto, inputs: Collection[str], traced: Any) -> None:
    """Keeps only the inputs of the function; tensors that it captures become constants.

    For example, Keras' `Normalization` holds its mean as a tensor, which the converter turns into
    an input. Tables are captured too, but `label_encoders` has replaced them.
    """
    from onnx import numpy_helper

    # Name of a captured tensor in the graph → its value outside.
    values = {inner.name: value for value, inner in traced.graph.captures}
    captured = set(tensors_read(model.graph)).difference(inputs)
    for value in model.graph.input:
        if value.name in captured:
            array = values[value.name].numpy()
            model.graph.initializer.append(numpy_helper.from_array(array, value.name))
    kept = [value for value in model.graph.input if value.name in inputs]
    del model.graph.input[:]
    model.graph.input.extend(kept)


def _set_shape(value: onnx.ValueInfoProto, shape: tf.TensorShape) -> None:
    """Writes a shape with any number of rows.

    The format demands it, and Triton refuses models without it: "the shape should have at least 1
    dimension". ONNX Runtime compares requests with it, except for the rows.
    """
    dims = value.type.tensor_type.shape.dim
    del dims[:]
    for place, size in enumerate(shape):
        dim = dims.add()
        if place == 0:
            dim.dim_param = "batch"
        elif size is not None:
            dim.dim_value = size
