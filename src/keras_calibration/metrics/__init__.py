"""Keras metrics: calibrated losses, which vary less between seeds, and calibration errors."""

from keras_calibration.metrics.calibrated_categorical_log_loss import CalibratedCategoricalLogLoss
from keras_calibration.metrics.calibrated_log_loss import CalibratedLogLoss
from keras_calibration.metrics.calibrated_quadratic_loss import CalibratedQuadraticLoss
from keras_calibration.metrics.calibration_ratio import CalibrationRatio
from keras_calibration.metrics.expected_calibration_error import ExpectedCalibrationError
from keras_calibration.metrics.field_ece import FieldECE
from keras_calibration.metrics.field_rce import FieldRCE
from keras_calibration.metrics.log_loss import LogLoss
from keras_calibration.metrics.logit_auc import LogitAUC
from keras_calibration.metrics.normalized_entropy import NormalizedEntropy

__all__ = [
    "CalibratedCategoricalLogLoss",
    "CalibratedLogLoss",
    "CalibratedQuadraticLoss",
    "CalibrationRatio",
    "ExpectedCalibrationError",
    "FieldECE",
    "FieldRCE",
    "LogLoss",
    "LogitAUC",
    "NormalizedEntropy",
]
__dir__ = __all__.copy
