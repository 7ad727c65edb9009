"""TensorFlow Probability's distributions, imported when they are used."""

import warnings
from types import ModuleType


def distributions() -> ModuleType:
    """The module `tensorflow_probability.distributions`, without the warnings of its import."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import tensorflow_probability as tfp

        # The module is lazy: its first use imports it, and must be inside this block.
        dir(tfp.distributions)
        return tfp.distributions
