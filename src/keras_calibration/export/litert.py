"""export_litert: writes a calibrated model as a LiteRT file and verifies it."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np

from calibration_records._warn import without_notices
from keras_calibration._keras import counted_searches
from keras_calibration._typing import Inputs
from keras_calibration.export.checked_inputs import with_checked_inputs
from keras_calibration.export.publish import SERVING, Format, Request, named_errors
from keras_calibration.export.spec import Spec, publish_file
from keras_calibration.export.verification import Outputs


def export_litert(
    model: keras.Model,
    path: str | os.PathLike[str],
    sample: Inputs | None = None,
    *,
    calibrated_output: str | int | None = None,
) -> Path:
    """Writes a calibrated model with numeric inputs as a LiteRT file, for phones and small devices.

    Its only signature, `serving_default`, takes the features under their names in the SavedModel,
    and returns `probability`, `uncalibrated_probability` and `logit`, float32 (batch, 1), or
    (batch, K) for K classes, for one row or more. One value per row may come as (n,) or (n, 1); any
    other shape, or numbers of rows that differ, is an error. Other outputs of the base model are
    returned unchanged, by their names. It uses only built-in operations, so that every interpreter
    can run it. The file is written to a temporary folder, run on sample rows in the interpreter
    that comes with TensorFlow, and compared with the Keras model. Only then is it moved to `path`.

    Args:
        model: A Functional or Sequential model with a head. Strings and lookup layers have
            no built-in operations: such models raise an error.
        path: The file to write, for example `ctr.tflite`; it must not exist.
        sample: Input rows for the comparison, in the form that the model takes; by default random
            rows.
        calibrated_output: Key, index or name of the output to calibrate, if several have a head.

    Returns:
        The path.

    Raises:
        ValueError: If the model cannot run in LiteRT, or `path` exists. Nothing is written.
        RuntimeError: If the outputs of the interpreter differ by more than rounding can explain.

    Example:
        >>> export_litert("model", "ctr.tflite")
        Traceback (most recent call last):
        ...
        ValueError: Argument `model` must be a Functional or Sequential Keras model with a
        calibration head, or a CalibratedModel. Received: str. ...
    """
    spec = Spec.of(model, sample, calibrated_output=calibrated_output)
    _check(spec)
    return publish_file(spec, Path(path), _LiteRT(spec))


@dataclass
class _LiteRT(Format):
    """A model as a LiteRT file."""

    spec: Spec
    kind = "LiteRT file"

    def write(self, path: Path) -> None:
        """Converts the model."""
        with named_errors("LiteRT"):
            path.write_bytes(_to_litert(self.spec))

    def run(self, path: Path, requests: Sequence[Request]) -> list[Outputs]:
        """Runs the file in TensorFlow's interpreter."""
        with named_errors("LiteRT"):
            return [run_litert(path, request.inputs) for request in requests]


def _check(spec: Spec) -> None:
    """Raises if the model has strings or tables, which need more than built-in operations."""
    strings = sorted(name for name, each in spec.inputs.items() if each.dtype.name == "string")
    if strings:
        raise ValueError(
            "The inputs of the model must be numeric, because LiteRT has no string lookups. "
            f"Received: the string inputs {strings}. Nothing was written. Convert strings to ids "
            "before the model, or serve it as an ONNX file or a SavedModel, which take strings."
        )
    if found := sorted({layer.name for layer in spec.lookups}):
        raise ValueError(
            "The model must take ids, because LiteRT has no lookup tables. Received: a model "
            f"with the lookup layers {found}. Nothing was written. Convert values to ids before "
            "the model, or serve it as an ONNX file or a SavedModel."
        )


def run_litert(file: Path, inputs: Mapping[str, Any]) -> Outputs:
    """Runs a LiteRT file in TensorFlow's interpreter."""
    import tensorflow as tf

    with warnings.catch_warnings():
        # It warns that it will move to another package.
        warnings.simplefilter("ignore")
        interpreter = tf.lite.Interpreter(str(file))
    given = {name: np.asarray(values) for name, values in inputs.items()}
    outputs: Outputs = interpreter.get_signature_runner()(**given)
    return outputs


def _to_litert(spec: Spec) -> bytes:
    """Converts a model by a SavedModel, to built-in operations alone."""
    import tensorflow as tf

    inputs = dict(spec.inputs)
    parts = tf.Module()
    parts.base, parts.head = spec.base, spec.head
    archive = keras.export.ExportArchive()
    archive.track(parts)
    with tempfile.TemporaryDirectory() as folder, without_notices("tensorflow"), counted_searches():
        archive.add_endpoint(
            SERVING, with_checked_inputs(spec.outputs, inputs), input_signature=[inputs]
        )
        archive.write_out(folder, verbose=False)
        converter = tf.lite.TFLiteConverter.from_saved_model(folder)
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
        converter.experimental_enable_resource_variables = True
        content: bytes = converter.convert()
        return content
