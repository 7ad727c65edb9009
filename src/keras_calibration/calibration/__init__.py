"""One call from a trained model to a calibrated one, with a report on every way tried."""

from keras_calibration.calibration.calibrate import calibrate
from keras_calibration.calibration.calibration_report import CalibrationReport, CandidateScore

__all__ = ["CalibrationReport", "CandidateScore", "calibrate"]
