"""export_onnx: writes a calibrated model as an ONNX file and verifies it."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from calibration_records._columns import text_of
from keras_calibration._typing import Features, Inputs, Tensor
from keras_calibration.export.head_file import SavedHead
from keras_calibration.export.onnx.base import OnnxBase
from keras_calibration.export.onnx.graph import onnx_packages, to_onnx, with_head
from keras_calibration.export.onnx.lookups import is_lookup, why_not
from keras_calibration.export.provenance import (
    describe_model,
    describe_versions,
    provenance_text,
)
from keras_calibration.export.publish import Format, Request, named_errors
from keras_calibration.export.spec import OWN_OUTPUTS, Spec, head_outputs, publish_file
from keras_calibration.export.verification import Outputs
from keras_calibration.layers.head import Head

if TYPE_CHECKING:
    import onnx
    import tensorflow as tf

# What a refresh reads from the metadata of a file.
PROVENANCE, HEAD_BYTES = "keras_calibration.provenance", "keras_calibration.head"


def export_onnx(
    model: keras.Model,
    path: str | os.PathLike[str],
    sample: Inputs | None = None,
    *,
    calibrated_output: str | int | None = None,
    interval: float | None = None,
    base: str | os.PathLike[str] | None = None,
    base_output: str | None = None,
) -> Path:
    """Writes a calibrated model as one ONNX file, to be served without TensorFlow.

    The ONNX model takes the features under their names in the SavedModel's `serving_default`,
    numbers and strings, and returns `probability`, `uncalibrated_probability` and `logit`, float32
    (batch, 1), or (batch, K) for K classes, for any number of rows, also none; with `interval`,
    also `probability_lower` and `probability_upper`. Other outputs of the base model are returned
    unchanged, by their names. A request whose inputs differ in their numbers of rows is an error,
    as is another shape than the file declares: a feature (batch,) is not taken as (batch, 1). (An
    ONNX file has to declare the rank of its inputs.) `StringLookup` and `IntegerLookup` layers
    become `LabelEncoder`s of ONNX-ML. The file is written to a temporary folder, run in onnxruntime
    on sample rows and compared with the Keras model. Only then is it moved to `path`.

    A base model from elsewhere (LightGBM, scikit-learn, PyTorch) that is an ONNX file itself can be
    a part of the file: pass the model of `calibrate_scores`, and `base`. The file then takes the
    base's inputs, as they are, and the other features that the head reads, (batch,). A feature that
    has the name of an input of the base is that input.

    Needs tf2onnx, onnx and onnxruntime: `pip install "keras-calibration[onnx]"`.

    Args:
        model: A Functional or Sequential model with a head.
        path: The file to write, for example `ctr.onnx`; it must not exist.
        sample: Input rows for the comparison, in the form that the model takes; by default random
            rows. With `base`, name → rows of the inputs of the file, or a data frame.
        calibrated_output: Key, index or name of the output to calibrate, if several have a head.
        interval: Level of the intervals to return as well, in (0, 1); None returns none.
        base: ONNX file that computes the scores of a model of `calibrate_scores`, or None.
        base_output: Its output with the scores: (n,) or (n, 1), or (n, 2), of which the second
            column is used; for K classes (n, K). By default, its only output of numbers.

    Returns:
        The path.

    Raises:
        ValueError: If the model cannot run in onnxruntime, `base` does not fit, or `path` exists.
            Nothing is written.
        ImportError: If a package is missing. Nothing is written.
        RuntimeError: If the outputs of onnxruntime differ by more than rounding can explain.

    Example:
        >>> export_onnx("model", "ctr.onnx")
        Traceback (most recent call last):
        ...
        ValueError: Argument `model` must be a Functional or Sequential Keras model with a
        calibration head, or a CalibratedModel. Received: str. ...
    """
    spec = Spec.of(model, sample, interval, calibrated_output)
    _check(spec)
    if base is None:
        return publish_file(spec, Path(path), _Onnx(spec))
    below = OnnxBase.read(base, base_output, spec)
    rows, columns = below.rows(spec, run_onnx)
    spec = replace(spec, sample=columns)
    return publish_file(spec, Path(path), _Onnx(spec, below), rows)


@dataclass
class _Onnx(Format):
    """A model as an ONNX file.

    Args:
        spec: The model.
        below: The model from elsewhere that computes its scores, or None.
    """

    spec: Spec
    below: OnnxBase | None = None
    kind = "ONNX file"

    def write(self, path: Path) -> None:
        """Converts base and head, and puts them together."""
        spec, below = self.spec, self.below
        with named_errors("onnxruntime"):
            merged, sources = _merged(spec), _sources(spec)
            if below is not None:
                merged = below.under(merged)
                sources = {name: below.renamed.get(each, each) for name, each in sources.items()}
            metadata = {
                **describe_versions(),
                **describe_model(spec),
                "interval": spec.interval,
                "sources": sources,
                "base_file": None if below is None else below.sha256,
            }
            file = with_metadata(merged, metadata, SavedHead.of(spec).content())
            path.write_bytes(file.SerializeToString())

    def run(self, path: Path, requests: Sequence[Request]) -> list[Outputs]:
        """Runs the file in onnxruntime."""
        with named_errors("onnxruntime"):
            return [run_onnx(path, request.inputs) for request in requests]


def run_onnx(file: Path | bytes, inputs: Mapping[str, Any]) -> Outputs:
    """Runs an ONNX file, or the content of one, in onnxruntime."""
    _, onnxruntime = onnx_packages()
    content = file if isinstance(file, bytes) else str(file)
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    taken = {each.name for each in session.get_inputs()}
    given = {n: _texts(np.asarray(values), n) for n, values in inputs.items() if n in taken}
    return dict(zip(names, session.run(names, given), strict=True))


def _texts(values: np.ndarray, name: str) -> np.ndarray:
    """Strings as onnxruntime takes them; numbers as they are."""
    if values.dtype.kind not in "OSU":
        return values
    texts = [text_of(value, repr(name)) for value in values.reshape(-1).tolist()]
    return np.array(texts, object).reshape(values.shape)


def _merged(spec: Spec) -> onnx.ModelProto:
    """The graphs of the base model and of the head, as one."""
    sources = _sources(spec)
    names = {each.name: name for name, each in spec.inputs.items()}

    def base(given: Features) -> dict[str, Tensor]:
        outputs, head_rows = spec.base_outputs({names[n]: values for n, values in given.items()})
        return {**outputs, **{sources[name]: head_rows[name] for name in spec.found.computed}}

    inputs = {each.name: each for each in spec.inputs.values()}
    lower = to_onnx(base, inputs, spec.lookups)
    kept = ["uncalibrated_probability", "logit", *spec.other_outputs]
    head = head_graph(spec.head, spec.head_inputs, sources, spec.lookups, spec.interval)
    return with_head(lower, head, kept)


def _sources(spec: Spec) -> dict[str, str]:
    """Feature of the head, or `logit` → the input of the file, or the tensor, that it is."""
    inputs = spec.found.input_of
    return {
        name: spec.inputs[inputs[name]].name if name in inputs else each.name
        for name, each in spec.head_inputs.items()
    }


def head_graph(
    head: Head,
    inputs: Mapping[str, tf.TensorSpec],
    sources: Mapping[str, str],
    layers: list[keras.layers.Layer],
    interval: float | None,
) -> onnx.ModelProto:
    """The graph from the logit and the features of a head to the calibrated probability.

    Args:
        head: The head.
        inputs: Its features and `logit` → shape and dtype.
        sources: The same → names in the graph; one name may be that of several features.
        layers: Its lookups.
        interval: Level of the interval, or None.
    """

    def calibrate(given: Features) -> dict[str, Tensor]:
        return head_outputs(head, {n: given[source] for n, source in sources.items()}, interval)

    return to_onnx(calibrate, {sources[name]: each for name, each in inputs.items()}, layers)


def with_metadata(
    model: onnx.ModelProto, provenance: Mapping[str, Any], head: bytes
) -> onnx.ModelProto:
    """The model with what a refresh needs: its provenance, and the head as Keras saves it."""
    del model.metadata_props[:]
    for key, value in (
        (PROVENANCE, provenance_text(provenance)),
        (HEAD_BYTES, base64.b64encode(head).decode()),
    ):
        entry = model.metadata_props.add()
        entry.key, entry.value = key, value
    return model


def _check(spec: Spec) -> None:
    """Raises if there are tables that ONNX does not have, or names that it takes once only."""
    for layer in spec.lookups:
        why = why_not(layer) if is_lookup(layer) else f"is a {type(layer).__name__}"
        if why is not None:
            raise ValueError(
                "The lookups of the model must be StringLookup or IntegerLookup layers with one "
                f"id for all unknown values, because ONNX has no hash of TensorFlow's. Received: "
                f"the layer {layer.name!r}, which {why}. Nothing was written. Use such a lookup, "
                "or serve the model as a SavedModel."
            )
    named = {each.name for each in spec.inputs.values()} & {*OWN_OUTPUTS, *spec.other_outputs}
    if named:
        raise ValueError(
            "Inputs and outputs must have different names in an ONNX file. Received: a model with "
            f"inputs and outputs named {sorted(named)}. Nothing was written. Rename these inputs, "
            "or these outputs of the base model."
        )
