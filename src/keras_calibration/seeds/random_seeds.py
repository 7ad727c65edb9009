"""Separate seeds for initialization and data order."""

from __future__ import annotations

import random
from numbers import Integral
from typing import Any

import keras

from calibration_records._check import refused


def set_seeds(*, initialization: int, order: int) -> dict[str, int]:
    """Sets the seeds of the initial weights and of the data order separately.

    Call it before the model is built. `initialization` seeds Python's generator, from which Keras
    draws the seeds of initializers, dropout and augmentation. `order` seeds NumPy and the backend,
    which shuffle in `fit` and `tf.data`. A comparison of two pipelines has far less noise if they
    share the data order. Layers with an integer `seed` ignore both.

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
    initialization = plain_seed("initialization", initialization)
    order = plain_seed("order", order)
    # Keras seeds all generators at once: Python's, NumPy's and the backend's. Then replace only
    # Python's, from which Keras draws the seeds of layers.
    keras.utils.set_random_seed(order)
    random.seed(initialization)
    return {"initialization": initialization, "order": order}


def plain_seed(name: str, seed: Any) -> int:
    """A seed as a plain int, also one of NumPy; refuses other values."""
    if not isinstance(seed, Integral) or isinstance(seed, bool) or not 0 <= int(seed) < 2**32:
        raise refused(
            name,
            "an int in [0, 2³²)",
            seed,
            "Derive it by numpy.random.SeedSequence(...).generate_state(1)[0] from other values.",
        )
    return int(seed)
