"""`calibrate`: compares calibration methods on a development set and applies the best one."""

from keras_calibration.calibration.calibrate import calibrate
from keras_calibration.calibration.calibrate_scores import calibrate_scores
from keras_calibration.calibration.calibration_report import CalibrationReport, CandidateScore
from keras_calibration.calibration.log_fits import (
    calibrator_queries,
    fit_calibrator,
    update_calibrator,
)

__all__ = [
    "CalibrationReport",
    "CandidateScore",
    "calibrate",
    "calibrate_scores",
    "calibrator_queries",
    "fit_calibrator",
    "update_calibrator",
]
