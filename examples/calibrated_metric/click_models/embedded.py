"""What the click models share: their options, embeddings of ids, and a perceptron."""

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeAlias

import keras
import numpy as np

Tensor: TypeAlias = Any
"""A tensor of the backend, or a symbolic one of Keras."""

# Keras' default of 0.99 leaves a quarter of the initial moving statistics after 125 steps.
MOMENTUM = 0.9


@dataclasses.dataclass(frozen=True)
class ModelOptions:
    """The options of every click model.

    A model maps an int32 array of ids, `(batch, num_columns)`, to logits, `(batch, 1)`. Ids of
    column c are in [0, num_ids[c]).

    Args:
        num_ids: Number of ids of each column.
        num_numeric: How many of the last columns are numeric ones cut into buckets, with the
            buckets of values in ascending order. Only DLRM treats them differently.
        embedding_dim: Size of the embedding of each id.
        hidden_units: Units of the hidden layers of the perceptron.
        dropout: Dropout rate after each hidden layer.
        batch_normalization: Whether hidden layers are batch-normalised, before the activation.
        l2: Weight of the sum of squares of all embeddings and kernels in the loss.

    Raises:
        ValueError: `num_ids` is empty, or `num_numeric` is not a number of its columns.
    """

    num_ids: tuple[int, ...]
    num_numeric: int = 0
    embedding_dim: int = 8
    hidden_units: tuple[int, ...] = (64, 32)
    dropout: float = 0.0
    batch_normalization: bool = False
    l2: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.num_numeric <= len(self.num_ids) > 0:
            raise ValueError(
                "Argument `num_numeric` must be at most the number of columns, of which there is "
                f"at least one. Received: num_numeric={self.num_numeric}, num_ids={self.num_ids}."
            )

    def regularizer(self) -> keras.regularizers.Regularizer | None:
        """A new L2 regularizer, or `None` if `l2` is 0."""
        return keras.regularizers.L2(self.l2) if self.l2 else None


def ids_input(options: ModelOptions) -> Tensor:
    """The input of a model: ids, int32 `(batch, num_columns)`."""
    return keras.Input((len(options.num_ids),), dtype="int32", name="ids")


def embed(ids: Tensor, num_ids: Sequence[int], size: int, options: ModelOptions) -> Tensor:
    """Embeds all columns in one table, where each column has the rows after the column before it.

    Args:
        ids: Ids `(batch, num_columns)`.
        num_ids: Number of ids of each of these columns.
        size: Size of the embeddings.
        options: The options, for their regularizer.

    Returns:
        Embeddings, `(batch, num_columns, size)`.
    """
    first_rows = np.cumsum([0, *num_ids[:-1]]).astype("int32")
    table = keras.layers.Embedding(sum(num_ids), size, embeddings_regularizer=options.regularizer())
    return table(ids + first_rows)


def linear(ids: Tensor, options: ModelOptions) -> Tensor:
    """A logistic regression on the ids, as logits `(batch, 1)`: the sum of a weight for each id."""
    return keras.ops.sum(embed(ids, options.num_ids, 1, options), axis=1)


def perceptron(x: Tensor, hidden_units: Sequence[int], options: ModelOptions) -> Tensor:
    """Hidden layers: dense, batch normalisation, ReLU, dropout.

    Args:
        x: Features `(batch, num_features)`.
        hidden_units: Units of each layer.
        options: The options, for batch normalisation, dropout and regularizer.

    Returns:
        The last layer, `(batch, hidden_units[-1])`; `x` itself without hidden layers.
    """
    for units in hidden_units:
        x = keras.layers.Dense(units, kernel_regularizer=options.regularizer())(x)
        if options.batch_normalization:
            x = keras.layers.BatchNormalization(momentum=MOMENTUM)(x)
        x = keras.layers.ReLU()(x)
        if options.dropout:
            x = keras.layers.Dropout(options.dropout)(x)
    return x


def output(x: Tensor, options: ModelOptions) -> Tensor:
    """A dense layer to one logit, `(batch, 1)`."""
    return keras.layers.Dense(1, kernel_regularizer=options.regularizer())(x)
