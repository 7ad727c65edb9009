"""Separate seeds for initialization, data order and dropout."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING

from keras_calibration._compat import flatten_layers

if TYPE_CHECKING:
    import keras


def set_seeds(*, initialization: int, order: int) -> dict[str, int]:
    """Sets the seeds of the initial weights and of the data order separately.

    Call it before the model is built. `initialization` seeds Python's generator, from which Keras
    draws the seeds of initializers, dropout and augmentation. `order` seeds NumPy and the backend,
    which shuffle in `fit` and `tf.data`. A comparison of two pipelines has far less noise if they
    share the data order. Layers with an integer seed of their own ignore both.

    Args:
        initialization: Int in [0, 2³²).
        order: Int in [0, 2³²).

    Returns:
        The argument `seeds` of `SeedVariance`.

    Raises:
        ValueError: A seed is not an int in that range.

    Example:
        >>> set_seeds(initialization=7, order=0)
        {'initialization': 7, 'order': 0}
        >>> import keras
        >>> first = keras.layers.Dense(1)(keras.ops.ones((1, 3)))
        >>> _ = set_seeds(initialization=7, order=1)
        >>> bool(keras.ops.all(keras.layers.Dense(1)(keras.ops.ones((1, 3))) == first))
        True

    Reference:
        Bouthillier et al. (2021), arXiv 2103.03098, on the sources of variance.
    """
    # Imported late: the rest of this room works without Keras.
    import keras

    for name, seed in (("initialization", initialization), ("order", order)):
        check_seed(name, seed)
    keras.utils.set_random_seed(order)
    random.seed(initialization)
    return {"initialization": initialization, "order": order}


def set_dropout_seed(model: keras.Model, *, seed: int) -> dict[str, int]:
    """Sets the seed of dropout and of all other layers that are random in training.

    Call it after the model is built. The layers' generators restart with `seed`, `seed` + 1, ….

    Args:
        model: A built model.
        seed: Int in [0, 2³²).

    Returns:
        An entry for the argument `seeds` of `SeedVariance`, to be merged with that of `set_seeds`.

    Raises:
        ValueError: The seed is not an int in that range, or no layer of the model is random.

    Example:
        >>> import keras
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dropout(0.5)])
        >>> set_dropout_seed(model, seed=3)
        {'dropout': 3}
    """
    check_seed("seed", seed)
    generators = list(_generators(model))
    if not generators:
        raise ValueError(
            "Argument `model` must have a layer that is random in training, such as dropout. "
            f"Received: model={model.name!r}."
        )
    for number, generator in enumerate(generators):
        generator.state.assign([(seed + number) % 2**32, 0])
    return {"dropout": seed}


def _generators(model: keras.Model) -> Iterator[keras.random.SeedGenerator]:
    import keras

    seen: set[int] = set()
    for layer in flatten_layers(model):
        for value in vars(layer).values():
            if isinstance(value, keras.random.SeedGenerator) and id(value) not in seen:
                seen.add(id(value))
                yield value


def check_seed(name: str, seed: object) -> None:
    """Refuses what is no seed."""
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**32:
        raise ValueError(
            f"Argument `{name}` must be an int in [0, 2³²). Received: {name}={seed!r}. Derive it "
            "from other values with numpy.random.SeedSequence(...).generate_state(1)."
        )
