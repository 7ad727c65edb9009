"""Keras callbacks that record runs in a ledger and reduce the noise of their metrics."""

from keras_calibration.callbacks.logit_average import LogitAverage
from keras_calibration.callbacks.seed_variance import SeedVariance

__all__ = [
    "LogitAverage",
    "SeedVariance",
]
__dir__ = __all__.copy
