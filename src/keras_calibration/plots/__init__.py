"""Plots of calibration: reliability, and errors by field value."""

from calibration_records._display import STYLES
from keras_calibration.plots.field_display import FieldDisplay
from keras_calibration.plots.rates import bin_by_mass, group_rates
from keras_calibration.plots.reliability_display import ReliabilityDisplay

__all__ = ["STYLES", "FieldDisplay", "ReliabilityDisplay", "bin_by_mass", "group_rates"]
__dir__ = __all__.copy
