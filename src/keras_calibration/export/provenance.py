"""Describes an exported model in `assets.extra/provenance.json`."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from calibration_records import __version__
from keras_calibration._keras import flatten_layers
from keras_calibration._rows.logit_range import describe_logits
from keras_calibration.export.head_file import HEAD_FILE
from keras_calibration.export.savedmodel.files import EXTRA
from keras_calibration.export.spec import Spec
from keras_calibration.layers.fit_summary import FitSummary, utc_now
from keras_calibration.layers.head import Head
from keras_calibration.layers.posterior import without_posterior

PROVENANCE_FILE = "provenance.json"
_OWN_HASH = "provenance_sha256"
# Longer lists in a configuration, such as vocabularies, are replaced by their length; `head.keras`
# contains them.
_LONGEST_LIST = 100


def write_provenance(extra: Path, provenance: Mapping[str, Any]) -> None:
    """Writes the provenance into `assets.extra` as JSON.

    Numbers that are not finite become null. The entry `provenance_sha256` is a hash of the others.
    """
    text = provenance_text(provenance)
    (extra / PROVENANCE_FILE).write_text(text + "\n", encoding="utf-8")


def provenance_text(provenance: Mapping[str, Any]) -> str:
    """The text of `write_provenance`."""
    plain = _plain({name: each for name, each in provenance.items() if name != _OWN_HASH})
    plain[_OWN_HASH] = _hash_of(plain)
    return json.dumps(plain, indent=1, allow_nan=False, ensure_ascii=False)


def read_provenance(extra: Path) -> dict[str, Any]:
    """Reads the file written by `write_provenance`; raises `ValueError` if it was changed."""
    return provenance_of((extra / PROVENANCE_FILE).read_text(encoding="utf-8"))


def provenance_of(text: str) -> dict[str, Any]:
    """What `provenance_text` wrote; raises `ValueError` if it was changed."""
    provenance = dict(json.loads(text))
    if provenance.pop(_OWN_HASH) != _hash_of(provenance):
        raise ValueError(f"{PROVENANCE_FILE} was changed, its hash differs")
    return provenance


def _hash_of(provenance: Mapping[str, Any]) -> str:
    text = json.dumps(provenance, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def describe_files(savedmodel: Path) -> dict[str, Any]:
    """Time of the export, package versions, and a hash of graph, weights and head."""
    return {**describe_versions(), "files_sha256": files_sha256(savedmodel)}


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
    folders = (savedmodel / name for name in ("variables", "assets"))
    files = [savedmodel / "saved_model.pb", savedmodel / EXTRA / HEAD_FILE]
    files += sorted(file for folder in folders for file in folder.rglob("*") if file.is_file())
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.relative_to(savedmodel).as_posix()}\0".encode())
        with file.open("rb") as opened:
            digest.update(hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()


def describe_model(spec: Spec) -> dict[str, Any]:
    """Describes the base model, the head, its fit and the distribution of its logits.

    Returns:
        Plain values; None for what is unknown.
    """
    return {
        "base_model": {
            "name": spec.base_name,
            **_describe_weights(spec.base_weights),
            "calibrated_output": spec.found.output_name if spec.other_outputs else None,
            "other_outputs": list(spec.other_outputs),
        },
        "head": describe_head(spec.head),
        "fit": _describe_fit(spec),
        "logits": _known_logits(spec),
    }


def describe_head(head: Head) -> dict[str, Any]:
    """Describes a head: class, configuration, number of weights, knots and values."""
    curve = head.curve()
    return {
        "class": type(head).__name__,
        "config": _shortened(head.get_config()),
        "num_weights": sum(math.prod(w.shape) for w in without_posterior(head.weights)),
        "curve": None if curve is None else dict(zip(("knots", "values"), curve, strict=True)),
    }


def summary_figures(fit_summary: FitSummary) -> dict[str, Any]:
    """The figures of a `FitSummary`, without figures of single rows and the time; None for NaN."""
    figures = dataclasses.asdict(fit_summary)
    return {
        name: None if isinstance(value, float) and math.isnan(value) else value
        for name, value in figures.items()
        if not isinstance(value, np.ndarray) and name not in ("fitted_at", "logits")
    }


def _describe_weights(weights: Sequence[keras.Variable]) -> dict[str, Any]:
    import tensorflow as tf

    digest = hashlib.sha256()
    with tf.device("CPU:0"):
        for weight in weights:
            # The tensor's own memory: to copy a large embedding takes longer than its hash.
            digest.update(tf.identity(weight.value))
    return {
        "num_weights": sum(math.prod(weight.shape) for weight in weights),
        "weights_sha256": digest.hexdigest(),
    }


def _describe_fit(spec: Spec) -> dict[str, Any]:
    head = spec.head
    # What head and model remember may be of weights that a training or a loading has replaced.
    is_known = head.is_as_fitted
    fit_summary = head.fit_summary if is_known else None
    report = spec.report if is_known else None
    figures = report if fit_summary is None else fit_summary
    return {
        "num_rows": _num_rows_in(head) if figures is None else figures.num_rows,
        "fitted_at": None if figures is None else figures.fitted_at,
        "summary": None if fit_summary is None else summary_figures(fit_summary),
        "report": None if report is None else report.to_dict(),
        "last_epoch": spec.last_epoch if is_known else None,
    }


def _num_rows_in(head: Head) -> int | None:
    """The number of rows of the last fit, if a part of the head stores it."""
    kept = [w for w in head.weights if w.name == "num_rows" and w.shape == ()]
    return max((round(float(keras.ops.convert_to_numpy(w))) for w in kept), default=0) or None


def _known_logits(spec: Spec) -> dict[str, Any] | None:
    """The distribution of the logits of the fit, or else of the sample."""
    head = spec.head
    heads = (part for part in flatten_layers(head) if isinstance(part, Head))
    histogram = next((part.histogram for part in heads if part.histogram is not None), None)
    if histogram is not None:
        atoms = histogram.atoms()
        counts = histogram.num_rows * atoms.weights / atoms.weights.sum()
        return describe_logits(histogram.bins.inverse(atoms.means), "fit", counts)
    fit_summary = head.fit_summary if head.is_as_fitted else None
    if fit_summary is not None and fit_summary.logits is not None:
        return dict(fit_summary.logits)
    return describe_logits(spec.expected["logit"], "sample") if spec.has_sample else None


def _shortened(config: Any) -> Any:
    if isinstance(config, Mapping):
        return {str(name): _shortened(value) for name, value in config.items()}
    if isinstance(config, list | tuple):
        if len(config) > _LONGEST_LIST:
            return f"{len(config)} entries"
        return [_shortened(value) for value in config]
    return config


def _plain(value: Any) -> Any:
    """The value in types that JSON has."""
    if isinstance(value, Mapping):
        return {str(name): _plain(entry) for name, entry in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)
