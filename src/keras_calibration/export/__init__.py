"""Exports calibrated models for serving and refreshes exported models. TensorFlow only."""

from keras_calibration.export.litert import export_litert
from keras_calibration.export.onnx.export import export_onnx
from keras_calibration.export.onnx.refresh import refresh_onnx
from keras_calibration.export.savedmodel.export import export_savedmodel
from keras_calibration.export.savedmodel.refresh import refresh_savedmodel
from keras_calibration.export.spec import signature_input

__all__ = [
    "export_litert",
    "export_onnx",
    "export_savedmodel",
    "refresh_onnx",
    "refresh_savedmodel",
    "signature_input",
]
__dir__ = __all__.copy
