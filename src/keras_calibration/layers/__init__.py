"""Keras layers that map uncalibrated logits to calibrated logits: heads, and their parts."""

from keras_calibration.layers.beta_calibration import BetaCalibration
from keras_calibration.layers.bias_correction import BiasCorrection
from keras_calibration.layers.blended_head import BlendedHead
from keras_calibration.layers.boosted_trees import BoostedTrees
from keras_calibration.layers.field_bias import FieldBias
from keras_calibration.layers.field_ids import Reads
from keras_calibration.layers.field_ilps import FieldILPS
from keras_calibration.layers.field_network import FieldNetwork
from keras_calibration.layers.fit import Fit
from keras_calibration.layers.fit_settings import FitSettings
from keras_calibration.layers.head import Head
from keras_calibration.layers.ilps import ILPS
from keras_calibration.layers.isotonic_regression import IsotonicRegression
from keras_calibration.layers.neural_calibration import NeuralCalibration
from keras_calibration.layers.platt_scaling import PlattScaling
from keras_calibration.layers.sampling_correction import SamplingCorrection
from keras_calibration.layers.temperature_scaling import TemperatureScaling
from keras_calibration.layers.vector_scaling import VectorScaling

__all__ = [
    "ILPS",
    "BetaCalibration",
    "BiasCorrection",
    "BlendedHead",
    "BoostedTrees",
    "FieldBias",
    "FieldILPS",
    "FieldNetwork",
    "Fit",
    "FitSettings",
    "Head",
    "IsotonicRegression",
    "NeuralCalibration",
    "PlattScaling",
    "Reads",
    "SamplingCorrection",
    "TemperatureScaling",
    "VectorScaling",
]
__dir__ = __all__.copy
