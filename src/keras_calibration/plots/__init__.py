"""Plots of calibration: reliability, errors by field value, and the fitted curve."""

from keras_calibration.plots.calibration_map_display import CalibrationMapDisplay
from keras_calibration.plots.field_display import FieldDisplay
from keras_calibration.plots.rates import Rates, bin_by_mass, group_rates, wilson_interval
from keras_calibration.plots.reliability_display import ReliabilityDisplay
from keras_calibration.plots.style import STYLES, CurveStyle

__all__ = [
    "STYLES",
    "CalibrationMapDisplay",
    "CurveStyle",
    "FieldDisplay",
    "Rates",
    "ReliabilityDisplay",
    "bin_by_mass",
    "group_rates",
    "wilson_interval",
]
