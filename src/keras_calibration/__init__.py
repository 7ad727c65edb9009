"""Calibrated probabilities for Keras models.

Calibration (`calibrate`, `layers`, `models`), evaluation (`metrics`, `scoring`, `callbacks`,
`seeds`), serving (`export_savedmodel`, `refresh_savedmodel`, `monitor`).
"""

import sys as _sys
from pathlib import Path as _Path

# Keras loads classes that are registered, and no others: the package imports all of its own, which
# takes seconds. The command line imports what a command needs, which Keras never is.
if _Path(*_sys.argv[:1]).stem != "keras-calibration":
    from keras_calibration import callbacks as callbacks
    from keras_calibration import datasets as datasets
    from keras_calibration import layers as layers
    from keras_calibration import logs as logs
    from keras_calibration import metrics as metrics
    from keras_calibration import models as models
    from keras_calibration import plots as plots
    from keras_calibration import scoring as scoring
    from keras_calibration import seeds as seeds
    from keras_calibration.calibration import LabelDelay as LabelDelay
    from keras_calibration.calibration import calibrate as calibrate
    from keras_calibration.calibration import calibrate_scores as calibrate_scores
    from keras_calibration.calibration import fit_calibrator as fit_calibrator
    from keras_calibration.calibration import update_calibrator as update_calibrator
    from keras_calibration.export import export_litert as export_litert
    from keras_calibration.export import export_onnx as export_onnx
    from keras_calibration.export import export_savedmodel as export_savedmodel
    from keras_calibration.export import refresh_onnx as refresh_onnx
    from keras_calibration.export import refresh_savedmodel as refresh_savedmodel
    from keras_calibration.export import signature_input as signature_input
    from keras_calibration.models.fit_head import fit_head as fit_head
    from keras_calibration.models.head_inputs import base_logits as base_logits
    from keras_calibration.models.head_inputs import interval as interval
    from keras_calibration.monitoring import monitor as monitor

__version__ = "0.1.0"

__all__ = [
    "LabelDelay",
    "base_logits",
    "calibrate",
    "calibrate_scores",
    "callbacks",
    "datasets",
    "export_litert",
    "export_onnx",
    "export_savedmodel",
    "fit_calibrator",
    "fit_head",
    "interval",
    "layers",
    "logs",
    "metrics",
    "models",
    "monitor",
    "plots",
    "refresh_onnx",
    "refresh_savedmodel",
    "scoring",
    "seeds",
    "signature_input",
    "update_calibrator",
]


def __dir__() -> list[str]:
    """The public names. Python also binds every loaded submodule, which this leaves out."""
    return [*__all__, "__version__"]
