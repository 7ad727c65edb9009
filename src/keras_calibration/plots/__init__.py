"""Plots of calibration: reliability, errors by field value, and the fitted curve."""

from calibration_records._display import STYLES
from keras_calibration.plots.calibration_map_display import CalibrationMapDisplay
from keras_calibration.plots.field_display import FieldDisplay
from keras_calibration.plots.rates import bin_by_mass, group_rates
from keras_calibration.plots.reliability_display import ReliabilityDisplay

__all__ = [
    "STYLES",
    "CalibrationMapDisplay",
    "FieldDisplay",
    "ReliabilityDisplay",
    "bin_by_mass",
    "group_rates",
]
__dir__ = __all__.copy
