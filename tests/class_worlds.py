"""Rows of three classes, and a base model that is too sure and wrong by site."""

import keras
import numpy as np
import scipy.special

from symbols import symbols

# What the base model gets wrong at a site, a column a class.
OFFSETS = 1.5 * np.array([[1, 0, -1], [0, 0, 0], [-1, 0, 1]])


def base_model(ending="softmax"):
    """A "trained" model whose logits are its input; it has seen no site."""
    inputs = symbols(scores=(3,), site="int32")
    return keras.Model(inputs, keras.layers.Activation(ending)(inputs["scores"]))


def class_rows(num_rows=3000, scale=0.6, effect=0.0, seed=0):
    """Inputs and class numbers."""
    generator = np.random.default_rng(seed)
    scores = 2 * generator.normal(size=(num_rows, 3))
    site = generator.integers(0, 3, num_rows).astype("int32")
    rates = scipy.special.softmax(scale * scores + effect * OFFSETS[site], axis=1)
    labels = (rates.cumsum(axis=1) > generator.random((num_rows, 1))).argmax(axis=1)
    return {"scores": scores.astype("float32"), "site": site}, labels


def log_loss(labels, probabilities):
    """Mean log loss of class numbers, in nats."""
    chosen = np.asarray(probabilities, np.float64)[np.arange(len(labels)), labels]
    return -np.mean(np.log(chosen))
