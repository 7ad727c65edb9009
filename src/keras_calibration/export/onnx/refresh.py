"""refresh_onnx: refits the head in an ONNX file and writes the next file."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import ArrayLike

from keras_calibration.export.head_file import SavedHead
from keras_calibration.export.onnx.export import (
    HEAD_BYTES,
    PROVENANCE,
    head_graph,
    run_onnx,
    with_metadata,
)
from keras_calibration.export.onnx.graph import onnx_packages, replace_head
from keras_calibration.export.provenance import provenance_of
from keras_calibration.export.publish import Format, Request, named_errors
from keras_calibration.export.refresh import Exported, NewRows, refresh
from keras_calibration.export.spec import signature_input, tensor_specs, vocabularies_of
from keras_calibration.export.target import Target
from keras_calibration.export.verification import Outputs
from keras_calibration.layers.fit_settings import FitSettings

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
    time: ArrayLike | str | None = None,
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
        time: The time of each row (n,), numbers or dates; the name of a column of `features`; or
            `"order"`, if the rows are in order of time. A head that follows time, as `calibrate`
            makes with `time`, needs it; any other ignores it.
        weights_are: `"importance"`, known up to a common factor, or `"counts"` of rows, see
            `Head.fit`.
        forget: Share of the weight of the rows of earlier fits to drop, in [0, 1], see
            `refresh_savedmodel`.
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
    target = Target(Path(destination), is_file=True)
    source = Path(path)
    model, provenance, content = _read(source)
    target.check()
    saved = SavedHead.read(content, source)
    old = Exported(provenance, saved, {"file": source.name})
    new = NewRows(
        predictions,
        labels,
        features,
        sample_weight,
        from_logits,
        weights_are,
        forget,
        settings,
        time,
    )
    return refresh(old, new, target, lambda told: _Refreshed(model, saved, told))


@dataclass
class _Refreshed(Format):
    """An ONNX file with another head.

    Args:
        model: The file before.
        saved: The fitted head.
        provenance: The provenance of the new file.
    """

    model: onnx.ModelProto
    saved: SavedHead
    provenance: dict[str, Any]
    kind = "ONNX file"

    def write(self, path: Path) -> None:
        """Converts the head, and replaces that of the file."""
        head, told = self.saved.head, self.provenance
        with named_errors("onnxruntime"):
            self.graph = head_graph(
                head,
                tensor_specs(self.saved.inputs),
                told["sources"],
                vocabularies_of(head),
                told["interval"],
            )
            new = replace_head(self.model, self.graph)
            file = with_metadata(new, told, self.saved.content())
            path.write_bytes(file.SerializeToString())

    def run(self, path: Path, requests: Sequence[Request]) -> list[Outputs]:
        """Runs the new head; of the whole file, whose inputs are not known, only loads it."""
        _, onnxruntime = onnx_packages()
        sources, content = self.provenance["sources"], self.graph.SerializeToString()
        with named_errors("onnxruntime"):
            onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
            return [
                run_onnx(content, {sources[n]: request.inputs[signature_input(n)] for n in sources})
                for request in requests
            ]


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
