"""DeepFM: a factorization machine and a perceptron on the same embeddings."""

import keras

from click_models.embedded import ModelOptions, Tensor, embed, ids_input, linear, output, perceptron


class PairwiseProducts(keras.layers.Layer):
    """The second-order part of a factorization machine.

    Σ_{i<j} ⟨eᵢ, eⱼ⟩ = ½ Σ_d [(Σᵢ e_{id})² − Σᵢ e_{id}²], where eᵢ is the embedding of column i. The
    right-hand side takes time linear in the number of columns.

    Example:
        >>> import numpy as np
        >>> embeddings = np.array([[[1.0, 0.0], [2.0, 1.0], [0.0, 3.0]]])
        >>> float(PairwiseProducts()(embeddings)[0, 0])  # 1·2 + 0 + 1·3
        5.0

    Reference:
        Rendle (2010), *Factorization machines*, lemma 3.1; Guo et al. (2017), eq. 2.
    """

    def call(self, embeddings: Tensor) -> Tensor:
        """Embeddings `(batch, num_columns, size)` → logits `(batch, 1)`."""
        square_of_sum = keras.ops.square(keras.ops.sum(embeddings, axis=1))
        sum_of_squares = keras.ops.sum(keras.ops.square(embeddings), axis=1)
        return 0.5 * keras.ops.sum(square_of_sum - sum_of_squares, axis=-1, keepdims=True)


def deepfm(options: ModelOptions) -> keras.Model:
    """A factorization machine plus a perceptron, which share their embeddings.

    logit = Σ_c w_c + Σ_{i<j} ⟨eᵢ, eⱼ⟩ + wᵀ MLP([e₁, …, e_C]) + b, with a weight w_c and an
    embedding e_c for the id of each column.

    Args:
        options: Columns and sizes.

    Example:
        >>> model = deepfm(ModelOptions(num_ids=(5, 3), embedding_dim=4, hidden_units=(8,)))
        >>> model.output_shape, model.count_params()
        ((None, 1), 121)

    Reference:
        Guo, Tang, Ye, Li, He (2017), *DeepFM: A factorization-machine based neural network for CTR
        prediction*, arXiv 1703.04247, eq. 1 to 4.
    """
    ids = ids_input(options)
    embeddings = embed(ids, options.num_ids, options.embedding_dim, options)
    hidden = perceptron(keras.layers.Flatten()(embeddings), options.hidden_units, options)
    terms = [linear(ids, options), PairwiseProducts()(embeddings), output(hidden, options)]
    return keras.Model(ids, keras.layers.Add()(terms), name="deepfm")
