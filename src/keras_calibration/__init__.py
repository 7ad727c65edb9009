"""Calibrated probabilities for Keras models.

Calibration (`calibrate`, `layers`, `models`), evaluation (`metrics`, `scoring`, `callbacks`,
`seeds`), serving (`export_savedmodel`, `refresh_savedmodel`, `monitor`).
"""

from calibration_records import __version__ as __version__
from calibration_records import monitor

# Keras finds the classes of a saved model only if they are registered: all are imported here.
from keras_calibration import (
    callbacks,
    datasets,
    layers,
    logs,
    metrics,
    models,
    plots,
    scoring,
    seeds,
)
from keras_calibration import statistics as statistics
from keras_calibration.calibration import (
    calibrate,
    calibrate_scores,
    fit_calibrator,
    update_calibrator,
)
from keras_calibration.export import (
    export_onnx,
    export_savedmodel,
    refresh_savedmodel,
    signature_input,
)
from keras_calibration.models.fit_head import fit_head
from keras_calibration.models.head_inputs import base_logits, interval

__all__ = [
    "base_logits",
    "calibrate",
    "calibrate_scores",
    "callbacks",
    "datasets",
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
    "refresh_savedmodel",
    "scoring",
    "seeds",
    "signature_input",
    "update_calibrator",
]


def __dir__() -> list[str]:
    """The public names. Python also binds every loaded submodule, which this leaves out."""
    return [*__all__, "__version__"]
