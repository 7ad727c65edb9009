"""Tables for examples and tests: `Table`, and a generated click log with known probabilities."""

from keras_calibration.datasets.click_log import generate_click_log

__all__ = ["generate_click_log"]
__dir__ = __all__.copy
