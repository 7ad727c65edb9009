"""Exports calibrated models for serving and refreshes exported models. TensorFlow only."""

from keras_calibration.export.onnx.export import export_onnx
from keras_calibration.export.savedmodel.export import export_savedmodel
from keras_calibration.export.savedmodel.refresh import refresh_savedmodel
from keras_calibration.export.spec import signature_input

__all__ = ["export_onnx", "export_savedmodel", "refresh_savedmodel", "signature_input"]
__dir__ = __all__.copy
