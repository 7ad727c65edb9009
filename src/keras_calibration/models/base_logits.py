"""BaseLogits: the logit of a trained base model, frozen."""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calibration._compat import flatten_layers, source_of
from keras_calibration.layers.calibrator import as_column, calibration_dtype
from keras_calibration.ops.losses import logits_from_probabilities

_OUTPUTS = ("auto", "probability", "logit")
# Layers and operations that pass one value a row on as it is, in another shape.
_RESHAPING = ("ExpandDims", "Flatten", "Identity", "Ravel", "Reshape", "Squeeze")
# Activations are recognised by what they do to these: there are many functions named sigmoid.
_PROBE = np.array([[-30.0], [-3.0], [-0.7], [0.0], [0.2], [5.0]], "float32")


@keras.saving.register_keras_serializable(package="keras_calibration")
class BaseLogits(keras.layers.Layer):
    """The uncalibrated logit l = f(x) of a trained binary model, frozen and in inference mode.

    Where the base model ends in a sigmoid (a `Dense` or `Activation` layer, or the operation), the
    logit is taken before it: a float32 probability near 1 has lost its logit. The sigmoid is found
    behind `Flatten`, `Reshape`, `squeeze` and `Activation("linear")`, and in nested models.
    Otherwise a probability is turned into its logit.

    Args:
        base_model: A Functional or Sequential Keras model with one output of shape (batch, 1) or
            (batch,). It is set to `trainable=False`.
        base_output: What the base model returns: `"probability"`, `"logit"`, or `"auto"`, which
            infers it from the last layer.
        **kwargs: What every Keras layer takes (`name`, `dtype`).

    Raises:
        ValueError: If the model has no symbolic inputs, more than one output or more than one
            column, `"auto"` cannot tell what its output is, or its last layer contradicts
            `base_output`.

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
        # The inputs keep their own dtypes: a field id in float32 would lose its last digits.
        self.autocast = False
        self.built = True

    def freeze(self) -> None:
        """Freezes the base model, every layer of it."""
        # One by one: TensorFlow skips the setter of a layer whose flag is False already, and with
        # it the layers inside.
        for layer in flatten_layers(self):
            layer.trainable = False

    @property
    def metrics(self) -> list[Any]:
        """None: those that the base model was trained with would stand in for the outer model's."""
        return []

    def call(self, inputs: Any) -> Any:
        """Logits (batch, 1), in the dtype of the layer."""
        logits = ops.cast(self._logits(inputs), self.compute_dtype)
        return as_column(logits) if len(logits.shape) <= 2 else ops.reshape(logits, (-1, 1))

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, int]:
        """`(batch, 1)`."""
        return (symbolic_output(self.base_model).shape[0], 1)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor, as plain Python values."""
        return {
            **super().get_config(),
            "base_model": serialized_base(self.base_model),
            "base_output": self.base_output,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "BaseLogits":
        """The layer of a `get_config`."""
        base_model = keras.saving.deserialize_keras_object(config["base_model"])
        return cls(**{**config, "base_model": base_model})


def symbolic_input(model: keras.Model) -> Any:
    """The symbolic input of a Functional (a tensor or a structure) or Sequential model, or None."""
    return model.inputs[0] if _is_built_sequential(model) else _symbolic(model, "input")


def symbolic_output(model: keras.Model) -> Any:
    """The symbolic output of a Functional or Sequential model, or None."""
    return model.outputs[0] if _is_built_sequential(model) else _symbolic(model, "output")


def _is_built_sequential(model: keras.Model) -> bool:
    # Its own `output` is there only once it has been called on a symbolic tensor.
    return isinstance(model, keras.Sequential) and bool(getattr(model, "outputs", None))


def _symbolic(model: keras.Model, name: str) -> Any:
    is_functional = getattr(model, "inputs", None) is not None
    return getattr(model, name) if is_functional else None


@contextlib.contextmanager
def trainable_flags_kept(model: Any) -> Iterator[None]:
    """Restores the `trainable` flag of every layer and variable of a model at the end."""
    is_model = isinstance(model, keras.Model)
    layer_flags = [(layer, layer.trainable) for layer in flatten_layers(model)] if is_model else []
    variable_flags = [(v, v.trainable) for v in model.variables] if is_model else []
    try:
        yield
    finally:
        for layer, flag in layer_flags:
            # The public setter would change the layers inside too.
            layer._trainable = flag
        for variable, flag in variable_flags:
            variable.trainable = flag


def serialized_base(base_model: keras.Model) -> dict[str, Any]:
    """The configuration of a base model, uncompiled: it is never trained inside another model."""
    config: dict[str, Any] = keras.saving.serialize_keras_object(base_model)
    return {name: value for name, value in config.items() if name != "compile_config"}


def check_base_model(base_model: Any) -> None:
    """Refuses a model that is not one logit or probability a row of symbolic inputs."""
    if not isinstance(base_model, keras.Model):
        raise ValueError(f"The base model must be a Keras model. Received: {base_model!r}.")
    output = symbolic_output(base_model)
    if output is None:
        raise ValueError(
            "The base model must have symbolic inputs and outputs. Received: "
            f"{type(base_model).__name__}, a subclassed model or one without an Input. Wrap it: "
            "keras.Model(inputs, base_model(inputs)), with inputs made by keras.Input, and pass "
            'base_output="logit" if it returns a logit (best, for a probability near 1 has lost '
            'its logit), base_output="probability" if it returns a probability.'
        )
    if not isinstance(output, keras.KerasTensor):
        key = next(iter(output)) if isinstance(output, Mapping) else 0
        raise ValueError(
            f"The base model must have one output. Received: {output!r}. Pick one, for example: "
            f"keras.Model(base_model.input, base_model.output[{key!r}])."
        )
    if len(output.shape) not in (1, 2) or (len(output.shape) == 2 and output.shape[1] != 1):
        raise ValueError(
            "The base model must give one probability or logit a row, of shape (batch,) or "
            f"(batch, 1). Received: output of shape {output.shape}."
        )


def _logit_function(base_model: Any, base_output: str) -> Callable[[Any], Any]:
    """A function from inputs to logits, on the base model's own weights.

    It is a closure so that Keras does not track the inner model: its layers are the base model's.
    """
    kind, operation, before_sigmoid = _found_output(base_model)
    if kind == "other" and base_output == "auto":
        raise ValueError(
            "Cannot infer whether the base model returns a probability or a logit: its last "
            f"layer is {operation.name!r} ({type(operation).__name__}). Pass "
            'base_output="probability" or base_output="logit".'
        )
    if kind == "probability" and base_output == "logit":
        raise ValueError(
            'Argument `base_output` must be "auto" or "probability" for a base model that ends in '
            f"a sigmoid, here in {operation.name!r}. Received: base_output='logit'. The logit is "
            "taken before the sigmoid."
        )
    if kind == "logit" and base_output == "probability":
        raise ValueError(
            'Argument `base_output` must be "auto" or "logit" for a base model that ends in a '
            f"linear layer, here {operation.name!r}. Received: base_output='probability'. A "
            "linear layer's values are not confined to [0, 1]: if they are meant as "
            "probabilities, add keras.ops.clip(base_model.output, 0, 1) as the output."
        )
    if before_sigmoid is not None:
        return before_sigmoid
    if base_output == "probability":
        return lambda inputs: logits_from_probabilities(base_model(inputs, training=False))
    return lambda inputs: base_model(inputs, training=False)


def _found_output(model: Any) -> tuple[str, Any, Callable[[Any], Any] | None]:
    """What a model returns, the operation that tells it, and its inputs to the sigmoid's input.

    The first is "probability", "logit" or "other"; the last is None where there is no sigmoid.
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
    if _is_sigmoid(operation):
        inner = keras.Model(symbolic_input(model), node.input_tensors[0])
        return "probability", operation, _before_sigmoid(operation, inner)
    is_linear = type(operation) is keras.layers.Dense and _computes(operation, _identity)
    return ("logit" if is_linear else "other"), operation, None


def _passes_on(operation: Any, tensor: Any) -> bool:
    """Whether an operation returns the one value of each row that it takes, as it is."""
    kind = type(operation)
    if kind is keras.layers.Activation:
        return _computes(operation, _identity)
    if not (kind.__module__.startswith("keras.") and kind.__name__ in _RESHAPING):
        return False
    _, node = source_of(tensor)
    shapes = (tensor.shape, node.input_tensors[0].shape)
    return all(None not in shape[1:] and math.prod(shape[1:]) == 1 for shape in shapes)


def _is_sigmoid(operation: Any) -> bool:
    if _is_dense(operation) or type(operation) is keras.layers.Activation:
        return _computes(operation, ops.sigmoid)
    return type(operation).__name__ == "Sigmoid"


def _computes(layer: Any, function: Callable[[Any], Any]) -> bool:
    """Whether the activation of a layer is this function."""
    activation = layer.activation
    if isinstance(activation, keras.Operation):
        return False  # It may have weights, which a call would create.
    try:
        values = ops.convert_to_numpy(activation(ops.convert_to_tensor(_PROBE)))
    except Exception:  # Any function can be an activation.
        return False
    expected = ops.convert_to_numpy(function(ops.convert_to_tensor(_PROBE)))
    return values.shape == expected.shape and np.allclose(values, expected, rtol=1e-5, atol=0)


def _identity(values: Any) -> Any:
    return values


def _is_dense(operation: Any) -> bool:
    # A subclass may compute anything, a quantized layer has another kernel than it computes with.
    return type(operation) is keras.layers.Dense and operation.quantization_mode is None


def _before_sigmoid(operation: Any, inner: keras.Model) -> Callable[[Any], Any]:
    if isinstance(operation, keras.layers.Dense):
        return lambda inputs: _dense_logits(operation, inner(inputs, training=False))
    return lambda inputs: inner(inputs, training=False)


def _dense_logits(dense: Any, hidden: Any) -> Any:
    """What a `Dense` layer computes before its activation, in float32 at least."""
    kernel = ops.convert_to_tensor(dense.kernel)
    dtype = calibration_dtype(keras.backend.standardize_dtype(kernel.dtype))
    logits = ops.matmul(ops.cast(hidden, dtype), ops.cast(kernel, dtype))
    return logits if dense.bias is None else logits + ops.cast(dense.bias, dtype)
