"""LSTM regression: stacked LSTM layers over a time series, and a linear output."""

import keras


def lstm(
    window: int,
    num_features: int,
    *,
    hidden_size: int = 64,
    num_layers: int = 2,
    dropout: float = 0.0,
    l2: float = 0.0,
) -> keras.Model:
    """An LSTM whose last hidden state gives the prediction: `y = wᵀ h_T + b`.

    The defaults are those of the LSTM of the Qlib library, which the paper uses.

    Args:
        window: Number T of time steps.
        num_features: Features of a time step.
        hidden_size: Units of each LSTM layer.
        num_layers: Number of LSTM layers; each but the last returns its whole sequence.
        dropout: Dropout rate between LSTM layers.
        l2: Weight of the L2 penalty on all weight matrices; biases are not penalised.

    Example:
        >>> model = lstm(10, 6, hidden_size=8, num_layers=1)
        >>> model.input_shape, model.output_shape, model.count_params()
        ((None, 10, 6), (None, 1), 489)

    Reference:
        Hochreiter, Schmidhuber (1997), *Long short-term memory*; Yang, Liu, Zhou, Bian, Liu (2020),
        *Qlib: An AI-oriented Quantitative Investment Platform*, arXiv 2009.11189.
    """
    if num_layers < 1:
        raise ValueError(f"Argument `num_layers` must be at least 1. Received: {num_layers}.")
    penalty = keras.regularizers.L2(l2) if l2 else None
    inputs = keras.Input((window, num_features))
    hidden = inputs
    for number in range(1, num_layers + 1):
        hidden = keras.layers.LSTM(
            hidden_size,
            return_sequences=number < num_layers,
            kernel_regularizer=penalty,
            recurrent_regularizer=penalty,
        )(hidden)
        if dropout and number < num_layers:
            hidden = keras.layers.Dropout(dropout)(hidden)
    prediction = keras.layers.Dense(1, kernel_regularizer=penalty)(hidden)
    return keras.Model(inputs, prediction, name="lstm")
