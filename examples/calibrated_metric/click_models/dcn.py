"""DCN: a cross network beside a perceptron."""

import keras
import keras_rs

from click_models.embedded import ModelOptions, embed, ids_input, output, perceptron


def dcn(
    options: ModelOptions, num_cross_layers: int = 2, projection_dim: int | None = None
) -> keras.Model:
    """A cross network and a perceptron side by side, on the concatenated embeddings.

    x₀ = [e₁, …, e_C], x_{l+1} = x₀ ∘ (W_l x_l + b_l) + x_l, and logit = wᵀ [x_L, MLP(x₀)] + b. The
    weights W_l are full matrices as in DCN V2, or, with `projection_dim`, products of two low-rank
    ones. In the first DCN they had rank 1.

    Args:
        options: Columns and sizes.
        num_cross_layers: Number of cross layers, L.
        projection_dim: Rank of the weights of the cross layers; `None` for full matrices.

    Example:
        >>> options = ModelOptions(num_ids=(5, 3), embedding_dim=4, hidden_units=(8,))
        >>> model = dcn(options, num_cross_layers=1)
        >>> model.output_shape, model.count_params()
        ((None, 1), 193)

    Reference:
        Wang, Fu, Fu, Wang (2017), *Deep & cross network for ad click predictions*, arXiv
        1708.05123; Wang et al. (2021), *DCN V2*, arXiv 2008.13535, eq. 1 and 2.
    """
    ids = ids_input(options)
    embeddings = embed(ids, options.num_ids, options.embedding_dim, options)
    first = keras.layers.Flatten()(embeddings)
    crossed = first
    for _ in range(num_cross_layers):
        crossed = keras_rs.layers.FeatureCross(
            projection_dim, kernel_regularizer=options.regularizer()
        )(first, crossed)
    hidden = perceptron(first, options.hidden_units, options)
    both = keras.layers.Concatenate()([crossed, hidden])
    return keras.Model(ids, output(both, options), name="dcn")
