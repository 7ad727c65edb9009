"""Exports calibrated models for serving and refreshes exported models. TensorFlow only."""

from keras_calibration.export.export_litert import export_litert as export_litert
from keras_calibration.export.export_onnx import export_onnx as export_onnx
from keras_calibration.export.export_savedmodel import export_savedmodel as export_savedmodel
from keras_calibration.export.refresh_onnx import refresh_onnx as refresh_onnx
from keras_calibration.export.refresh_savedmodel import refresh_savedmodel as refresh_savedmodel
from keras_calibration.export.serving_spec import signature_input as signature_input
