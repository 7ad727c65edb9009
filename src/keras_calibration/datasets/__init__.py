"""Tables for examples and tests: `Table`, and a generated click log with known probabilities."""

from keras_calibration.datasets.click_log import generate_click_log
from keras_calibration.datasets.table import Table

__all__ = ["Table", "generate_click_log"]
