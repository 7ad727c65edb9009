"""Keras callbacks that record runs in a ledger and reduce the noise of their metrics."""

from keras_calibration.callbacks.logit_average import LogitAverage as LogitAverage
from keras_calibration.callbacks.seed_variance import SeedVariance as SeedVariance
