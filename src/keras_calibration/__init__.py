"""Calibrated probabilities for Keras models.

Calibration (`calibrate`, `layers`, `models`), evaluation (`metrics`, `scoring`, `callbacks`,
`seeds`), serving (`export_savedmodel`, `refresh_savedmodel`, `monitor`).
"""

import sys
from pathlib import Path

# Importing the package registers its classes with Keras, which takes seconds. The command line
# imports what a command needs, and most commands need no Keras.
if Path(*sys.argv[:1]).stem != "keras-calibration":
    from keras_calibration import callbacks as callbacks
    from keras_calibration import datasets as datasets
    from keras_calibration import layers as layers
    from keras_calibration import metrics as metrics
    from keras_calibration import models as models
    from keras_calibration import ops as ops
    from keras_calibration import plots as plots
    from keras_calibration import scoring as scoring
    from keras_calibration import seeds as seeds
    from keras_calibration.calibration import calibrate as calibrate
    from keras_calibration.export import export_litert as export_litert
    from keras_calibration.export import export_onnx as export_onnx
    from keras_calibration.export import export_savedmodel as export_savedmodel
    from keras_calibration.export import refresh_savedmodel as refresh_savedmodel
    from keras_calibration.monitoring import monitor as monitor

__version__ = "0.1.0.dev0"
