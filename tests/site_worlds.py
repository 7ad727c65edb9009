"""Rows whose rate depends on a site that the logit does not know, and a model with a head."""

import keras
import numpy as np
from scipy.special import expit

from symbols import symbols


def world(num_rows, offsets, seed=0):
    """Inputs and labels; each site has an offset to the logit."""
    generator = np.random.default_rng(seed)
    site = generator.integers(0, len(offsets), num_rows).astype("int32")
    score = generator.normal(-1, 1, num_rows).astype("float32")
    chance = expit(score + offsets[site])
    return {"score": score, "site": site}, (generator.random(num_rows) < chance).astype("float32")


def model_with(head, sites=lambda ids: ids):
    """A model of the score with a head, which gets a function of the sites."""
    inputs = symbols(score=(), site="int32")
    logit = keras.layers.Reshape((1,))(inputs["score"])
    calibrated = head(logit, {"site": sites(inputs["site"])})
    return keras.Model(inputs, keras.layers.Activation("sigmoid")(calibrated))


def mean_loss(labels, probabilities):
    """The mean log loss."""
    inside = np.clip(np.asarray(probabilities, float).reshape(-1), 1e-7, 1 - 1e-7)
    return -np.mean(labels * np.log(inside) + (1 - labels) * np.log1p(-inside))
