"""Keras layers that calibrate: from uncalibrated to calibrated logits."""

from keras_calibration.layers.calibrator import Calibrator
from keras_calibration.layers.field_network import FieldNetwork
from keras_calibration.layers.ilps import ILPS
from keras_calibration.layers.neural_calibration import NeuralCalibration

__all__ = ["ILPS", "Calibrator", "FieldNetwork", "NeuralCalibration"]
