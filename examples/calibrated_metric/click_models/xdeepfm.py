"""xDeepFM: a compressed interaction network, a linear part and a perceptron."""

import itertools
from collections.abc import Sequence
from typing import Any

import keras

from click_models.embedded import (
    ModelOptions,
    Tensor,
    embed,
    ids_input,
    linear,
    output,
    perceptron,
)


class CompressedInteraction(keras.layers.Layer):
    """The compressed interaction network (CIN): explicit products of embeddings of rising degree.

    With the embeddings X⁰, `(num_columns, size)`, layer k has the rows

    Xᵏ_h = Σᵢ Σⱼ Wᵏʰᵢⱼ (Xᵏ⁻¹ᵢ ∘ X⁰ⱼ),

    where ∘ multiplies elementwise. The output has the sum over the embedding dimension of each row
    of each layer: products of two columns from the first layer, of three from the second, and so
    on. There is no activation, as the paper recommends.

    Args:
        units: Number of rows of each layer.
        kernel_regularizer: Regularizer of the weights W, or `None`.
        **kwargs: `name` and other arguments of `keras.layers.Layer`.

    Raises:
        ValueError: `units` is empty.

    Example:
        >>> import numpy as np
        >>> pooled = CompressedInteraction([3, 2])(np.ones((4, 6, 8)))  # 6 columns of size 8
        >>> tuple(pooled.shape)
        (4, 5)

    Reference:
        Lian et al. (2018), *xDeepFM: Combining explicit and implicit feature interactions for
        recommender systems*, arXiv 1803.05170, eq. 6 and 7.
    """

    def __init__(
        self,
        units: Sequence[int],
        kernel_regularizer: keras.regularizers.Regularizer | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if not units:
            raise ValueError("Argument `units` must have a number for each layer. Received: none.")
        self.units = tuple(units)
        self.kernel_regularizer = kernel_regularizer

    def build(self, input_shape: Sequence[int]) -> None:
        """Creates a kernel for each layer, `(rows of the layer before · num_columns, rows)`."""
        num_columns = input_shape[1]
        rows = (num_columns, *self.units)
        self.kernels = [
            self.add_weight(
                shape=(before * num_columns, after),
                initializer="glorot_uniform",
                regularizer=self.kernel_regularizer,
                name=f"kernel_{number}",
            )
            for number, (before, after) in enumerate(itertools.pairwise(rows))
        ]

    def call(self, embeddings: Tensor) -> Tensor:
        """Embeddings `(batch, num_columns, size)` → pooled rows `(batch, sum(units))`."""
        # With the columns last, a layer is one matrix product.
        first = keras.ops.transpose(embeddings, (0, 2, 1))
        _, size, num_columns = first.shape
        rows, pooled = first, []
        for kernel in self.kernels:
            products = rows[:, :, :, None] * first[:, :, None, :]
            products = keras.ops.reshape(products, (-1, size, rows.shape[-1] * num_columns))
            rows = keras.ops.matmul(products, kernel)
            pooled.append(keras.ops.sum(rows, axis=1))
        return keras.ops.concatenate(pooled, axis=-1)


def xdeepfm(options: ModelOptions, cin_units: Sequence[int] = (8, 8)) -> keras.Model:
    """A linear part, a compressed interaction network and a perceptron, on the same embeddings.

    logit = Σ_c w_c + w_cinᵀ CIN([e₁, …, e_C]) + wᵀ MLP([e₁, …, e_C]) + b.

    Args:
        options: Columns and sizes.
        cin_units: Number of rows of each layer of the compressed interaction network.

    Example:
        >>> options = ModelOptions(num_ids=(5, 3), embedding_dim=4, hidden_units=(8,))
        >>> model = xdeepfm(options, cin_units=(3,))
        >>> model.output_shape, model.count_params()
        ((None, 1), 136)

    Reference:
        Lian et al. (2018), arXiv 1803.05170.
    """
    ids = ids_input(options)
    embeddings = embed(ids, options.num_ids, options.embedding_dim, options)
    crosses = CompressedInteraction(cin_units, options.regularizer())(embeddings)
    hidden = perceptron(keras.layers.Flatten()(embeddings), options.hidden_units, options)
    # One dense layer on both parts has the weights w_cin and w.
    both = keras.layers.Concatenate()([crosses, hidden])
    logits = keras.layers.Add()([linear(ids, options), output(both, options)])
    return keras.Model(ids, logits, name="xdeepfm")
