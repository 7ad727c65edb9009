"""export_litert: a calibrated model as one LiteRT file, checked in its interpreter."""

import os
import warnings
from pathlib import Path
from typing import Any

from keras_calibration.export.runtime_file import Rows, export_file
from keras_calibration.models.calibrated_model import CalibratedModel


def export_litert(model: CalibratedModel, path: str | os.PathLike[str], sample: Any = None) -> Path:
    """Writes a calibrated model of numeric inputs as a LiteRT file, for phones and small devices.

    Its one signature, `serving_default`, takes features under the names of the SavedModel's, and
    gives `probability`, `uncalibrated_probability` and `logit`, float32 (batch, 1), any number of
    rows. Only built-in operations are used, so that every interpreter runs it. The file is written
    to a temporary folder, run in the interpreter that comes with TensorFlow on sample rows,
    compared with the Keras model, and only then put at `path`.

    Args:
        model: The calibrated model. Strings and look-up layers have no built-in operations: such
            models are refused.
        path: The file to write, `ctr.tflite` for example; it must not exist.
        sample: Input rows to compare on, as the model takes them; by default random ones.

    Returns:
        The path.

    Raises:
        ValueError: If the model cannot run in LiteRT, or `path` exists. Nothing is written.
        RuntimeError: If the interpreter gives other probabilities than rounding can explain.

    Example:
        >>> export_litert("model", "ctr.tflite")
        Traceback (most recent call last):
        ...
        ValueError: Expected a CalibratedModel. Received: str. Other Keras models export with
        model.export(path).
    """
    return export_file(model, path, sample, "LiteRT", _convert, _run)


def _convert(function: Any, specs: dict[str, Any]) -> bytes:
    import tensorflow as tf

    concrete = function.get_concrete_function(specs)
    holder = tf.Module()
    holder.serve = function
    converter = tf.lite.TFLiteConverter.from_concrete_functions([concrete], holder)
    return bytes(converter.convert())


def _run(file: Path, inputs: Rows) -> Rows:
    import tensorflow as tf

    with warnings.catch_warnings():
        # It is to move into a package of its own.
        warnings.simplefilter("ignore")
        interpreter = tf.lite.Interpreter(str(file))
    runner = interpreter.get_signature_runner()
    outputs: Rows = runner(**inputs)
    return outputs
