"""Metrics of arrays and files, chunk by chunk: the data may be larger than memory."""

from keras_calibration.scoring.functions import calibrated_log_loss, field_ece, field_rce
from keras_calibration.scoring.log_metrics import log_queries
from keras_calibration.scoring.multicalibration_error import multicalibration_error
from keras_calibration.scoring.rolling import rolling_quadratic_loss
from keras_calibration.scoring.score import score
from keras_calibration.scoring.score_log import score_by_period

__all__ = [
    "calibrated_log_loss",
    "field_ece",
    "field_rce",
    "log_queries",
    "multicalibration_error",
    "rolling_quadratic_loss",
    "score",
    "score_by_period",
]
__dir__ = __all__.copy
