"""What the stories are about: rows of known truth, kinds of base models, forms of data."""

import dataclasses

import keras
import numpy as np

from batches import Batches

SITES = np.array(["news", "café", "shop", "game"])
# The base models know the price and the place, are 1.5 too high, and know nothing of the site.
_BASE_BIAS, _SLOPE = 0.7, 1.2
_SITE_EFFECT = np.array([-1.0, 0.0, 0.5, 1.0])


@dataclasses.dataclass(frozen=True)
class World:
    """Rows with known probabilities: numbers of sites, and the base models' feature."""

    site: np.ndarray
    price: np.ndarray
    labels: np.ndarray
    probabilities: np.ndarray

    @classmethod
    def draw(cls, num_rows, seed):
        """Rows of `num_rows` impressions."""
        generator = np.random.default_rng(seed)
        site = generator.integers(0, len(SITES), num_rows)
        price = generator.normal(size=num_rows).astype("float32")
        logits = _SLOPE * price + _BASE_BIAS - 1.5 + _SITE_EFFECT[site]
        probabilities = 1 / (1 + np.exp(-logits))
        labels = (generator.random(num_rows) < probabilities).astype("int64")
        return cls(site, price, labels, probabilities)


def _weights(name="output", activation="sigmoid", **kwargs):
    return keras.layers.Dense(
        1,
        activation=activation,
        kernel_initializer=keras.initializers.Constant(_SLOPE),
        bias_initializer=keras.initializers.Constant(_BASE_BIAS),
        name=name,
        **kwargs,
    )


def _price_and_site(site_dtype="int32"):
    return {
        "price": keras.Input((1,), name="price"),
        "site": keras.Input((), dtype=site_dtype, name="site"),
    }


def sequential():
    """A Sequential model that ends in a sigmoid."""
    return keras.Sequential([keras.Input((1,)), _weights()])


def functional():
    """A Functional model on named inputs."""
    inputs = _price_and_site()
    return keras.Model(inputs, _weights()(inputs["price"]))


def functional_of_strings():
    """A Functional model whose site is a string, which it looks up and ignores."""
    inputs = _price_and_site("string")
    ids = keras.layers.StringLookup(vocabulary=list(SITES))(inputs["site"])
    nothing = keras.layers.Embedding(5, 1, embeddings_initializer="zeros")(ids)
    return keras.Model(inputs, _weights()(inputs["price"] + nothing))


class Subclassed(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = _weights(activation=None)

    def call(self, price):
        return self.dense(price)


def wrapped_subclass():
    """A subclassed model of logits, wrapped as the message about it says."""
    keras.saving.register_keras_serializable(package="stories")(Subclassed)
    inputs = _price_and_site()
    return keras.Model(inputs, Subclassed()(inputs["price"]))


def bfloat16():
    """A base model that computes in bfloat16, with a hidden layer."""
    inputs = _price_and_site()
    hidden = keras.layers.Dense(
        8, kernel_initializer=keras.initializers.Constant(1 / 8), dtype="mixed_bfloat16"
    )(inputs["price"])
    return keras.Model(inputs, _weights(dtype="mixed_bfloat16")(hidden))


def named_with_spaces():
    """A base model whose input names have spaces and letters beyond ASCII."""
    inputs = {
        "price €": keras.Input((1,), name="price €"),
        "site id": keras.Input((), dtype="int32", name="site id"),
    }
    return keras.Model(inputs, _weights()(inputs["price €"]))


def columns(world):
    """The rows as arrays by name, prices as a column."""
    return {"price": world.price[:, None], "site": world.site.astype("int32")}


def flat_columns(world):
    """Arrays by name, all of shape (n,), whole numbers in 64 bits, prices in float64."""
    return {"price": world.price.astype("float64"), "site": world.site}


def price_alone(world):
    """The one feature as an array."""
    return world.price[:, None]


def frame(world):
    """A pandas DataFrame with strings."""
    import pandas as pd

    return pd.DataFrame({"site": SITES[world.site], "price": world.price})


def spaced(world):
    """Arrays under names with spaces."""
    return {"price €": world.price[:, None], "site id": world.site.astype("int32")}


def _dataset(x, y):
    import tensorflow as tf

    return {"x": tf.data.Dataset.from_tensor_slices((x, y)).batch(500)}


# What `fit` is given for inputs and labels.
FORMS = {
    "arrays": lambda x, y: {"x": x, "y": y},
    "labels of shape (n, 1)": lambda x, y: {"x": x, "y": y[:, None].astype("float32")},
    "tf.data": _dataset,
    "PyDataset": lambda x, y: {"x": Batches(x, y, size=500)},
    "weights": lambda x, y: {"x": x, "y": y, "sample_weight": np.ones(len(y))},
}
