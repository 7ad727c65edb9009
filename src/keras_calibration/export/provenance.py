"""Describes an exported model in `assets.extra/provenance.json`."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

from calibration_records import __version__
from keras_calibration._rows.rows import describe_logits
from keras_calibration.export.head_file import HEAD_FILE
from keras_calibration.export.savedmodel.files import EXTRA
from keras_calibration.export.spec import Spec
from keras_calibration.layers.fit_summary import FitSummary, utc_now
from keras_calibration.layers.fits import is_as_fitted
from keras_calibration.layers.head import Head

PROVENANCE_FILE = "provenance.json"


def provenance_text(provenance: Mapping[str, Any]) -> str:
    """The provenance as JSON; numbers that are not finite become null."""
    text = json.dumps(provenance, default=_convert_to_plain)
    finite = json.loads(text, parse_constant=lambda _: None)
    return json.dumps(finite, indent=1, allow_nan=False, ensure_ascii=False)


def describe_versions() -> dict[str, Any]:
    """Time of the export, and package versions."""
    import tensorflow as tf

    return {
        "exported_at": utc_now(),
        "versions": {
            "keras_calibration": __version__,
            "keras": keras.__version__,
            "tensorflow": tf.__version__,
            "python": platform.python_version(),
        },
    }


def files_sha256(savedmodel: Path) -> str:
    """SHA-256 hash of the names and contents of the graph, weights, vocabularies and saved head."""
    files = [savedmodel / "saved_model.pb", savedmodel / EXTRA / HEAD_FILE]
    files += sorted(
        file
        for folder in ("variables", "assets")
        for file in (savedmodel / folder).rglob("*")
        if file.is_file()
    )
    digest = hashlib.sha256()
    for file in files:
        # The name is part of the hash, ended by a byte that no name has: files cannot trade places.
        digest.update(f"{file.relative_to(savedmodel).as_posix()}\0".encode())
        with file.open("rb") as opened:
            digest.update(hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()


def describe_model(spec: Spec) -> dict[str, Any]:
    """Describes the base model, the head, its fit and the distribution of its logits."""
    head = spec.head
    # The summary and the report may describe weights that training or loading has replaced.
    summary, report = (head.fit_summary, spec.report) if is_as_fitted(head) else (None, None)
    # Nor does the report describe a later fit of the head.
    if report is not None and summary is not None:
        figures = (report.before.log_loss, report.after.log_loss_change)
        report = report if figures == (summary.log_loss_before, summary.change) else None
    logits = None if spec.sample is None else describe_logits(spec.expected["logit"], "sample")
    return {
        "base_model": spec.base_name,
        "calibrated_output": spec.match.output_name if spec.other_outputs else None,
        "other_outputs": list(spec.other_outputs),
        "head": describe_head(head),
        "fit": None if summary is None else describe_fit(summary),
        "report": None if report is None else report.to_dict(),
        "logits": getattr(summary, "logits", None) or logits,
        "interval": spec.interval,
    }


def describe_head(head: Head) -> dict[str, Any]:
    """The class of a head, and the knots and values of its curve."""
    curve = head.curve()
    named = None if curve is None else dict(zip(("knots", "values"), curve, strict=True))
    return {"class": type(head).__name__, "curve": named}


def describe_fit(summary: FitSummary) -> dict[str, Any]:
    """The figures of a fit; the provenance has the distribution of the logits elsewhere."""
    return {name: figure for name, figure in summary.to_dict().items() if name != "logits"}


def _convert_to_plain(value: Any) -> Any:
    """A value that JSON has no type for, as one that it has."""
    if isinstance(value, Mapping):
        return dict(value)
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else str(value)
