"""Finds the calibration head in a Functional or Sequential model, and its logit and features."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import keras
from keras import ops

from keras_calibration._graph.base_logits import BaseLogits
from keras_calibration._graph.logit_model import LogitModel
from keras_calibration._graph.logit_source import is_final_activation, passes_on
from keras_calibration._graph.outputs import (
    output_name,
    output_names,
    output_position,
    symbolic_input,
    symbolic_output,
)
from keras_calibration._keras import flatten_layers, source_of
from keras_calibration._rows.inputs import clean_names
from keras_calibration._rows.reader import Reader
from keras_calibration._typing import Inputs, Tensor
from keras_calibration.layers.fits import wanted_by
from keras_calibration.layers.head import Head

LOGIT_OUTPUT = "logit"


@dataclass(frozen=True)
class HeadInModel:
    """A head, and the tensors of a model that it is called with.

    Args:
        model: The Functional or Sequential model.
        head: The head that calibrates one of its outputs.
        logit: Symbolic logit that the head is called with.
        features: Feature name → symbolic tensor that the head is called with.
        calibrated: Symbolic output of the head.
        position: Position of the calibrated output among the flat outputs of the model.
    """

    model: keras.Model
    head: Head
    logit: keras.KerasTensor
    features: Mapping[str, keras.KerasTensor]
    calibrated: keras.KerasTensor
    position: int

    @cached_property
    def inputs(self) -> dict[str, keras.KerasTensor]:
        """The symbolic inputs of the model by name; generated names are replaced."""
        structure = symbolic_input(self.model)
        return dict(zip(clean_names(structure), keras.tree.flatten(structure), strict=True))

    @cached_property
    def input_of(self) -> dict[str, str]:
        """Feature name → name of the model's input, for features that are inputs."""
        names = {id(tensor): name for name, tensor in self.inputs.items()}
        return {f: names[id(t)] for f, t in self.features.items() if id(t) in names}

    @property
    def ids(self) -> set[str]:
        """Names of the inputs that hold ids of the head's fields."""
        ids = self.head.reads().ids
        return {name for feature, name in self.input_of.items() if feature in ids}

    @property
    def output_name(self) -> str:
        """The name of the calibrated output."""
        return output_names(self.model)[self.position]

    @property
    def base_layer(self) -> BaseLogits | None:
        """The layer of the trained base model, if the logit comes from one."""
        base = source_of(self.logit)[0]
        return base if isinstance(base, BaseLogits) else None

    @property
    def label_names(self) -> list[str]:
        """The names of the calibrated output in labels by output: the base model's, and its own."""
        base = self.base_layer
        names = [] if base is None else [output_name(base.base_model, base.calibrated_output)]
        return list(dict.fromkeys([*names, self.output_name]))

    def structured(self, columns: Mapping[str, Tensor]) -> Inputs:
        """Inputs by name, in the structure that the model takes."""
        return keras.tree.pack_sequence_as(
            symbolic_input(self.model), [columns[name] for name in self.inputs]
        )

    @cached_property
    def base_outputs(self) -> dict[str, Any]:
        """The `logit`, (batch, 1) or (batch, K) in the head's dtype, and computed features."""
        logit, dtype = self.logit, self.head.compute_dtype
        logit = logit if len(logit.shape) == 2 else ops.expand_dims(logit, 1)
        logit = logit if logit.dtype == dtype else ops.cast(logit, dtype)
        return {
            LOGIT_OUTPUT: logit,
            **{f"feature_{f}": t for f, t in self.features.items() if f not in self.input_of},
        }

    @cached_property
    def base_part(self) -> LogitModel:
        """The model from the inputs to `base_outputs`; it ignores other inputs."""
        return LogitModel(symbolic_input(self.model), self.base_outputs, name="base_logits")

    @cached_property
    def reader(self) -> Reader:
        """Reads data as the model takes it, into what the head gets."""

        def compute(inputs: Inputs, verbose: int | str) -> tuple[Any, dict[str, Tensor]]:
            values = self.base_part.values(inputs, verbose)
            columns = dict(zip(self.inputs, keras.tree.flatten(inputs), strict=True))
            return values[LOGIT_OUTPUT], self.features_from(columns, values)

        numeric = self.head.reads().numeric
        base = self.base_layer
        return Reader(
            structure=symbolic_input(self.model),
            compute=compute,
            ids=self.ids,
            numeric={name for feature, name in self.input_of.items() if feature in numeric},
            label_names=self.label_names,
            other_names=[
                *([] if base is None else output_names(base.base_model)),
                *output_names(self.model),
            ],
            # `numeric` is empty, because the reader has checked the inputs that hold numbers.
            wanted=replace(wanted_by(self.head), names=tuple(self.features), numeric=()),
        )

    def features_from(
        self, columns: Mapping[str, Tensor], computed: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """The features of the head, from inputs by name and values of `base_outputs`."""
        return {
            f: columns[self.input_of[f]] if f in self.input_of else computed[f"feature_{f}"]
            for f in self.features
        }


def find_head(model: keras.Model, calibrated_output: str | int | None = None) -> HeadInModel:
    """The head of a model that calibrates an output, directly before its sigmoid or softmax.

    Args:
        model: A Functional or Sequential model, for example a `CalibratedModel`.
        calibrated_output: Name (or key) of the output, or its index in a list; None if one output
            has a head.

    Raises:
        ValueError: If there is no such head, more than one, or it is called more than once.
    """
    heads = find_heads(model)
    names = output_names(model)
    if calibrated_output is not None:
        position = output_position(model, calibrated_output)
        heads = [match for match in heads if match.position == position]
        if not heads:
            raise ValueError(
                f"The output {names[position]!r} of the model must come from a calibration head. "
                f"Received: calibrated_output={calibrated_output!r}, whose last layer is "
                f"{source_of(keras.tree.flatten(symbolic_output(model))[position])[0].name!r}."
            )
    if not heads:
        raise ValueError(_explain_no_head(model))
    if len({id(match.calibrated) for match in heads}) > 1:
        raise ValueError(
            "Argument `calibrated_output` must name one of the outputs that have a head, "
            f"{[names[match.position] for match in heads]}. Received: calibrated_output=None."
        )
    head = heads[0].head
    # A second call would change with the fit too, without being part of it.
    num_calls = sum(operation is head for operation in _iterate_operations(symbolic_output(model)))
    if num_calls > 1:
        raise ValueError(
            f"The head {head.name!r} must be called once in the model, because it is fitted to "
            f"the logits of one output. Received: a model that calls it {num_calls} times. Use a "
            "head for each output."
        )
    return heads[0]


def find_heads(model: keras.Model) -> list[HeadInModel]:
    """The heads directly before the outputs of a model, in the order of its outputs."""
    if not isinstance(model, keras.Model) or symbolic_output(model) is None:
        raise ValueError(
            "Argument `model` must be a Functional or Sequential Keras model with a calibration "
            f"head, or a CalibratedModel. Received: {type(model).__name__}. Give a subclassed "
            "model symbolic inputs: keras.Model(inputs, model(inputs)), with a head after its "
            "logit, or use kc.calibrate."
        )
    matches = (
        _find_head_before(tensor, model, position)
        for position, tensor in enumerate(keras.tree.flatten(symbolic_output(model)))
    )
    return [match for match in matches if match is not None]


def _find_head_before(
    tensor: keras.KerasTensor, model: keras.Model, position: int
) -> HeadInModel | None:
    """The head directly before an output of a model, or before its sigmoid or softmax."""
    # Walk back from the output, through layers that only reshape and at most one sigmoid or
    # softmax, to the head.
    operation, node = source_of(tensor)
    has_activation = False
    while not isinstance(operation, Head):
        if not passes_on(operation, tensor):
            if has_activation or not is_final_activation(operation, node, tensor):
                return None
            has_activation = True
        tensor = node.input_tensors[0]
        operation, node = source_of(tensor)
    # The arguments of the call, whether passed by position or by keyword.
    by_position = zip(("logits", "features"), node.arguments.args, strict=False)
    arguments = {"features": {}, **node.arguments.kwargs, **dict(by_position)}
    features = dict(arguments["features"] or {})
    names = features if operation.feature_names is None else operation.feature_names
    read = {name: features[name] for name in names}
    return HeadInModel(model, operation, arguments["logits"], read, tensor, position)


def _iterate_operations(outputs: Inputs) -> Iterator[keras.Operation]:
    """The operations that compute symbolic tensors, once for each call."""
    # A depth-first walk from the outputs to the inputs. A layer has a node for each of its calls.
    waiting = list(keras.tree.flatten(outputs))
    seen = set()
    while waiting:
        operation, node = source_of(waiting.pop())
        if id(node) not in seen:
            seen.add(id(node))
            yield operation
            waiting.extend(node.input_tensors)


def depends_on(tensor: keras.KerasTensor, head: Head) -> bool:
    """Whether a symbolic tensor is computed from an output of a head."""
    return any(operation is head for operation in _iterate_operations(tensor))


def _explain_no_head(model: keras.Model) -> str:
    """The error message for a model without a head before an output."""
    heads = [layer.name for layer in flatten_layers(model) if isinstance(layer, Head)]
    last = {source_of(tensor)[0].name for tensor in keras.tree.flatten(symbolic_output(model))}
    return (
        "The model must have a calibration head, a layer such as kc.layers.NeuralCalibration, "
        "whose output is the model's output or its sigmoid (softmax for classes). Received: the "
        f"model {model.name!r} with the last layers {sorted(last)}, and the heads {heads} "
        "elsewhere. Call a head on the logit, and only keras.layers.Activation('sigmoid') on the "
        "result, or use kc.calibrate."
    )
