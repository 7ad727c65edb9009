"""BaseLogits: the logits of a base model, as a frozen layer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
from keras import ops

from calibration_records._check import instance, one_of
from keras_calibration._graph.logit_source import LogitSource, logit_source
from keras_calibration._graph.outputs import (
    columns_by_path,
    num_logits,
    output_position,
    output_tensor,
    symbolic_input,
    symbolic_output,
)
from keras_calibration._keras import flatten_layers, source_of
from keras_calibration._rows.inputs import free_name
from keras_calibration._typing import Inputs, Shape, Tensor
from keras_calibration.layers.head import Head
from keras_calibration.layers.logits import as_column, calibration_dtype

_OUTPUTS = ("auto", "probability", "logit")


@keras.saving.register_keras_serializable(package="keras_calibration")
class BaseLogits(keras.layers.Layer):
    """The uncalibrated logit l = f(x) of a trained model, frozen and in inference mode.

    If the base model ends in a sigmoid (a `Dense` or `Activation` layer, or the operation), the
    layer takes the logit before it, because a float32 probability near 1 no longer determines its
    logit. It also finds the sigmoid before `Flatten`, `Reshape`, `squeeze` and
    `Activation("linear")`, and in nested models. Otherwise it converts the probability to a logit.
    For a model with K classes, the same holds for K logits and their softmax.

    Args:
        base_model: A Functional or Sequential Keras model with an output of shape (batch, 1) or
            (batch,), or (batch, K) for K classes. It is set to `trainable=False`.
        base_output: What the base model returns: `"probability"`, `"logit"`, or `"auto"` to infer
            it from the last layer.
        calibrated_output: Which of several outputs of the base model is calibrated: its key in a
            dictionary, its index in a list, or its name (the name of its last layer). None for a
            base model with one output.
        all_outputs: Whether the layer returns all outputs of the base model, in the same structure,
            with the logits in place of the calibrated one; otherwise, it returns the logits alone.
        **kwargs: Keyword arguments of every Keras layer (`name`, `dtype`).

    Raises:
        ValueError: If the model has no symbolic inputs; if `calibrated_output` names none of its
            outputs, or is None for a model with several; if the output has another shape or no
            float dtype; if it is K sigmoids, whose sum is not 1; if `"auto"` cannot infer what it
            is; or if the last layer contradicts `base_output`.

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
        one_of("base_output", base_output, _OUTPUTS)
        check_base_model(base_model, calibrated_output)
        self.base_model = base_model
        self.base_output = base_output
        self.calibrated_output = calibrated_output
        self.all_outputs = all_outputs
        # Position of the calibrated output in the order of `keras.tree.flatten`.
        self.position = output_position(base_model, calibrated_output)
        self._function = self._build_function(
            logit_source(base_model, base_output, calibrated_output)
        )
        self.freeze()
        # The inputs keep their dtypes: a field id in float32 would lose its last digits.
        self.autocast = False
        self.built = True

    def freeze(self) -> None:
        """Freezes every layer of the base model."""
        # One by one: on TensorFlow, the setter of a layer that is already frozen does nothing, so
        # that the layers inside it would not be frozen.
        for layer in flatten_layers(self):
            layer.trainable = False

    def _build_function(
        self, source: LogitSource
    ) -> Callable[[Inputs], tuple[Tensor, list[Tensor]]]:
        """The function from inputs to logits and other outputs, with the base model's weights.

        It is a closure, so that Keras does not track the inner model, whose layers belong to the
        base model.
        """
        model, to_logits = self.base_model, source.to_logits or keras.activations.linear
        others = self._list_other_outputs() if self.all_outputs else []
        # One model, so that the common part of the logits and the others is computed once.
        outputs = [source.tensor, *others] if others else source.tensor
        if outputs is not symbolic_output(model):
            model = keras.Model(symbolic_input(model), outputs)

        def logits_and_others(inputs: Inputs) -> tuple[Tensor, list[Tensor]]:
            values = model(inputs, training=False)
            start, *rest = values if others else [values]
            return to_logits(start), rest

        return logits_and_others

    def _list_other_outputs(self) -> list[keras.KerasTensor]:
        """The symbolic outputs of the base model except for the calibrated one."""
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
        # A sigmoid before `Flatten` may have logits of more dimensions, with one value a row.
        logits = as_column(logits) if len(logits.shape) <= 2 else ops.reshape(logits, (-1, 1))
        return self._pack_outputs(logits, others)

    def passes_output(self, position: int) -> bool:
        """Whether the output of the layer at a position is that of the base model, unchanged."""
        return self.all_outputs and position != self.position

    def _pack_outputs(self, logits: Tensor, others: list[Tensor]) -> Inputs:
        if not self.all_outputs:
            return logits
        return keras.tree.pack_sequence_as(
            symbolic_output(self.base_model),
            [*others[: self.position], logits, *others[self.position :]],
        )

    def compute_output_spec(self, inputs: Inputs) -> Inputs:
        """Symbolic logits, or all outputs with them."""
        return self._pack_outputs(
            keras.KerasTensor(self.compute_output_shape(()), self.compute_dtype),
            [
                keras.KerasTensor(t.shape, t.dtype, sparse=t.sparse)
                for t in self._list_other_outputs()
            ],
        )

    def compute_output_shape(
        self, input_shape: Shape | Mapping[str, Shape] | Sequence[Shape]
    ) -> tuple[int | None, int]:
        """`(batch, 1)` or `(batch, K)`."""
        return (
            output_tensor(self.base_model, self.calibrated_output).shape[0],
            num_logits(self.base_model, self.calibrated_output),
        )

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
        return cls(
            **{**config, "base_model": keras.saving.deserialize_keras_object(config["base_model"])}
        )


def with_all_outputs(base: BaseLogits, head: Head, inputs: Inputs) -> keras.Model:
    """A Functional model with all outputs of the base model, one of them calibrated.

    The last layers have the names of the base model's, so that Keras finds the losses and metrics
    of a list of outputs by the same names.

    Args:
        base: The base logits.
        head: The calibration head.
        inputs: Symbolic inputs, in the structure that the base model takes.
    """
    # The head reads its features from the model's inputs, as in `CalibratedModel`.
    features = columns_by_path(inputs, inputs)
    if head.feature_names is not None:
        features = {name: features[name] for name in head.feature_names}
    structure = symbolic_output(base.base_model)
    taken = {base.name, head.name, *(tensor.name for tensor in keras.tree.flatten(inputs))}
    # `BaseLogits` freezes the base model. If the user has unfrozen it since, keep it so.
    with trainable_flags_kept(base.base_model):
        layer = BaseLogits(
            base.base_model,
            base.base_output,
            base.calibrated_output,
            all_outputs=True,
            dtype=base.dtype,
            name=base.name,
        )
    # Give each output a last layer of its own: the head with its activation, or an identity.
    outputs = keras.tree.flatten(layer(inputs))
    for position, old in enumerate(keras.tree.flatten(structure)):
        name = free_name(source_of(old)[0].name, taken)
        taken.add(name)
        if position == base.position:
            outputs[position] = probability_of(
                head(outputs[position], features), head, name, is_column=len(old.shape) == 2
            )
        else:
            # With its default dtype, a layer would convert floats to float32.
            outputs[position] = keras.layers.Identity(
                dtype=old.dtype if "float" in old.dtype else None, name=name
            )(outputs[position])
    return keras.Model(
        inputs, keras.tree.pack_sequence_as(structure, outputs), name=base.base_model.name
    )


def probability_of(
    logit: keras.KerasTensor, head: Head, name: str, is_column: bool = True
) -> keras.KerasTensor:
    """The sigmoid or softmax of the logits of a head, by a layer of this name."""
    activation = "softmax" if logit.shape[1] > 1 else "sigmoid"
    if is_column:
        return keras.layers.Activation(activation, dtype=head.dtype, name=name)(logit)
    return keras.layers.Reshape((), dtype=head.dtype, name=name)(
        keras.layers.Activation(activation, dtype=head.dtype)(logit)
    )


@contextlib.contextmanager
def trainable_flags_kept(model: keras.Model) -> Iterator[None]:
    """Restores the `trainable` flags of all layers and variables of a model at exit."""
    parts = [*flatten_layers(model), *model.variables] if isinstance(model, keras.Model) else []
    flags = [(part, part.trainable) for part in parts]
    try:
        yield
    finally:
        for part, flag in flags:
            # The public setter of a layer would also change the layers inside.
            part._trainable = flag


def serialized_base(base_model: keras.Model) -> dict[str, Any]:
    """The configuration of a base model without `compile`: it is not trained inside another."""
    config: dict[str, Any] = keras.saving.serialize_keras_object(base_model)
    return {name: value for name, value in config.items() if name != "compile_config"}


def check_base_model(
    base_model: keras.Model,
    calibrated_output: str | int | None = None,
    argument: str = "base_model",
) -> None:
    """Raises unless the model has symbolic inputs and an output of numbers per row or class."""
    instance(argument, base_model, keras.Model, "a Keras model")
    if symbolic_output(base_model) is None:
        raise ValueError(
            f"Argument `{argument}` must have symbolic inputs and outputs. Received: "
            f"{type(base_model).__name__}, a subclassed model or one without an Input. Wrap it: "
            f"keras.Model(inputs, {argument}(inputs)), with inputs made by keras.Input. Pass this "
            'to CalibratedModel if it is subclassed, with base_output="logit" for a logit, '
            "which is better because a probability near 1 loses precision, or else with "
            'base_output="probability".'
        )
    output = output_tensor(base_model, calibrated_output)
    if len(output.shape) not in (1, 2) or (len(output.shape) == 2 and not output.shape[1]):
        raise ValueError(
            f"Argument `{argument}` must return one probability or logit per row, with shape "
            "(batch,) or (batch, 1), or one per class, with shape (batch, K). Received: an output "
            f"of shape {output.shape}."
        )
    if "float" not in output.dtype:
        raise ValueError(
            f"Argument `{argument}` must return probabilities or logits in a float dtype. "
            f"Received: an output of dtype {output.dtype}."
        )
