"""BaseLogits: a layer that returns the logits of a frozen base model."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calibration._compat import flatten_layers, source_of
from keras_calibration._typing import Inputs, Shape, Tensor
from keras_calibration.layers.calibrator import as_column, calibration_dtype
from keras_calibration.ops.losses import (
    class_logits_from_probabilities,
    logits_from_probabilities,
)

_OUTPUTS = ("auto", "probability", "logit")
# Layers and operations that only reshape, if there is one value per row or the shape stays.
_RESHAPING = ("ExpandDims", "Flatten", "Identity", "Ravel", "Reshape", "Squeeze")
# Activations are recognised by their values here: many functions are named sigmoid.
_PROBE = np.array([[-30.0], [-3.0], [-0.7], [0.0], [0.2], [5.0]], "float32")


@keras.saving.register_keras_serializable(package="keras_calibration")
class BaseLogits(keras.layers.Layer):
    """The uncalibrated logit l = f(x) of a trained model, frozen and in inference mode.

    If the base model ends in a sigmoid (a `Dense` or `Activation` layer, or the operation), the
    logit is taken before it, because a float32 probability near 1 no longer determines its logit.
    The sigmoid is also found behind `Flatten`, `Reshape`, `squeeze` and `Activation("linear")`, and
    in nested models. Otherwise the probability is converted to a logit. For a model with K classes,
    the same holds for K logits and their softmax.

    Args:
        base_model: A Functional or Sequential Keras model with one output of shape (batch, 1) or
            (batch,), or (batch, K) for K classes. It is set to `trainable=False`.
        base_output: What the base model returns: `"probability"`, `"logit"`, or `"auto"` to infer
            it from the last layer.
        **kwargs: Keyword arguments of every Keras layer (`name`, `dtype`).

    Raises:
        ValueError: If the model has no symbolic inputs, more than one output, or an output of
            another shape; if it ends in K sigmoids, whose sum is not 1; if `"auto"` cannot infer
            what the output is; or if the last layer contradicts `base_output`.

    Example:
        >>> base = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, "sigmoid")])
        >>> layer = BaseLogits(base)
        >>> layer(ops.ones((3, 2))).shape
        TensorShape([3, 1])
    """

    def __init__(self, base_model: keras.Model, base_output: str = "auto", **kwargs: Any) -> None:
        super().__init__(dtype=calibration_dtype(kwargs.pop("dtype", None)), **kwargs)
        if base_output not in _OUTPUTS:
            raise ValueError(
                f"Argument `base_output` must be one of {_OUTPUTS}. "
                f"Received: base_output={base_output!r}."
            )
        check_base_model(base_model)
        self.base_model = base_model
        self.base_output = base_output
        self._logits = _logit_function(base_model, base_output)
        self.freeze()
        # The inputs keep their dtypes: a field id in float32 would lose its last digits.
        self.autocast = False
        self.built = True

    def freeze(self) -> None:
        """Freezes every layer of the base model."""
        # One by one: TensorFlow skips the setter of a layer that is already frozen, and thereby the
        # layers inside it.
        for layer in flatten_layers(self):
            layer.trainable = False

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        """Empty: the base model's metrics would otherwise replace those of the outer model."""
        return []

    def call(self, inputs: Inputs) -> Tensor:
        """Logits (batch, 1) or (batch, K) in the layer's dtype."""
        logits = ops.cast(self._logits(inputs), self.compute_dtype)
        return as_column(logits) if len(logits.shape) <= 2 else ops.reshape(logits, (-1, 1))

    def compute_output_shape(
        self, input_shape: Shape | Mapping[str, Shape] | Sequence[Shape]
    ) -> tuple[int | None, int]:
        """`(batch, 1)` or `(batch, K)`."""
        return (symbolic_output(self.base_model).shape[0], num_logits(self.base_model))

    def get_config(self) -> dict[str, Any]:
        """The constructor arguments as plain Python values."""
        return {
            **super().get_config(),
            "base_model": serialized_base(self.base_model),
            "base_output": self.base_output,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> BaseLogits:
        """Creates the layer from its `get_config`."""
        base_model = keras.saving.deserialize_keras_object(config["base_model"])
        return cls(**{**config, "base_model": base_model})


def symbolic_input(model: keras.Model) -> Inputs:
    """The symbolic input of a Functional (a tensor or a structure) or Sequential model, or None."""
    return model.inputs[0] if _is_built_sequential(model) else _symbolic(model, "input")


def symbolic_output(model: keras.Model) -> Inputs:
    """The symbolic output of a Functional or Sequential model, or None."""
    return model.outputs[0] if _is_built_sequential(model) else _symbolic(model, "output")


def _is_built_sequential(model: keras.Model) -> bool:
    # Its `output` exists only after it has been called on a symbolic tensor.
    return isinstance(model, keras.Sequential) and bool(getattr(model, "outputs", None))


def _symbolic(model: keras.Model, name: str) -> Inputs:
    is_functional = getattr(model, "inputs", None) is not None
    return getattr(model, name) if is_functional else None


def num_logits(model: keras.Model) -> int:
    """The number of logits per row: 1, or one per class."""
    return math.prod(symbolic_output(model).shape[1:])


@contextlib.contextmanager
def trainable_flags_kept(model: keras.Model) -> Iterator[None]:
    """Restores the `trainable` flags of all layers and variables of a model at exit."""
    is_model = isinstance(model, keras.Model)
    layer_flags = [(layer, layer.trainable) for layer in flatten_layers(model)] if is_model else []
    variable_flags = [(v, v.trainable) for v in model.variables] if is_model else []
    try:
        yield
    finally:
        for layer, flag in layer_flags:
            # The public setter would also change the layers inside.
            layer._trainable = flag
        for variable, flag in variable_flags:
            variable.trainable = flag


def serialized_base(base_model: keras.Model) -> dict[str, Any]:
    """The configuration of a base model without `compile`: it is not trained inside another."""
    config: dict[str, Any] = keras.saving.serialize_keras_object(base_model)
    return {name: value for name, value in config.items() if name != "compile_config"}


def check_base_model(base_model: keras.Model) -> None:
    """Raises unless the model has symbolic inputs and one output of numbers per row or class."""
    if not isinstance(base_model, keras.Model):
        raise ValueError(f"Argument `base_model` must be a Keras model. Received: {base_model!r}.")
    output = symbolic_output(base_model)
    if output is None:
        raise ValueError(
            "Argument `base_model` must have symbolic inputs and outputs. Received: "
            f"{type(base_model).__name__}, a subclassed model or one without an Input. Wrap it: "
            "keras.Model(inputs, base_model(inputs)), with inputs made by keras.Input. Pass "
            'base_output="logit" if it returns a logit, which is better because a probability near '
            '1 loses precision, or base_output="probability" if it returns a probability.'
        )
    if not isinstance(output, keras.KerasTensor):
        key = next(iter(output)) if isinstance(output, Mapping) else 0
        raise ValueError(
            f"Argument `base_model` must have one output. Received: {output!r}. Select one, for "
            f"example: keras.Model(base_model.input, base_model.output[{key!r}])."
        )
    if len(output.shape) not in (1, 2) or (len(output.shape) == 2 and not output.shape[1]):
        raise ValueError(
            "Argument `base_model` must return one probability or logit per row, with shape "
            "(batch,) or (batch, 1), or one per class, with shape (batch, K). Received: an output "
            f"of shape {output.shape}."
        )


def _logit_function(base_model: keras.Model, base_output: str) -> Callable[[Inputs], Tensor]:
    """A function from inputs to logits, using the base model's own weights.

    It is a closure so that Keras does not track the inner model, whose layers belong to the base
    model.
    """
    kind, operation, before_activation = _found_output(base_model)
    is_of_classes = num_logits(base_model) > 1
    activation = "softmax" if is_of_classes else "sigmoid"
    if kind == "sigmoids":
        raise ValueError(
            "Argument `base_model` must return probabilities of classes, which add up to 1. "
            f"Received: a model that ends in {num_logits(base_model)} sigmoids, in "
            f"{operation.name!r}. Calibrate each output by itself, for example "
            "keras.Model(base_model.input, base_model.output[:, :1]) with "
            'base_output="probability".'
        )
    if kind == "other" and base_output == "auto":
        raise ValueError(
            "Cannot infer whether the base model returns a probability or a logit: its last "
            f"layer is {operation.name!r} ({type(operation).__name__}). Pass "
            'base_output="probability" or base_output="logit".'
        )
    if kind == "probability" and base_output == "logit":
        raise ValueError(
            'Argument `base_output` must be "auto" or "probability" for a base model that ends in '
            f"a {activation}, here in {operation.name!r}. Received: base_output='logit'. The head "
            f"already gets the logit before the {activation}."
        )
    if kind == "logit" and base_output == "probability":
        raise ValueError(
            'Argument `base_output` must be "auto" or "logit" for a base model that ends in a '
            f"linear layer, here {operation.name!r}. Received: base_output='probability'. The "
            "values of a linear layer are not limited to [0, 1]. If they are probabilities, add "
            "keras.ops.clip(base_model.output, 0, 1) as the output."
        )
    if before_activation is not None:
        return before_activation
    if base_output == "probability":
        convert = class_logits_from_probabilities if is_of_classes else logits_from_probabilities
        return lambda inputs: convert(base_model(inputs, training=False))
    return lambda inputs: base_model(inputs, training=False)


def _found_output(
    model: keras.Model,
) -> tuple[str, keras.Operation, Callable[[Inputs], Tensor] | None]:
    """Finds the output kind, the operation that determines it, and the function before it.

    The kind is "probability", "logit", "sigmoids" or "other". The function maps the model's inputs
    to the input of the sigmoid or softmax; it is None if there is none.
    """
    tensor = symbolic_output(model)
    operation, node = source_of(tensor)
    while _passes_on(operation, tensor):
        tensor = node.input_tensors[0]
        operation, node = source_of(tensor)
    if isinstance(operation, keras.Model) and isinstance(
        symbolic_output(operation), keras.KerasTensor
    ):
        kind, operation, of_inner = _found_output(operation)
        if of_inner is None:
            return kind, operation, None
        given = (*node.arguments.args, *node.arguments.kwargs.values())
        outer = keras.Model(symbolic_input(model), given[0])
        return kind, operation, lambda inputs: of_inner(outer(inputs, training=False))
    num_columns = math.prod(tensor.shape[1:])
    if num_columns > 1 and _is_sigmoid(operation):
        return "sigmoids", operation, None
    if _is_softmax(operation, node, num_columns) if num_columns > 1 else _is_sigmoid(operation):
        inner = keras.Model(symbolic_input(model), node.input_tensors[0])
        return "probability", operation, _before_activation(operation, inner)
    is_linear = type(operation) is keras.layers.Dense and _computes(operation, _identity)
    return ("logit" if is_linear else "other"), operation, None


def _passes_on(operation: keras.Operation, tensor: keras.KerasTensor) -> bool:
    """Whether an operation returns the values of each row unchanged."""
    kind = type(operation)
    if kind is keras.layers.Activation:
        return _computes(operation, _identity)
    if not (kind.__module__.startswith("keras.") and kind.__name__ in _RESHAPING):
        return False
    _, node = source_of(tensor)
    shapes = (tensor.shape, node.input_tensors[0].shape)
    if any(None in shape[1:] for shape in shapes):
        return False
    return shapes[0] == shapes[1] or all(math.prod(shape[1:]) == 1 for shape in shapes)


def _is_sigmoid(operation: keras.Operation) -> bool:
    if _is_dense(operation) or type(operation) is keras.layers.Activation:
        return _computes(operation, ops.sigmoid)
    return type(operation).__name__ == "Sigmoid"


def _is_softmax(operation: keras.Operation, node: Any, num_columns: int) -> bool:
    if _is_dense(operation) or type(operation) is keras.layers.Activation:
        return _computes(operation, ops.softmax, num_columns)
    is_of_columns = getattr(operation, "axis", None) in (-1, 1) and len(node.input_tensors) == 1
    return type(operation).__name__ == "Softmax" and is_of_columns


def _computes(
    layer: keras.layers.Layer, function: Callable[[Tensor], Tensor], num_columns: int = 1
) -> bool:
    """Whether the activation of a layer equals a function."""
    activation = layer.activation
    if isinstance(activation, keras.Operation):
        return False  # It may have weights, which the call would create.
    probe = ops.convert_to_tensor(_PROBE * np.arange(1, num_columns + 1, dtype="float32"))
    try:
        values = ops.convert_to_numpy(activation(probe))
    except Exception:  # An activation may be any function and raise anything.
        return False
    expected = ops.convert_to_numpy(function(probe))
    return values.shape == expected.shape and np.allclose(values, expected, rtol=1e-5, atol=0)


def _identity(values: Tensor) -> Tensor:
    return values


def _is_dense(operation: keras.Operation) -> bool:
    # A subclass may compute anything; a quantized layer does not compute with its `kernel`.
    return type(operation) is keras.layers.Dense and operation.quantization_mode is None


def _before_activation(
    operation: keras.Operation, inner: keras.Model
) -> Callable[[Inputs], Tensor]:
    if isinstance(operation, keras.layers.Dense):
        return lambda inputs: _dense_logits(operation, inner(inputs, training=False))
    return lambda inputs: inner(inputs, training=False)


def _dense_logits(dense: keras.layers.Dense, hidden: Tensor) -> Tensor:
    """The output of a `Dense` layer before its activation, in float32 or float64."""
    kernel = ops.convert_to_tensor(dense.kernel)
    dtype = calibration_dtype(keras.backend.standardize_dtype(kernel.dtype))
    logits = ops.matmul(ops.cast(hidden, dtype), ops.cast(kernel, dtype))
    return logits if dense.bias is None else logits + ops.cast(dense.bias, dtype)
