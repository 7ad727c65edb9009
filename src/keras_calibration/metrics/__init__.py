"""Keras metrics: calibrated losses that vary less between seeds, and field errors."""

from keras_calibration.metrics.additive_metric import AdditiveMetric
from keras_calibration.metrics.calibrated_log_loss import CalibratedLogLoss
from keras_calibration.metrics.cross_fitted_metric import CrossFittedMetric
from keras_calibration.metrics.field_ece import FieldECE
from keras_calibration.metrics.field_error import FieldError
from keras_calibration.metrics.field_rce import FieldRCE

__all__ = [
    "AdditiveMetric",
    "CalibratedLogLoss",
    "CrossFittedMetric",
    "FieldECE",
    "FieldError",
    "FieldRCE",
]
