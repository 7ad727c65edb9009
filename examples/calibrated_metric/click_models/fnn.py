"""FNN: a linear part and a perceptron on the embeddings of all columns."""

import keras

from click_models.embedded import ModelOptions, embed, ids_input, linear, output, perceptron


def fnn(options: ModelOptions) -> keras.Model:
    """A perceptron on the concatenated embeddings, plus a linear part.

    logit = Σ_c w_c + wᵀ MLP([e₁, …, e_C]) + b, with a weight w_c and an embedding e_c for the id of
    each column, as in DeepCTR. Zhang et al. initialise the embeddings by a factorization machine;
    here and in DeepCTR, all weights are trained at once.

    Args:
        options: Columns and sizes.

    Example:
        >>> model = fnn(ModelOptions(num_ids=(5, 3), embedding_dim=4, hidden_units=(8,)))
        >>> model.output_shape, model.count_params()
        ((None, 1), 121)

    Reference:
        Zhang, Du, Wang (2016), *Deep learning over multi-field categorical data*, arXiv 1601.02376.
    """
    ids = ids_input(options)
    embeddings = embed(ids, options.num_ids, options.embedding_dim, options)
    hidden = perceptron(keras.layers.Flatten()(embeddings), options.hidden_units, options)
    logits = keras.layers.Add()([linear(ids, options), output(hidden, options)])
    return keras.Model(ids, logits, name="fnn")
