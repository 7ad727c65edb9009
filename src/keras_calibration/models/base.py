"""The base model inside of another: its outputs by name, and its logits as a frozen layer."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calibration._keras import flatten_layers, position_of, sequential_output, source_of
from keras_calibration._ops.losses import (
    class_logits_from_probabilities,
    logits_from_probabilities,
)
from keras_calibration._typing import Inputs, Shape, Tensor
from keras_calibration.layers.head import Head
from keras_calibration.layers.logits import as_column, calibration_dtype
from keras_calibration.models.model_inputs import inputs_by_name

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
        base_model: A Functional or Sequential Keras model with an output of shape (batch, 1) or
            (batch,), or (batch, K) for K classes. It is set to `trainable=False`.
        base_output: What the base model returns: `"probability"`, `"logit"`, or `"auto"` to infer
            it from the last layer.
        calibrated_output: Which of several outputs of the base model is calibrated: its key in a
            dictionary, its index in a list, or its name (the name of its last layer). None for a
            base model with one output.
        all_outputs: Whether the layer returns all outputs of the base model in their own structure,
            with the logits as the calibrated one and the others unchanged, instead of the logits.
        **kwargs: Keyword arguments of every Keras layer (`name`, `dtype`).

    Raises:
        ValueError: If the model has no symbolic inputs; if `calibrated_output` names none of its
            outputs, or is None for a model with several; if the output has another shape or is not
            of floats; if it is K sigmoids, whose sum is not 1; if `"auto"` cannot infer what it is;
            or if the last layer contradicts `base_output`.

    Example:
        >>> base = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, "sigmoid")])
        >>> layer = BaseLogits(base)
        >>> layer(ops.ones((3, 2))).shape
        TensorShape([3, 1])
        >>> inputs = keras.Input((2,))
        >>> outputs = {name: keras.layers.Dense(1, "sigmoid")(inputs) for name in ("click", "buy")}
        >>> layer = BaseLogits(keras.Model(inputs, outputs), calibrated_output="buy")
        >>> layer(ops.ones((3, 2))).shape
        TensorShape([3, 1])
        >>> layer = BaseLogits(keras.Model(inputs, outputs), "auto", "buy", all_outputs=True)
        >>> sorted(layer(ops.ones((3, 2))))
        ['buy', 'click']
    """

    def __init__(
        self,
        base_model: keras.Model,
        base_output: str = "auto",
        calibrated_output: str | int | None = None,
        all_outputs: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(dtype=calibration_dtype(kwargs.pop("dtype", None)), **kwargs)
        if base_output not in _OUTPUTS:
            raise ValueError(
                f"Argument `base_output` must be one of {_OUTPUTS}. "
                f"Received: base_output={base_output!r}."
            )
        calibrated_output = plain_key(calibrated_output)
        check_base_model(base_model, calibrated_output)
        self.base_model = base_model
        self.base_output = base_output
        self.calibrated_output = calibrated_output
        self.all_outputs = all_outputs
        # Of the calibrated output, among all in the order of `keras.tree.flatten`.
        self.position = output_position(base_model, calibrated_output)
        self._function = self._function_from(
            _logit_source(base_model, base_output, calibrated_output)
        )
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

    def _function_from(
        self, source: LogitSource
    ) -> Callable[[Inputs], tuple[Tensor, list[Tensor]]]:
        """The function from inputs to logits and other outputs, by the base model's own weights.

        It is a closure so that Keras does not track the inner model, whose layers belong to the
        base model.
        """
        model, to_logits = self.base_model, source.to_logits or _identity
        others = self._others() if self.all_outputs else []
        if others:
            # What the logits and the others have in common is computed once.
            model = keras.Model(symbolic_input(model), [source.tensor, *others])
        elif source.tensor is not symbolic_output(model):
            model = keras.Model(symbolic_input(model), source.tensor)

        def logits_and_others(inputs: Inputs) -> tuple[Tensor, list[Tensor]]:
            values = model(inputs, training=False)
            start, *rest = values if others else [values]
            return to_logits(start), rest

        return logits_and_others

    def _others(self) -> list[keras.KerasTensor]:
        """The symbolic outputs of the base model but for the calibrated one."""
        tensors = keras.tree.flatten(symbolic_output(self.base_model))
        return tensors[: self.position] + tensors[self.position + 1 :]

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        """Empty: the base model's metrics would otherwise replace those of the outer model."""
        return []

    def call(self, inputs: Inputs) -> Inputs:
        """Logits (batch, 1) or (batch, K) in the layer's dtype, or all outputs with them."""
        values, others = self._function(inputs)
        logits = ops.cast(values, self.compute_dtype)
        logits = as_column(logits) if len(logits.shape) <= 2 else ops.reshape(logits, (-1, 1))
        return self._structured(logits, others)

    def _structured(self, logits: Tensor, others: list[Tensor]) -> Inputs:
        if not self.all_outputs:
            return logits
        outputs = [*others[: self.position], logits, *others[self.position :]]
        return keras.tree.pack_sequence_as(symbolic_output(self.base_model), outputs)

    def compute_output_spec(self, inputs: Inputs) -> Inputs:
        """Symbolic logits, or all outputs with them."""
        logits = keras.KerasTensor(self.compute_output_shape(()), self.compute_dtype)
        others = [keras.KerasTensor(t.shape, t.dtype, sparse=t.sparse) for t in self._others()]
        return self._structured(logits, others)

    def compute_output_shape(
        self, input_shape: Shape | Mapping[str, Shape] | Sequence[Shape]
    ) -> tuple[int | None, int]:
        """`(batch, 1)` or `(batch, K)`."""
        tensor = output_tensor(self.base_model, self.calibrated_output)
        return (tensor.shape[0], num_logits(self.base_model, self.calibrated_output))

    def get_config(self) -> dict[str, Any]:
        """The constructor arguments as plain Python values."""
        return {
            **super().get_config(),
            "base_model": serialized_base(self.base_model),
            "base_output": self.base_output,
            "calibrated_output": self.calibrated_output,
            "all_outputs": self.all_outputs,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> BaseLogits:
        """Creates the layer from its `get_config`."""
        base_model = keras.saving.deserialize_keras_object(config["base_model"])
        return cls(**{**config, "base_model": base_model})


def with_all_outputs(base: BaseLogits, head: Head, inputs: Inputs) -> keras.Model:
    """A Functional model with the base model's outputs and the calibrated probability among them.

    The last layers are named like the base model's, so that Keras finds the losses and metrics of
    a list of outputs by the same names.

    Args:
        base: The base logits.
        head: The calibration head.
        inputs: Symbolic inputs, in the structure that the base model takes.
    """
    features = inputs_by_name(inputs, inputs)
    if head.feature_names is not None:
        features = {name: features[name] for name in head.feature_names}
    structure = symbolic_output(base.base_model)
    taken = {base.name, head.name, *(tensor.name for tensor in keras.tree.flatten(inputs))}

    def free_name(wanted: str) -> str:
        numbered = (f"{wanted}_{number}" for number in range(1, len(taken) + 2))
        name = wanted if wanted not in taken else next(n for n in numbered if n not in taken)
        taken.add(name)
        return name

    arguments = base.base_model, base.base_output, base.calibrated_output
    # Who has unfrozen the base model since then finds it as it was.
    with trainable_flags_kept(base.base_model):
        layer = BaseLogits(*arguments, all_outputs=True, dtype=base.dtype, name=base.name)
    outputs = keras.tree.flatten(layer(inputs))
    for position, old in enumerate(keras.tree.flatten(structure)):
        name = free_name(source_of(old)[0].name)
        if position != base.position:
            # In a dtype of its own, a layer would convert floats to float32.
            dtype = old.dtype if "float" in old.dtype else None
            outputs[position] = keras.layers.Identity(dtype=dtype, name=name)(outputs[position])
            continue
        logit = head(outputs[position], features)
        activation = "softmax" if logit.shape[1] > 1 else "sigmoid"
        is_column = len(old.shape) == 2
        last = name if is_column else free_name("probability")
        probability = keras.layers.Activation(activation, dtype=head.dtype, name=last)(logit)
        if not is_column:
            probability = keras.layers.Reshape((), dtype=head.dtype, name=name)(probability)
        outputs[position] = probability
    outputs = keras.tree.pack_sequence_as(structure, outputs)
    return keras.Model(inputs, outputs, name=base.base_model.name)


def num_logits(model: keras.Model, calibrated_output: str | int | None = None) -> int:
    """The number of logits per row: 1, or one per class."""
    return math.prod(output_tensor(model, calibrated_output).shape[1:])


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


def check_base_model(base_model: keras.Model, calibrated_output: str | int | None = None) -> None:
    """Raises unless the model has symbolic inputs and an output of numbers per row or class."""
    if not isinstance(base_model, keras.Model):
        raise ValueError(f"Argument `base_model` must be a Keras model. Received: {base_model!r}.")
    if symbolic_output(base_model) is None:
        raise ValueError(
            "Argument `base_model` must have symbolic inputs and outputs. Received: "
            f"{type(base_model).__name__}, a subclassed model or one without an Input. Wrap it: "
            "keras.Model(inputs, base_model(inputs)), with inputs made by keras.Input. Pass "
            'base_output="logit" if it returns a logit, which is better because a probability near '
            '1 loses precision, or base_output="probability" if it returns a probability.'
        )
    output = output_tensor(base_model, calibrated_output)
    if len(output.shape) not in (1, 2) or (len(output.shape) == 2 and not output.shape[1]):
        raise ValueError(
            "Argument `base_model` must return one probability or logit per row, with shape "
            "(batch,) or (batch, 1), or one per class, with shape (batch, K). Received: an output "
            f"of shape {output.shape}."
        )
    if "float" not in output.dtype:
        raise ValueError(
            "Argument `base_model` must return probabilities or logits in a float dtype. "
            f"Received: an output of dtype {output.dtype}."
        )


@dataclass(frozen=True)
class LogitSource:
    """From where in a model the logit of an output is computed.

    Args:
        kind: What the output is: "probability", "logit", "sigmoids" or "other".
        operation: The operation that determines the kind.
        tensor: The symbolic tensor, or structure of tensors, to start from.
        to_logits: A function from its values to the input of the sigmoid or softmax; None if there
            is none, and `tensor` is the output itself.
    """

    kind: str
    operation: keras.Operation
    tensor: Inputs
    to_logits: Callable[[Inputs], Tensor] | None = None


def _logit_source(
    base_model: keras.Model, base_output: str, calibrated_output: str | int | None
) -> LogitSource:
    """From where the logits of a base model are computed; raises if `base_output` is wrong."""
    output = output_tensor(base_model, calibrated_output)
    source = _found_source(output)
    kind, operation = source.kind, source.operation
    num_columns = num_logits(base_model, calibrated_output)
    activation = "softmax" if num_columns > 1 else "sigmoid"
    expression = output_expression(base_model, calibrated_output)
    if kind == "sigmoids":
        raise ValueError(
            "Argument `base_model` must return probabilities of classes, which add up to 1. "
            f"Received: a model that ends in {num_columns} sigmoids, in "
            f"{operation.name!r}. Calibrate each output by itself, for example "
            f"keras.Model(base_model.input, {expression}[:, :1]) with "
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
            f"keras.ops.clip({expression}, 0, 1) as the output."
        )
    if source.to_logits is None and base_output == "probability":
        has_classes = num_columns > 1
        convert = class_logits_from_probabilities if has_classes else logits_from_probabilities
        return LogitSource(kind, operation, output, convert)
    return source


def _found_source(output: keras.KerasTensor) -> LogitSource:
    """Finds the kind of an output, and from where its logit is computed."""
    tensor = output
    operation, node = source_of(tensor)
    while passes_on(operation, tensor):
        tensor = node.input_tensors[0]
        operation, node = source_of(tensor)
    nested = _nested_model(operation, tensor)
    if nested is not None:
        inner_output = keras.tree.flatten(symbolic_output(nested))[position_of(tensor)]
        inner = _found_source(inner_output)
        if inner.to_logits is None:
            return LogitSource(inner.kind, inner.operation, output)
        given = (*node.arguments.args, *node.arguments.kwargs.values())[0]
        before, to_logits = keras.Model(symbolic_input(nested), inner.tensor), inner.to_logits
        return LogitSource(
            inner.kind,
            inner.operation,
            given,
            lambda values: to_logits(before(values, training=False)),
        )
    num_columns = math.prod(tensor.shape[1:])
    if num_columns > 1 and _is_sigmoid(operation, num_columns):
        return LogitSource("sigmoids", operation, output)
    if _is_softmax(operation, node, num_columns) if num_columns > 1 else _is_sigmoid(operation):
        is_dense = isinstance(operation, keras.layers.Dense)
        to_logits = functools.partial(_dense_logits, operation) if is_dense else _identity
        return LogitSource("probability", operation, node.input_tensors[0], to_logits)
    is_linear = type(operation) is keras.layers.Dense and _computes(operation, _identity)
    return LogitSource("logit" if is_linear else "other", operation, output)


def _nested_model(operation: keras.Operation, tensor: keras.KerasTensor) -> keras.Model | None:
    """The model with symbolic outputs that computes a tensor, if an operation is or holds one."""
    has_others = isinstance(operation, BaseLogits) and operation.all_outputs
    if has_others and position_of(tensor) != operation.position:
        return operation.base_model
    is_model = isinstance(operation, keras.Model) and symbolic_output(operation) is not None
    return operation if is_model else None


def passes_on(operation: keras.Operation, tensor: keras.KerasTensor) -> bool:
    """Whether an operation returns the values of each row unchanged."""
    kind = type(operation)
    if kind is keras.layers.Activation:
        # With all columns: Keras warns of a softmax of one.
        return _computes(operation, _identity, math.prod(size or 1 for size in tensor.shape[1:]))
    if not (kind.__module__.startswith("keras.") and kind.__name__ in _RESHAPING):
        return False
    _, node = source_of(tensor)
    shapes = (tensor.shape, node.input_tensors[0].shape)
    if any(None in shape[1:] for shape in shapes):
        return False
    return shapes[0] == shapes[1] or all(math.prod(shape[1:]) == 1 for shape in shapes)


def is_final_activation(operation: keras.Operation, node: Any, tensor: keras.KerasTensor) -> bool:
    """Whether an operation is a sigmoid of one logit per row or a softmax, and nothing else."""
    if _is_dense(operation):
        return False
    num_columns = math.prod(tensor.shape[1:])
    return _is_softmax(operation, node, num_columns) if num_columns > 1 else _is_sigmoid(operation)


def _is_sigmoid(operation: keras.Operation, num_columns: int = 1) -> bool:
    if _is_dense(operation) or type(operation) is keras.layers.Activation:
        # With all columns: Keras warns of a softmax of one.
        return _computes(operation, ops.sigmoid, num_columns)
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


def _dense_logits(dense: keras.layers.Dense, hidden: Tensor) -> Tensor:
    """The output of a `Dense` layer before its activation, in float32 or float64."""
    kernel = ops.convert_to_tensor(dense.kernel)
    dtype = calibration_dtype(keras.backend.standardize_dtype(kernel.dtype))
    logits = ops.matmul(ops.cast(hidden, dtype), ops.cast(kernel, dtype))
    return logits if dense.bias is None else logits + ops.cast(dense.bias, dtype)


def symbolic_input(model: keras.Model) -> Inputs:
    """The symbolic input of a Functional (a tensor or a structure) or Sequential model, or None."""
    return model.inputs[0] if _is_built_sequential(model) else _symbolic(model, "input")


def symbolic_output(model: keras.Model) -> Inputs:
    """The symbolic output of a Functional or Sequential model (or a structure of them), or None."""
    if not _is_built_sequential(model):
        return _symbolic(model, "output")
    return model.outputs[0] if len(model.outputs) == 1 else sequential_output(model)


def _is_built_sequential(model: keras.Model) -> bool:
    # Its `output` exists only after it has been called on a symbolic tensor.
    return isinstance(model, keras.Sequential) and bool(getattr(model, "outputs", None))


def _symbolic(model: keras.Model, name: str) -> Inputs:
    is_functional = getattr(model, "inputs", None) is not None
    return getattr(model, name) if is_functional else None


def output_names(model: keras.Model) -> list[str]:
    """Names of the outputs of a model, in the order of `keras.tree.flatten`.

    They are the keys of a dictionary. For a list, they are the names of the operations, as in
    Keras' `output_names`, or `output_0`, `output_1`, … if two operations have the same name. In a
    structure of structures, they are paths such as `tasks/click`.

    Example:
        >>> inputs = keras.Input((2,))
        >>> outputs = [keras.layers.Dense(1, name=name)(inputs) for name in ("click", "buy")]
        >>> output_names(keras.Model(inputs, outputs))
        ['click', 'buy']
        >>> output_names(keras.Model(inputs, {"buy": outputs[1], "click": outputs[0]}))
        ['buy', 'click']
        >>> output_names(keras.Model(inputs, [outputs[0], outputs[0]]))
        ['output_0', 'output_1']
    """
    output = symbolic_output(model)
    paths, tensors = zip(*keras.tree.flatten_with_path(output), strict=True)
    if isinstance(output, Mapping) or not _is_flat(output):
        return ["/".join(map(str, path)) for path in paths]
    names = [source_of(tensor)[0].name for tensor in tensors]
    is_unique = len(set(names)) == len(names)
    return names if is_unique else [f"output_{number}" for number in range(len(names))]


def output_position(model: keras.Model, calibrated_output: str | int | None) -> int:
    """The position of an output among the flat outputs of a model; raises if there is none."""
    names = output_names(model)
    is_list = _is_flat(symbolic_output(model)) and not isinstance(symbolic_output(model), Mapping)
    if calibrated_output is None and len(names) == 1:
        return 0
    if isinstance(calibrated_output, str) and calibrated_output in names:
        return names.index(calibrated_output)
    number = plain_key(calibrated_output)
    if is_list and isinstance(number, int) and not isinstance(number, bool):
        if -len(names) <= number < len(names):
            return number % len(names)
    raise ValueError(
        f"Argument `calibrated_output` must be the name {'or the index ' if is_list else ''}of the "
        f"output of the base model to calibrate. Its outputs are {names}. Received: "
        f"calibrated_output={calibrated_output!r}."
    )


def output_tensor(model: keras.Model, calibrated_output: str | int | None) -> keras.KerasTensor:
    """The symbolic tensor of the calibrated output of a model; raises if there is none."""
    tensors = keras.tree.flatten(symbolic_output(model))
    return tensors[output_position(model, calibrated_output)]


def output_name(model: keras.Model, calibrated_output: str | int | None) -> str:
    """The name of the calibrated output of a model; raises if there is none."""
    return output_names(model)[output_position(model, calibrated_output)]


def output_expression(model: keras.Model, calibrated_output: str | int | None) -> str:
    """Python code for the symbolic tensor of the calibrated output, for messages."""
    paths = [path for path, _ in keras.tree.flatten_with_path(symbolic_output(model))]
    keys = paths[output_position(model, calibrated_output)]
    return "base_model.output" + "".join(f"[{key!r}]" for key in keys)


def plain_key(calibrated_output: str | int | None) -> str | int | None:
    """A NumPy integer as a Python integer; other values are unchanged."""
    if isinstance(calibrated_output, np.integer):
        return int(calibrated_output)
    return calibrated_output


def _is_flat(output: Inputs) -> bool:
    """Whether an output is a tensor, or holds tensors only."""
    return all(len(path) <= 1 for path, _ in keras.tree.flatten_with_path(output))
