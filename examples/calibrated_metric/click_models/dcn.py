"""DCN: a cross network beside a perceptron."""

from collections.abc import Sequence
from typing import Any

import keras

from click_models.embedded import ModelOptions, Tensor, embed, ids_input, output, perceptron


class VectorCross(keras.layers.Layer):
    """A cross layer whose weight is one vector: x_{l+1} = x₀ (x_lᵀ w) + b + x_l.

    Args:
        kernel_regularizer: Regularizer of w, or `None`.
        **kwargs: `name` and other arguments of `keras.layers.Layer`.

    Example:
        >>> import numpy as np
        >>> x = np.ones((4, 10))
        >>> tuple(VectorCross()(x, x).shape)
        (4, 10)

    Reference:
        Wang, Fu, Fu, Wang (2017), arXiv 1708.05123, eq. 3.
    """

    def __init__(
        self, kernel_regularizer: keras.regularizers.Regularizer | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.kernel_regularizer = kernel_regularizer

    def build(self, first_shape: Sequence[int], crossed_shape: Sequence[int]) -> None:
        """Creates w and b."""
        num_features = first_shape[-1]
        self.kernel = self.add_weight(
            shape=(num_features, 1),
            initializer="glorot_uniform",
            regularizer=self.kernel_regularizer,
            name="kernel",
        )
        self.bias = self.add_weight(shape=(num_features,), initializer="zeros", name="bias")

    def call(self, first: Tensor, crossed: Tensor) -> Tensor:
        """x₀ and x_l, both `(batch, num_features)` → x_{l+1}."""
        return first * keras.ops.matmul(crossed, self.kernel) + self.bias + crossed


def dcn(options: ModelOptions, num_cross_layers: int = 2) -> keras.Model:
    """A cross network and a perceptron side by side, on the concatenated embeddings.

    logit = wᵀ [x_L, MLP(x₀)] + b, where x₀ = [e₁, …, e_C] and x_L comes from L layers
    `VectorCross`. In DCN V2 their weights are matrices.

    Args:
        options: Columns and sizes.
        num_cross_layers: Number of cross layers, L.

    Example:
        >>> options = ModelOptions(num_ids=(5, 3), embedding_dim=4, hidden_units=(8,))
        >>> model = dcn(options, num_cross_layers=1)
        >>> model.output_shape, model.count_params()
        ((None, 1), 137)

    Reference:
        Wang, Fu, Fu, Wang (2017), *Deep & cross network for ad click predictions*, arXiv
        1708.05123.
    """
    ids = ids_input(options)
    embeddings = embed(ids, options.num_ids, options.embedding_dim, options)
    first = keras.layers.Flatten()(embeddings)
    crossed = first
    for _ in range(num_cross_layers):
        crossed = VectorCross(options.regularizer())(first, crossed)
    hidden = perceptron(first, options.hidden_units, options)
    joined = keras.layers.Concatenate()([crossed, hidden])
    return keras.Model(ids, output(joined, options), name="dcn")
