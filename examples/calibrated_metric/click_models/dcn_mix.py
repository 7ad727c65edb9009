"""DCN-Mix: a cross network with mixtures of low-rank weights, beside a perceptron."""

import math
from collections.abc import Sequence
from typing import Any

import keras

from click_models.embedded import ModelOptions, Tensor, embed, ids_input, output, perceptron


class LowRankCrossMixture(keras.layers.Layer):
    """A cross layer whose weights are a mixture of low-rank experts.

    x_{l+1} = Σᵢ Gᵢ(x_l) Eᵢ(x_l) + x_l, with the experts

    Eᵢ(x) = x₀ ∘ (Uᵢ tanh(Cᵢ tanh(Vᵢᵀ x)) + b)

    and the gates G(x) = softmax(x A). Vᵢ and Uᵢ have shape `(num_features, rank)`, and Cᵢ
    `(rank, rank)`. The experts share the bias b.

    Args:
        num_experts: Number of experts.
        rank: Rank of each expert.
        kernel_regularizer: Regularizer of U, C, V and A, or `None`.
        **kwargs: `name` and other arguments of `keras.layers.Layer`.

    Example:
        >>> import numpy as np
        >>> x = np.ones((4, 10))
        >>> tuple(LowRankCrossMixture(num_experts=3, rank=2)(x, x).shape)
        (4, 10)

    Reference:
        Wang et al. (2021), *DCN V2: Improved deep & cross network and practical lessons for
        web-scale learning to rank systems*, arXiv 2008.13535, eq. 3 and 4.
    """

    def __init__(
        self,
        num_experts: int,
        rank: int,
        kernel_regularizer: keras.regularizers.Regularizer | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_experts = num_experts
        self.rank = rank
        self.kernel_regularizer = kernel_regularizer

    def build(self, first_shape: Sequence[int], crossed_shape: Sequence[int]) -> None:
        """Creates the weights of all experts, each kind in one variable."""
        num_features, experts, rank = first_shape[-1], self.num_experts, self.rank
        self.down = self._kernel("down", (experts, num_features, rank))
        self.inner = self._kernel("inner", (experts, rank, rank))
        self.up = self._kernel("up", (experts, rank, num_features))
        self.gate = self._kernel("gate", (num_features, experts))
        self.bias = self.add_weight(shape=(num_features,), initializer="zeros", name="bias")

    def call(self, first: Tensor, crossed: Tensor) -> Tensor:
        """x₀ and x_l, both `(batch, num_features)` → x_{l+1}."""
        ops = keras.ops
        code = ops.tanh(ops.einsum("bf,efr->ber", crossed, self.down))
        code = ops.tanh(ops.einsum("ber,ers->bes", code, self.inner))
        gates = ops.softmax(ops.matmul(crossed, self.gate))
        # The gates add up to 1, so the bias goes in once.
        mixed = ops.einsum("bes,esf->bf", gates[:, :, None] * code, self.up) + self.bias
        return first * mixed + crossed

    def _kernel(self, name: str, shape: tuple[int, ...]) -> keras.Variable:
        limit = math.sqrt(6 / (shape[-2] + shape[-1]))
        return self.add_weight(
            shape=shape,
            # Glorot's spread for the matrix of one expert, whatever their number.
            initializer=keras.initializers.RandomUniform(-limit, limit),
            regularizer=self.kernel_regularizer,
            name=name,
        )


def dcn_mix(
    options: ModelOptions, num_cross_layers: int = 2, rank: int = 8, num_experts: int = 2
) -> keras.Model:
    """A mixture cross network and a perceptron side by side, on the concatenated embeddings.

    As `dcn`, with `LowRankCrossMixture` as cross layers.

    Args:
        options: Columns and sizes.
        num_cross_layers: Number of cross layers.
        rank: Rank of each expert.
        num_experts: Number of experts of each cross layer.

    Example:
        >>> options = ModelOptions(num_ids=(5, 3), embedding_dim=4, hidden_units=(8,))
        >>> model = dcn_mix(options, num_cross_layers=1, rank=2)
        >>> model.output_shape, model.count_params()
        ((None, 1), 217)

    Reference:
        Wang et al. (2021), arXiv 2008.13535.
    """
    ids = ids_input(options)
    embeddings = embed(ids, options.num_ids, options.embedding_dim, options)
    first = keras.layers.Flatten()(embeddings)
    crossed = first
    for _ in range(num_cross_layers):
        crossed = LowRankCrossMixture(num_experts, rank, options.regularizer())(first, crossed)
    hidden = perceptron(first, options.hidden_units, options)
    joined = keras.layers.Concatenate()([crossed, hidden])
    return keras.Model(ids, output(joined, options), name="dcn_mix")
