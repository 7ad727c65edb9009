"""A Keras callback that records runs in a ledger and summarizes their metrics."""

from keras_calibration.callbacks.seed_variance import SeedVariance

__all__ = ["SeedVariance"]
__dir__ = __all__.copy
