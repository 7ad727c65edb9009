"""Keras models: a base model with a calibration head, and Functional models with field metrics."""

from keras_calibration.models.calibrated_model import CalibratedModel
from keras_calibration.models.field_metrics_model import FieldMetricsModel

__all__ = ["CalibratedModel", "FieldMetricsModel"]
__dir__ = __all__.copy
