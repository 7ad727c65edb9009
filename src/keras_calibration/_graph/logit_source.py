"""The source of a model's logit: the tensor before the sigmoid or softmax of an output."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calibration._graph.outputs import (
    num_logits,
    output_expression,
    output_tensor,
    symbolic_input,
    symbolic_output,
)
from keras_calibration._keras import position_of, source_of
from keras_calibration._ops.losses import class_logits_from_probabilities, logits_from_probabilities
from keras_calibration._typing import Inputs, Tensor
from keras_calibration.layers.logits import calibration_dtype

# Layers and operations that only reshape, if there is one value per row or the shape stays.
_RESHAPING = ("ExpandDims", "Flatten", "Identity", "Ravel", "Reshape", "Squeeze")
# Logits at which an activation is compared with the sigmoid and the softmax: a name tells too
# little, because many functions are named sigmoid.
_PROBE = np.array([[-30.0], [-3.0], [-0.7], [0.0], [0.2], [5.0]], "float32")


@dataclass(frozen=True)
class LogitSource:
    """The tensor of a model from which the logit of an output is computed.

    Args:
        kind: What the output is: "probability", "logit", "sigmoids" or "other".
        operation: The operation that determines the kind.
        tensor: The symbolic tensor, or structure of tensors, to start from.
        to_logits: A function from its values to the input of the sigmoid or softmax; None without
            one, if `tensor` is the output itself.
    """

    kind: str
    operation: keras.Operation
    tensor: Inputs
    to_logits: Callable[[Inputs], Tensor] | None = None


def logit_source(
    base_model: keras.Model, base_output: str, calibrated_output: str | int | None
) -> LogitSource:
    """The source of the logits of a base model; raises if `base_output` is wrong."""
    output = output_tensor(base_model, calibrated_output)
    source = _find_source(output)
    kind, operation = source.kind, source.operation
    num_columns = num_logits(base_model, calibrated_output)
    activation = "softmax" if num_columns > 1 else "sigmoid"
    expression = output_expression(base_model, calibrated_output)
    if kind == "sigmoids":
        raise ValueError(
            "The base model must return probabilities of classes, which add up to 1. "
            f"Received: a model that ends in {num_columns} sigmoids, in "
            f"{operation.name!r}. Calibrate each output by itself, for example "
            f"keras.Model(base_model.input, {expression}[:, :1]) with "
            'base_output="probability" in a CalibratedModel.'
        )
    if kind == "other" and base_output == "auto":
        raise ValueError(
            "Cannot infer whether the base model returns a probability or a logit: its last "
            f"layer is {operation.name!r} ({type(operation).__name__}). End it in a sigmoid or a "
            'linear layer, or make a CalibratedModel with base_output="probability" or "logit".'
        )
    if {kind, base_output} == {"probability", "logit"}:
        last = f"a {activation}" if kind == "probability" else "a linear layer"
        raise ValueError(
            f'Argument `base_output` must be "auto" or "{kind}" for a base model that ends in '
            f"{last}, here in {operation.name!r}. Received: base_output={base_output!r}. The head "
            f"gets the logit before the {activation}. If the values of a linear layer are "
            f"probabilities, add keras.ops.clip({expression}, 0, 1) as the output."
        )
    if source.to_logits is None and base_output == "probability":
        convert = class_logits_from_probabilities if num_columns > 1 else logits_from_probabilities
        return LogitSource(kind, operation, output, convert)
    return source


def _find_source(output: keras.KerasTensor) -> LogitSource:
    """The source of the logit of an output, and the kind of the output."""
    # Walk back from the output to the operation that makes its values.
    tensor = output
    operation, node = source_of(tensor)
    while passes_on(operation, tensor):
        tensor = node.input_tensors[0]
        operation, node = source_of(tensor)
    # If a model inside this one makes the output, find the logit in it, and compute from its
    # inputs.
    nested = _find_nested_model(operation, tensor)
    if nested is not None:
        inner = _find_source(keras.tree.flatten(symbolic_output(nested))[position_of(tensor)])
        if inner.to_logits is None:
            return LogitSource(inner.kind, inner.operation, output)
        inputs = (*node.arguments.args, *node.arguments.kwargs.values())[0]
        before, to_logits = keras.Model(symbolic_input(nested), inner.tensor), inner.to_logits
        return LogitSource(
            inner.kind,
            inner.operation,
            inputs,
            lambda values: to_logits(before(values, training=False)),
        )
    num_columns = math.prod(tensor.shape[1:])
    if num_columns > 1 and _is_sigmoid(operation, num_columns):
        return LogitSource("sigmoids", operation, output)
    # Start before the sigmoid or softmax. A `Dense` layer contains it: repeat the layer without it.
    if _is_probability(operation, node, num_columns):
        to_logits = (
            functools.partial(_compute_dense_logits, operation)
            if isinstance(operation, keras.layers.Dense)
            else keras.activations.linear
        )
        return LogitSource("probability", operation, node.input_tensors[0], to_logits)
    is_linear = type(operation) is keras.layers.Dense and _has_activation(
        operation, keras.activations.linear
    )
    return LogitSource("logit" if is_linear else "other", operation, output)


def _find_nested_model(operation: keras.Operation, tensor: keras.KerasTensor) -> keras.Model | None:
    """The model with symbolic outputs that computes a tensor, if an operation is or holds one."""
    passes_output = getattr(operation, "passes_output", None)  # of `BaseLogits`
    if passes_output is not None and passes_output(position_of(tensor)):
        return operation.base_model
    is_model = isinstance(operation, keras.Model) and symbolic_output(operation) is not None
    return operation if is_model else None


def passes_on(operation: keras.Operation, tensor: keras.KerasTensor) -> bool:
    """Whether an operation returns the values of each row unchanged."""
    if type(operation) is keras.layers.Activation:
        # With all columns: Keras warns of a softmax over one column.
        return _has_activation(
            operation, keras.activations.linear, math.prod(size or 1 for size in tensor.shape[1:])
        )
    if not _is_named(operation, *_RESHAPING):
        return False
    _, node = source_of(tensor)
    shapes = (tensor.shape, node.input_tensors[0].shape)
    if any(None in shape[1:] for shape in shapes):
        return False
    return shapes[0] == shapes[1] or all(math.prod(shape[1:]) == 1 for shape in shapes)


def is_final_activation(operation: keras.Operation, node: Any, tensor: keras.KerasTensor) -> bool:
    """Whether an operation is a sigmoid of one logit per row or a softmax, and nothing else."""
    return not _is_dense(operation) and _is_probability(
        operation, node, math.prod(tensor.shape[1:])
    )


def _is_probability(operation: keras.Operation, node: Any, num_columns: int) -> bool:
    return _is_softmax(operation, node, num_columns) if num_columns > 1 else _is_sigmoid(operation)


def _is_named(operation: keras.Operation, *names: str) -> bool:
    """Whether an operation is one of Keras' own of these names."""
    return type(operation).__module__.startswith("keras.") and type(operation).__name__ in names


def _is_sigmoid(operation: keras.Operation, num_columns: int = 1) -> bool:
    return _is_named(operation, "Sigmoid") or _ends_in(operation, ops.sigmoid, num_columns)


def _is_softmax(operation: keras.Operation, node: Any, num_columns: int) -> bool:
    is_operation = (
        _is_named(operation, "Softmax")
        and getattr(operation, "axis", None) in (-1, 1)
        and len(node.input_tensors) == 1
    )
    return is_operation or _ends_in(operation, ops.softmax, num_columns)


def _ends_in(
    operation: keras.Operation, function: Callable[[Tensor], Tensor], num_columns: int
) -> bool:
    """Whether an operation is a layer with an activation that equals a function."""
    has_activation = _is_dense(operation) or type(operation) is keras.layers.Activation
    # With all columns: Keras warns of a softmax over one column.
    return has_activation and _has_activation(operation, function, num_columns)


def _has_activation(
    layer: keras.layers.Layer, function: Callable[[Tensor], Tensor], num_columns: int = 1
) -> bool:
    """Whether the activation of a layer equals a function."""
    activation = layer.activation
    if isinstance(activation, keras.Operation):
        return False  # It may have weights, which the call would create.
    # Columns with different values: a softmax of equal logits would be the same for any logit.
    probe = ops.convert_to_tensor(_PROBE * np.arange(1, num_columns + 1, dtype="float32"))
    try:
        values = np.asarray(activation(probe))
    except Exception:  # An activation may be any function and raise anything.
        return False
    expected = np.asarray(function(probe))
    return values.shape == expected.shape and np.allclose(values, expected, rtol=1e-5, atol=0)


def _is_dense(operation: keras.Operation) -> bool:
    # A subclass may compute anything; a quantized layer does not compute with its `kernel`.
    return type(operation) is keras.layers.Dense and operation.quantization_mode is None


def _compute_dense_logits(dense: keras.layers.Dense, hidden: Tensor) -> Tensor:
    """The output of a `Dense` layer before its activation, in float32 or float64."""
    kernel = ops.convert_to_tensor(dense.kernel)
    dtype = calibration_dtype(keras.backend.standardize_dtype(kernel.dtype))
    logits = ops.matmul(ops.cast(hidden, dtype), ops.cast(kernel, dtype))
    return logits if dense.bias is None else logits + ops.cast(dense.bias, dtype)
