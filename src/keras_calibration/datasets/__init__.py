"""Binary tables to try things on: `Table`, and a generated click log of known truth."""

from keras_calibration.datasets.click_log import generate_click_log
from keras_calibration.datasets.table import Table

__all__ = ["Table", "generate_click_log"]
