"""`calibrate`: compares calibration methods on a development set, and applies the best mean."""

from keras_calibration.calibration.calibrate import calibrate
from keras_calibration.calibration.calibrate_scores import calibrate_scores
from keras_calibration.calibration.calibration_report import CalibrationReport
from keras_calibration.calibration.log_fits import fit_calibrator, update_calibrator

__all__ = [
    "CalibrationReport",
    "calibrate",
    "calibrate_scores",
    "fit_calibrator",
    "update_calibrator",
]
__dir__ = __all__.copy
