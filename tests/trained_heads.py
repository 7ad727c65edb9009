"""Heads that Keras' `fit` trains by gradient, as the guide "A calibration head" says."""

import keras

import keras_calibration as kc


def train_head(model, x, y, *, learning_rate=0.01, **arguments):
    """Adapts, trains and finalizes the head of a calibrated model; returns the history."""
    head = model.head
    names = x if head.feature_names is None else head.feature_names
    head.adapt(kc.base_logits(model, x), y, {name: x[name] for name in names})
    model.compile(keras.optimizers.Adam(learning_rate), "binary_crossentropy")
    history = model.fit(x, y, verbose=0, **arguments).history
    head.finalize()
    return history
