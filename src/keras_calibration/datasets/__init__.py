"""Binary tables to calibrate on: a generated click log, and folders of real data."""

from keras_calibration.datasets.click_log import generate_click_log
from keras_calibration.datasets.data_folder import read_data_folder
from keras_calibration.datasets.table import Table

__all__ = ["Table", "generate_click_log", "read_data_folder"]
