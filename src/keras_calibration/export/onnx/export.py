"""export_onnx: writes a calibrated model as an ONNX file and verifies it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np

from calibration_records._columns import text_of
from keras_calibration._typing import Features, Inputs, Tensor
from keras_calibration.export.onnx.graph import onnx_packages, to_onnx
from keras_calibration.export.onnx.lookups import why_not
from keras_calibration.export.provenance import describe_model, describe_versions, provenance_text
from keras_calibration.export.publish import Format, Request, named_errors, publish
from keras_calibration.export.spec import OWN_OUTPUTS, Spec
from keras_calibration.export.target import Target, as_path
from keras_calibration.export.verification import Outputs

# Key of the provenance in the metadata of a file.
PROVENANCE = "keras_calibration.provenance"


def export_onnx(
    model: keras.Model,
    path: str | os.PathLike[str],
    sample: Inputs | None = None,
    *,
    calibrated_output: str | int | None = None,
    interval: float | None = None,
) -> Path:
    """Writes a calibrated model as one ONNX file, for serving without TensorFlow.

    The inputs of the ONNX model are the features, numbers or strings, with their names in the
    SavedModel's `serving_default`. Its outputs are `probability`, `uncalibrated_probability` and
    `logit`, float32 (batch, 1), or (batch, K) for K classes, for any number of rows, also none;
    with `interval`, also `probability_lower` and `probability_upper`. Other outputs of the base
    model are returned unchanged, by their names. Inputs with different numbers of rows are an
    error. So is any shape that the file does not declare: (batch,) in place of (batch, 1), for
    example. `StringLookup` and `IntegerLookup` layers become `LabelEncoder`s of ONNX-ML. The file
    is written to a temporary folder, run in onnxruntime on sample rows and compared with the Keras
    model. Only then is it moved to `path`.

    If the base model is another ONNX file (from LightGBM, scikit-learn, PyTorch), join it with the
    file of a model of `calibrate_scores` by `onnx.compose.merge_models`.

    Needs tf2onnx, onnx and onnxruntime: `pip install "keras-calibration[onnx]"`.

    Args:
        model: A Functional or Sequential model with a head.
        path: The file to write, for example `ctr.onnx`; it must not exist.
        sample: Input rows for the comparison, in the form of the model's inputs; by default random
            rows.
        calibrated_output: Name (or key) of the output to calibrate, or its index in a list, if
            several have a head.
        interval: Level of the intervals to return too, in (0, 1); None returns none.

    Returns:
        The path.

    Raises:
        ValueError: If the model cannot run in onnxruntime, or `path` exists. Nothing is written.
        ImportError: If a package is missing. Nothing is written.
        RuntimeError: If the outputs of onnxruntime differ by more than rounding can explain.

    Example:
        >>> export_onnx("model", "ctr.onnx")
        Traceback (most recent call last):
        ...
        ValueError: Argument `model` must be a Functional or Sequential Keras model with a
        calibration head, or a CalibratedModel. Received: str. ...
    """
    spec = Spec.from_model(model, sample, interval, calibrated_output)
    onnx_packages()  # raises before anything is computed
    _check(spec)
    target = Target(as_path(path), is_file=True)
    target.check()
    spec.warn_if_unfitted()
    return publish(target, _Onnx(spec), [spec.request(), spec.request(num_rows=1)], spec.tolerance)


@dataclass
class _Onnx(Format):
    """A model as an ONNX file."""

    spec: Spec
    kind = "ONNX file"

    def write(self, path: Path) -> None:
        """Converts the model."""
        spec = self.spec

        def outputs(request: Features) -> dict[str, Tensor]:
            return spec.outputs({name: request[part.name] for name, part in spec.inputs.items()})

        inputs = {part.name: part for part in spec.inputs.values()}
        with named_errors("onnxruntime"):
            model = to_onnx(outputs, inputs, spec.lookups, spec.head.name)
            provenance = provenance_text(describe_versions() | describe_model(spec))
            model.metadata_props.add(key=PROVENANCE, value=provenance)
            path.write_bytes(model.SerializeToString())

    def run(self, path: Path, requests: Sequence[Request]) -> list[Outputs]:
        """Runs the file in onnxruntime."""
        with named_errors("onnxruntime"):
            return [run_onnx(path, request.inputs) for request in requests]


def run_onnx(file: Path, inputs: Mapping[str, Any]) -> Outputs:
    """Runs an ONNX file in onnxruntime."""
    _, onnxruntime = onnx_packages()
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    arrays = {name: _convert_texts(np.asarray(values), name) for name, values in inputs.items()}
    return dict(zip(names, session.run(names, arrays), strict=True))


def _convert_texts(values: np.ndarray, name: str) -> np.ndarray:
    """Strings in the form of onnxruntime; numbers unchanged."""
    if values.dtype.kind not in "OSU":
        return values
    texts = [text_of(value, repr(name)) for value in values.reshape(-1).tolist()]
    return np.array(texts, object).reshape(values.shape)


def _check(spec: Spec) -> None:
    """Raises for lookups that ONNX lacks, and for equal names of inputs and outputs."""
    for layer in spec.lookups:
        if (why := why_not(layer)) is not None:
            raise ValueError(
                "The lookups of the model must be StringLookup or IntegerLookup layers with one "
                f"id for all unknown values, because ONNX lacks TensorFlow's hash. Received: "
                f"the layer {layer.name!r}, which {why}. Nothing was written. Use such a lookup, "
                "or serve the model as a SavedModel."
            )
    names = {part.name for part in spec.inputs.values()}
    if named := names.intersection((*OWN_OUTPUTS, *spec.other_outputs)):
        raise ValueError(
            "Inputs and outputs must have different names in an ONNX file. Received: a model with "
            f"inputs and outputs named {sorted(named)}. Nothing was written. Rename these inputs, "
            "or these outputs of the base model."
        )
