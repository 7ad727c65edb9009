"""TensorFlow Probability's distributions, imported when they are used."""

import warnings
from typing import Any


def distributions() -> Any:
    """The module `tensorflow_probability.distributions`.

    Its import takes half a second, and asks `distutils` for version numbers, which warns.

    Example:
        >>> round(float(distributions().Normal(0.0, 1.0).cdf(0.0)), 4)
        0.5
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import tensorflow_probability as tfp

        # It is imported by the first look into it, which must be in here.
        dir(tfp.distributions)
        return tfp.distributions
