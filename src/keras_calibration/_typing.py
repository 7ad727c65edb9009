"""Names for types that Keras lacks, or that many modules use.

`Any` is used for values that can be anything: an argument for Keras, a JSON value.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

Tensor: TypeAlias = Any
"""A tensor of the Keras backend, or a value that `keras.ops.convert_to_tensor` takes."""

Inputs: TypeAlias = Any
"""The inputs of a Keras model: a tensor, or a list, tuple or dictionary of tensors."""

Data: TypeAlias = Any
"""Rows in any form that `fit` of a model takes: inputs as arrays, a data frame, a data set of
batches; for validation, a tuple of inputs, labels and weights."""

Features: TypeAlias = Mapping[str, Tensor]
"""The features of a batch by name, each with one row per example."""

Shape: TypeAlias = tuple[int | None, ...]
"""A shape, with None for an unknown size, such as that of the batch."""
