"""Seeds for initialisation, order and dropout, each apart."""

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import keras


def set_seeds(initialization: int, order: int) -> dict[str, int]:
    """Sets what the weights begin with and the order of the data, separately.

    Call it before the model is built. Keras draws the seeds of initialisers, and of the generators
    of dropout and augmentation, from Python's generator when a layer is made: that one gets
    `initialization`. NumPy and the backend, which shuffle in `fit` and in `tf.data`, get `order`.
    Two pipelines with one order are compared with far less noise than with orders of their own.

    Layers with an integer seed of their own ignore both.

    Args:
        initialization: int from 0 on.
        order: int in [0, 2³²).

    Returns:
        What `SeedVariance` takes as `seeds`.

    Raises:
        ValueError: a seed is no int, or out of its range.

    Example:
        >>> set_seeds(initialization=7, order=0)
        {'initialization': 7, 'order': 0}
        >>> import keras
        >>> first = keras.layers.Dense(1)(keras.ops.ones((1, 3)))
        >>> _ = set_seeds(initialization=7, order=1)
        >>> bool(keras.ops.all(keras.layers.Dense(1)(keras.ops.ones((1, 3))) == first))
        True

    Reference:
        Bouthillier et al. (2021), arXiv 2103.03098, for the sources of variance taken apart.
    """
    # Imported when used: the rest of this room is read without Keras.
    import keras

    for name, seed in (("initialization", initialization), ("order", order)):
        _check_seed(name, seed)
    keras.utils.set_random_seed(order)
    random.seed(initialization)
    return {"initialization": initialization, "order": order}


def set_dropout_seed(model: "keras.Model", seed: int) -> dict[str, int]:
    """Sets the generators of dropout, and of all other layers that draw in training.

    Call it after the model is built. The generators get `seed`, `seed` + 1, … in the order of the
    layers, and begin anew.

    Args:
        model: a built model.
        seed: int in [0, 2³²).

    Returns:
        What `SeedVariance` takes as `seeds`, to be joined with that of `set_seeds`.

    Raises:
        ValueError: the seed is no int or out of its range; no layer of the model draws anything.

    Example:
        >>> import keras
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dropout(0.5)])
        >>> set_dropout_seed(model, 3)
        {'dropout': 3}
    """
    _check_seed("seed", seed)
    generators = list(_generators(model))
    if not generators:
        raise ValueError(
            f"Received the model {model.name!r}, of which no layer draws at random in training; "
            "expected one with dropout or the like; leave the seed out."
        )
    for number, generator in enumerate(generators):
        generator.state.assign([(seed + number) % 2**32, 0])
    return {"dropout": seed}


def _generators(model: "keras.Model") -> Iterator[Any]:
    import keras

    seen: set[int] = set()
    for layer in model._flatten_layers():
        for value in vars(layer).values():
            if isinstance(value, keras.random.SeedGenerator) and id(value) not in seen:
                seen.add(id(value))
                yield value


def _check_seed(name: str, seed: object) -> None:
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**32:
        raise ValueError(
            f"Received {name}={seed!r}; expected an int in [0, 2³²); derive seeds of other forms "
            "with numpy.random.SeedSequence(...).generate_state(1)."
        )
