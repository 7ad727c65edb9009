"""Selects the inputs of a Functional model from the data that it is given."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

import keras
from keras import ops

from calibration_records._columns import by_name
from keras_calibration._rows.input_columns import input_names, inputs_of, refused_in_graphs
from keras_calibration._typing import Data, Inputs, Tensor

# Rows of a step of `predict`.
BATCH_SIZE = 4096


def named_inputs(tensors: Inputs) -> Inputs:
    """New symbolic inputs like a model's own; generated names are replaced by `"inputs"`."""
    inputs = [
        keras.Input(batch_shape=tensor.shape, dtype=tensor.dtype, name=name)
        for name, tensor in zip(clean_names(tensors), keras.tree.flatten(tensors), strict=True)
    ]
    return keras.tree.pack_sequence_as(tensors, inputs)


def clean_names(tensors: Inputs) -> list[str]:
    """The names of symbolic inputs, flat; generated names are replaced by `"inputs"`.

    Example:
        >>> clean_names(keras.Input((2,)))
        ['inputs']
    """
    flat = keras.tree.flatten(tensors)
    names = [tensor.name for tensor in flat]
    if isinstance(tensors, Mapping):
        names = [str(path[-1]) for path, _ in keras.tree.flatten_with_path(tensors)]
    made_up = re.compile(r"(keras_tensor|input_layer)(_\d+)?")
    return [
        (f"inputs_{number}" if len(flat) > 1 else "inputs") if made_up.fullmatch(name) else name
        for number, name in enumerate(names)
    ]


def inputs_by_name(inputs: Inputs, named: Inputs) -> dict[str, Tensor]:
    """Inputs as a dictionary, by their keys or else by the names of the Input tensors."""
    if isinstance(inputs, Mapping):
        return dict(inputs)
    return dict(zip(input_names(named), keras.tree.flatten(inputs), strict=True))


def expected_inputs(inputs: Inputs, expected: Inputs, ids: Collection[str] = ()) -> Inputs:
    """Selects the inputs that a model expects, with the rank and dtype that it expects.

    Other entries of a dictionary are ignored. If the model expects a tensor or a list, the entries
    are found by the names of the Input tensors. As in Keras, a column may have shape (n,) or
    (n, 1). Of the inputs, `ids` names those that hold ids, which must be exact.

    Example:
        >>> price = keras.Input((1,), name="price")
        >>> x = {"price": ops.zeros((3,)), "row": ops.arange(3)}
        >>> expected_inputs(x, {"price": price})["price"].shape
        TensorShape([3, 1])
        >>> expected_inputs(x, price).shape
        TensorShape([3, 1])
    """
    inputs = by_name(inputs)
    is_named = isinstance(inputs, Mapping)
    inputs = inputs_of(inputs, expected, ids)
    if is_named and not isinstance(expected, Mapping):
        inputs = keras.tree.pack_sequence_as(expected, list(inputs.values()))
    given, symbolic = keras.tree.flatten(inputs), keras.tree.flatten(expected)
    if len(given) != len(symbolic):
        return inputs  # Keras reports the error.
    return keras.tree.pack_sequence_as(expected, list(map(_with_rank, symbolic, given)))


def _with_rank(expected: keras.KerasTensor, values: Tensor) -> Tensor:
    """A column as (n, 1) or (n,), as the model expects; other shapes are unchanged."""
    shape = getattr(values, "shape", None)
    is_column = tuple(expected.shape[1:]) in ((), (1,))
    if shape is None or not is_column:
        return values
    # Keras traces inputs that have come in both ranks as tensors of unknown rank.
    rank = shape.rank if hasattr(shape, "rank") else len(shape)
    if rank == len(expected.shape):
        return values
    if rank is not None and not (rank == 1 or (rank == 2 and shape[1] == 1)):
        return values
    columns = (-1, *expected.shape[1:])
    return ops.reshape(values, columns) if ops.is_tensor(values) else values.reshape(columns)


class LogitModel(keras.Model):
    """A Functional model that returns base logits and ignores other inputs."""

    def values(self, inputs: Data, verbose: int | str = 0) -> Any:
        """The outputs for the rows of arrays or of a data set, as arrays."""
        with refused_in_graphs():
            return self.predict(inputs, batch_size=BATCH_SIZE, verbose=verbose)

    def call(
        self, inputs: Inputs, training: bool | None = None, mask: Inputs | None = None
    ) -> Tensor:
        """Base logits (batch, 1)."""
        return super().call(expected_inputs(inputs, self.input), training=training, mask=mask)

    @property
    def input_spec(self) -> None:
        """None: `call` checks the inputs itself."""
        return None
