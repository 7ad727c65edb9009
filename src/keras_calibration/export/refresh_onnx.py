"""refresh_onnx: refits the head in an ONNX file and writes the next file."""

from __future__ import annotations

import base64
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from numpy.typing import ArrayLike

from keras_calibration.export.export_onnx import (
    HEAD_BYTES,
    PROVENANCE,
    head_graph,
    run_onnx,
    with_metadata,
)
from keras_calibration.export.onnx_graph import onnx_packages, replace_head
from keras_calibration.export.portable_file import check_close, named_errors
from keras_calibration.export.provenance import describe_versions, provenance_of
from keras_calibration.export.refit_head import kept_from, refit_head
from keras_calibration.export.savedmodel_files import HEAD_FILE, read_head, save_head
from keras_calibration.export.serving_spec import tensor_specs
from keras_calibration.export.verification import tolerance_for
from keras_calibration.export.version_folder import (
    check_file,
    move_file_into_place,
    temporary_folder,
)
from keras_calibration.layers.fit_settings import FitSettings
from keras_calibration.layers.head import Head

if TYPE_CHECKING:
    import onnx


def refresh_onnx(
    path: str | os.PathLike[str],
    predictions: ArrayLike,
    labels: ArrayLike,
    features: Mapping[str, ArrayLike] | None = None,
    sample_weight: ArrayLike | None = None,
    *,
    destination: str | os.PathLike[str],
    from_logits: bool = False,
    weights_are: str = "importance",
    forget: float = 1.0,
    settings: FitSettings | None = None,
) -> Path:
    """Fits the head of an ONNX file to new rows, and writes another file.

    As `refresh_savedmodel`: it needs only what the base model predicted, the labels, and the
    features that the head reads. The nodes and weights of the base stay as they are, also those of
    a base from elsewhere. The new head is run in onnxruntime and compared with Keras' before the
    file is moved to `destination`, in one step. Its provenance, in the metadata of the file, holds
    the figures of this fit, and those of the file before under `"refreshed_from"`.

    Args:
        path: The file that `export_onnx` wrote.
        predictions: The base model's probabilities, the output `uncalibrated_probability`; or with
            `from_logits=True` its logits; see `refresh_savedmodel`.
        labels: Labels in [0, 1], or classes.
        features: Name → values of the features that the head reads, or a data frame.
        sample_weight: Sample weights (n,), not negative, importances unless `weights_are` says
            otherwise; ones by default.
        destination: The file to write; it must not exist.
        from_logits: Whether `predictions` holds logits.
        weights_are: `"importance"`, known up to a common factor, or `"counts"` of rows, see
            `Head.fit`.
        forget: Share of the weight of the rows of earlier fits to drop, in [0, 1].
        settings: How to train the head's network, if it has one.

    Returns:
        The path of the new file.

    Raises:
        ValueError: If the file was not written by `export_onnx`, or was changed; the rows cannot be
            fitted; or the destination exists. Nothing is written.
        ImportError: If tf2onnx, onnx or onnxruntime is missing. Nothing is written.
        RuntimeError: If the outputs of onnxruntime differ from the refitted head.

    Example:
        >>> refresh_onnx("ctr.onnx", [0.1], [0], destination="ctr.onnx")
        Traceback (most recent call last):
        ...
        ValueError: Argument `path` must name a file that `export_onnx` wrote. Received:
        'ctr.onnx' (FileNotFoundError). Export the model again.
    """
    source, target = Path(path), Path(destination)
    model, before, content = _read(source)
    check_file(target)
    wrapped, head, inputs = _head_of(content, source)
    refit = refit_head(
        wrapped,
        head,
        inputs,
        before,
        predictions,
        labels,
        features,
        sample_weight,
        from_logits=from_logits,
        weights_are=weights_are,
        forget=forget,
        settings=settings,
    )
    specs, sources = tensor_specs(inputs), before["sources"]
    lookups = [v for reader in head.field_readers() for v in reader.fields.values()]
    layers = [layer for layer in lookups if isinstance(layer, keras.layers.Layer)]
    with named_errors("onnxruntime"):
        graph = head_graph(head, specs, sources, layers, before["interval"])
    provenance = {
        **before,
        **describe_versions(),
        **refit.entries,
        "refreshed_from": {"file": source.name, **kept_from(before)},
    }
    tolerance = tolerance_for(refit.rows["logit"])
    with temporary_folder(target.parent) as temporary:
        alone = temporary / "head.onnx"
        alone.write_bytes(graph.SerializeToString())
        given = {sources[name]: np.asarray(values) for name, values in refit.rows.items()}
        received = run_onnx(alone, given)
        for name, expected in refit.outputs.items():
            allowed = tolerance.allowed(name)
            check_close(received[name], np.asarray(expected), allowed, name, "onnxruntime")
        save_head(wrapped, temporary)
        new = with_metadata(
            replace_head(model, graph), provenance, (temporary / HEAD_FILE).read_bytes()
        )
        file = temporary / target.name
        file.write_bytes(new.SerializeToString())
        _, onnxruntime = onnx_packages()
        with named_errors("onnxruntime"):
            onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        return move_file_into_place(file, target)


def _read(path: Path) -> tuple[onnx.ModelProto, dict[str, Any], bytes]:
    """The model, its provenance, and its head as Keras saves it."""
    onnx_packages()
    import onnx

    try:
        model = onnx.load_from_string(path.read_bytes())
        metadata = {entry.key: entry.value for entry in model.metadata_props}
        before = provenance_of(metadata[PROVENANCE])
        _ = before["logits"], before["interval"], before["sources"]
        return model, before, base64.b64decode(metadata[HEAD_BYTES], validate=True)
    except Exception as error:
        raise ValueError(
            "Argument `path` must name a file that `export_onnx` wrote. Received: "
            f"{os.fspath(path)!r} ({type(error).__name__}). Export the model again."
        ) from error


def _head_of(content: bytes, path: Path) -> tuple[keras.Model, Head, dict[str, keras.KerasTensor]]:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, HEAD_FILE).write_bytes(content)
        try:
            return read_head(Path(folder))
        except Exception as error:
            words = next((line for line in str(error).splitlines() if line.strip()), repr(error))
            raise ValueError(
                f"The head in {os.fspath(path)!r} must be the one that the export wrote. Received: "
                f"a head that cannot be loaded ({words[:300]}). Import the module of a head of "
                "your own first, or export the model again."
            ) from error
