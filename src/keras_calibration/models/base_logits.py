"""BaseLogits: the logit of a trained base model, frozen."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_calibration.layers.calibrator import as_column, calibration_dtype
from keras_calibration.ops.losses import logits_from_probabilities

_OUTPUTS = ("auto", "probability", "logit")


@keras.saving.register_keras_serializable(package="keras_calibration")
class BaseLogits(keras.layers.Layer):
    """The uncalibrated logit l = f(x) of a trained binary model, frozen and in inference mode.

    Where the base model ends in a sigmoid (a `Dense` or `Activation` layer, or the operation), the
    logit is taken before it: a float32 probability near 1 has lost its logit. Otherwise a
    probability is turned into its logit.

    Args:
        base_model: A Functional or Sequential Keras model with one output of shape (batch, 1) or
            (batch,). It is set to `trainable=False`.
        base_output: `"probability"`, `"logit"`, or `"auto"`: told from the last layer.
        **kwargs: What every Keras layer takes (`name`, `dtype`).

    Raises:
        ValueError: If the model has no symbolic inputs, more than one output or more than one
            column, or `"auto"` cannot tell what its output is.

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
        _check_base_model(base_model)
        self.base_model = base_model
        self.base_output = base_output
        self._logits = _logit_function(base_model, base_output)
        self.trainable = False
        # The inputs keep their own dtypes: a field id in float32 would lose its last digits.
        self.autocast = False
        self.built = True

    @property
    def metrics(self) -> list[Any]:
        """None: those that the base model was trained with would stand in for the outer model's."""
        return []

    def call(self, inputs: Any) -> Any:
        """Logits (batch, 1), in the dtype of the layer."""
        return as_column(ops.cast(self._logits(inputs), self.compute_dtype))

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, int]:
        """`(batch, 1)`."""
        return (symbolic_output(self.base_model).shape[0], 1)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor, as plain Python values."""
        return {
            **super().get_config(),
            "base_model": keras.saving.serialize_keras_object(self.base_model),
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


def _check_base_model(base_model: Any) -> None:
    if not isinstance(base_model, keras.Model):
        raise ValueError(f"The base model must be a Keras model. Received: {base_model!r}.")
    output = symbolic_output(base_model)
    if output is None:
        raise ValueError(
            f"The base model must have symbolic inputs and outputs. Received: "
            f"{type(base_model).__name__}, a subclassed model or one without an Input. Wrap it: "
            "keras.Model(inputs, base_model(inputs)), with inputs made by keras.Input."
        )
    if not isinstance(output, keras.KerasTensor):
        raise ValueError(
            f"The base model must have one output. Received: {output!r}. Pick one: "
            "keras.Model(base_model.input, base_model.output[0])."
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
    output = symbolic_output(base_model)
    operation = output._keras_history.operation
    before = _before_sigmoid(operation)
    if base_output != "logit" and before is not None and operation.output is output:
        inner = keras.Model(symbolic_input(base_model), before)
        if not isinstance(operation, keras.layers.Dense):
            return lambda inputs: inner(inputs, training=False)
        return lambda inputs: _dense_logits(operation, inner(inputs, training=False))
    if base_output == "auto" and not _is_linear(operation):
        raise ValueError(
            "Cannot tell whether the base model's output is a probability or a logit: its last "
            f"layer is {operation.name!r} ({type(operation).__name__}). Pass "
            'base_output="probability" or base_output="logit".'
        )
    if base_output == "probability":
        return lambda inputs: logits_from_probabilities(base_model(inputs, training=False))
    return lambda inputs: base_model(inputs, training=False)


def _before_sigmoid(operation: Any) -> Any:
    """The symbolic tensor that goes into the last sigmoid (into its layer), or None."""
    is_sigmoid = getattr(operation, "activation", None) is keras.activations.sigmoid
    if is_sigmoid and (_is_dense(operation) or type(operation) is keras.layers.Activation):
        return operation.input
    return operation.input if type(operation).__name__ == "Sigmoid" else None


def _is_linear(operation: Any) -> bool:
    linear = getattr(operation, "activation", None) is keras.activations.linear
    return linear and type(operation) is keras.layers.Dense


def _is_dense(operation: Any) -> bool:
    # A subclass may compute anything, a quantized layer has another kernel than it computes with.
    return type(operation) is keras.layers.Dense and operation.quantization_mode is None


def _dense_logits(dense: Any, hidden: Any) -> Any:
    """What a `Dense` layer computes before its activation, in float32 at least."""
    kernel = ops.convert_to_tensor(dense.kernel)
    dtype = calibration_dtype(keras.backend.standardize_dtype(kernel.dtype))
    logits = ops.matmul(ops.cast(hidden, dtype), ops.cast(kernel, dtype))
    return logits if dense.bias is None else logits + ops.cast(dense.bias, dtype)
