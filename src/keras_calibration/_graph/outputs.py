"""The inputs and outputs of a model as symbolic tensors, and their names."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import keras

from keras_calibration._keras import sequential_output, source_of
from keras_calibration._rows.inputs import inputs_by_name
from keras_calibration._typing import Inputs, Tensor


def symbolic_input(model: keras.Model) -> Inputs:
    """The symbolic input of a Functional (a tensor or a structure) or Sequential model, or None."""
    return model.inputs[0] if _is_built_sequential(model) else _read_symbolic(model, "input")


def columns_by_path(inputs: Inputs, named: Inputs) -> dict[str, Tensor]:
    """The single columns of inputs by their paths, such as `user.id`: what a head can read.

    Example:
        >>> inputs = {"user": {"id": 1, "age": 2}, "price": 3}
        >>> columns_by_path(inputs, inputs)
        {'price': 3, 'user.age': 2, 'user.id': 1}
    """
    return {
        ".".join(map(str, path)): column
        for path, column in keras.tree.flatten_with_path(inputs_by_name(inputs, named))
    }


def with_tensor_names(paths: Collection[str], inputs: Inputs) -> set[str]:
    """Paths of symbolic inputs, and the names of their tensors, by which a reader knows them."""
    tensors = columns_by_path(inputs, inputs)
    return {*paths, *(tensors[path].name for path in paths if path in tensors)}


def symbolic_output(model: keras.Model) -> Inputs:
    """The symbolic output of a Functional or Sequential model (or a structure of them), or None."""
    if not _is_built_sequential(model):
        return _read_symbolic(model, "output")
    return model.outputs[0] if len(model.outputs) == 1 else sequential_output(model)


def _is_built_sequential(model: keras.Model) -> bool:
    # A Sequential model has `outputs` once it is built, but `output` only after a symbolic call.
    return isinstance(model, keras.Sequential) and bool(getattr(model, "outputs", None))


def _read_symbolic(model: keras.Model, name: str) -> Inputs:
    return None if getattr(model, "inputs", None) is None else getattr(model, name)


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
    return names if len(set(names)) == len(names) else [f"output_{n}" for n in range(len(names))]


def output_position(model: keras.Model, calibrated_output: str | int | None) -> int:
    """The position of an output among the flat outputs of a model; raises if there is none."""
    names = output_names(model)
    is_list = _is_flat(symbolic_output(model)) and not isinstance(symbolic_output(model), Mapping)
    if calibrated_output is None and len(names) == 1:
        return 0
    if isinstance(calibrated_output, str) and calibrated_output in names:
        return names.index(calibrated_output)
    if is_list and type(calibrated_output) is int and -len(names) <= calibrated_output < len(names):
        return calibrated_output % len(names)
    raise ValueError(
        f"Argument `calibrated_output` must be the name {'or the index ' if is_list else ''}of the "
        f"output of the base model to calibrate. Its outputs are {names}. Received: "
        f"calibrated_output={calibrated_output!r}."
    )


def output_tensor(model: keras.Model, calibrated_output: str | int | None) -> keras.KerasTensor:
    """The symbolic tensor of the calibrated output of a model; raises if there is none."""
    return keras.tree.flatten(symbolic_output(model))[output_position(model, calibrated_output)]


def output_name(model: keras.Model, calibrated_output: str | int | None) -> str:
    """The name of the calibrated output of a model; raises if there is none."""
    return output_names(model)[output_position(model, calibrated_output)]


def output_expression(model: keras.Model, calibrated_output: str | int | None) -> str:
    """Python code for the symbolic tensor of the calibrated output, for messages."""
    paths = keras.tree.flatten_with_path(symbolic_output(model))
    keys, _ = paths[output_position(model, calibrated_output)]
    return "base_model.output" + "".join(f"[{key!r}]" for key in keys)


def num_logits(model: keras.Model, calibrated_output: str | int | None = None) -> int:
    """The number of logits per row: 1, or K for K classes."""
    return math.prod(output_tensor(model, calibrated_output).shape[1:])


def _is_flat(output: Inputs) -> bool:
    """Whether an output is a tensor, or holds tensors only."""
    return all(len(path) <= 1 for path, _ in keras.tree.flatten_with_path(output))
