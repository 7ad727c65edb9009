"""DLRM: dot products of embeddings and of a perceptron of the numeric columns."""

from collections.abc import Sequence

import keras
import keras_rs
import numpy as np

from click_models.embedded import ModelOptions, Tensor, embed, ids_input, output, perceptron


def dlrm(options: ModelOptions, bottom_units: Sequence[int] = (16,)) -> keras.Model:
    """Dot products of all pairs of embeddings, and a perceptron on them.

    logit = wᵀ MLP([z, ⟨vᵢ, vⱼ⟩ for all i < j]) + b. The vectors v are z, the output of a bottom
    perceptron of the numeric columns, and the embeddings of the others. Numeric columns enter as
    the share of buckets below their own, from 0 to 1. In a table without numeric columns, z is a
    learned constant.

    Args:
        options: Columns and sizes.
        bottom_units: Hidden units of the bottom perceptron, before its output of the size of an
            embedding.

    Raises:
        ValueError: All columns are numeric.

    Example:
        >>> options = ModelOptions((5, 3, 9), num_numeric=1, embedding_dim=4, hidden_units=(8,))
        >>> model = dlrm(options, bottom_units=(6,))
        >>> model.output_shape, model.count_params()
        ((None, 1), 145)

    Reference:
        Naumov et al. (2019), *Deep learning recommendation model for personalization and
        recommendation systems*, arXiv 1906.00091.
    """
    num_categorical = len(options.num_ids) - options.num_numeric
    if not num_categorical:
        raise ValueError(
            "DLRM needs a column that is not numeric, for dot products with its embedding. "
            f"Received: num_numeric={options.num_numeric} of {len(options.num_ids)} columns."
        )
    ids = ids_input(options)
    bottom = perceptron(_numeric(ids, options), (*bottom_units, options.embedding_dim), options)
    num_ids = options.num_ids[:num_categorical]
    embeddings = embed(ids[:, :num_categorical], num_ids, options.embedding_dim, options)
    vectors = [bottom, *(embeddings[:, column] for column in range(num_categorical))]
    products = keras_rs.layers.DotInteraction()(vectors)
    hidden = keras.layers.Concatenate()([bottom, products])
    hidden = perceptron(hidden, options.hidden_units, options)
    return keras.Model(ids, output(hidden, options), name="dlrm")


def _numeric(ids: Tensor, options: ModelOptions) -> Tensor:
    """The numeric columns in [0, 1], `(batch, num_numeric)`; a column of ones if there is none."""
    if not options.num_numeric:
        return keras.ops.ones_like(ids[:, :1], dtype="float32")
    num_ids = np.array(options.num_ids[-options.num_numeric :])
    buckets = keras.ops.cast(ids[:, -options.num_numeric :], "float32")
    return buckets / np.maximum(num_ids - 1, 1).astype("float32")
