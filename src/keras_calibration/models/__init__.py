"""Keras models: a base model with a calibration head, and Functional models with field metrics."""

from keras_calibration.models.base_logits import BaseLogits
from keras_calibration.models.calibrated_model import CalibratedModel
from keras_calibration.models.field_metrics_model import FieldMetricsModel
from keras_calibration.models.model_fit_summary import ModelFitSummary

__all__ = ["BaseLogits", "CalibratedModel", "FieldMetricsModel", "ModelFitSummary"]
