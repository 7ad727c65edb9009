"""Generators of random numbers that `keras.utils.set_random_seed` makes repeatable."""

import random

import numpy as np

_NUM_SEEDS = 2**31 - 1


def generator_of(seed: int | None) -> np.random.Generator:
    """A generator of NumPy; None draws its seed where Keras' layers draw theirs.

    `numpy.random.default_rng(None)` would draw from the operating system, differently in each run.

    Example:
        >>> random.seed(0)
        >>> first = generator_of(None).random()
        >>> random.seed(0)
        >>> bool(first == generator_of(None).random())
        True
    """
    return np.random.default_rng(random.randrange(_NUM_SEEDS) if seed is None else seed)
