"""FNN: embeddings of all columns, and a perceptron."""

import keras

from click_models.embedded import ModelOptions, embed, ids_input, output, perceptron


def fnn(options: ModelOptions) -> keras.Model:
    """A perceptron on the concatenated embeddings.

    logit = wᵀ MLP([e₁, …, e_C]) + b, with the embedding e_c of column c. Unlike in the paper, the
    embeddings are not initialised by a factorization machine: all weights are trained at once.

    Args:
        options: Columns and sizes.

    Example:
        >>> model = fnn(ModelOptions(num_ids=(5, 3), embedding_dim=4, hidden_units=(8,)))
        >>> model.output_shape, model.count_params()
        ((None, 1), 113)

    Reference:
        Zhang, Du, Wang (2016), *Deep learning over multi-field categorical data*, arXiv 1601.02376.
    """
    ids = ids_input(options)
    embeddings = embed(ids, options.num_ids, options.embedding_dim, options)
    hidden = perceptron(keras.layers.Flatten()(embeddings), options.hidden_units, options)
    return keras.Model(ids, output(hidden, options), name="fnn")
