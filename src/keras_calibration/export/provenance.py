"""What an exported model says of itself: `assets.extra/provenance.json`."""

import dataclasses
import hashlib
import json
import platform
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_calibration.layers.fit_summary import utc_now
from keras_calibration.models.calibrated_model import CalibratedModel

_FILE_NAME = "provenance.json"
# A longer list in a configuration, a vocabulary say, is told by its length; `head.keras` has it.
_LONGEST_LIST = 100


def write_provenance(extra: Path, provenance: Mapping[str, Any]) -> None:
    """Writes `provenance.json`; what is not a finite number becomes null.

    Args:
        extra: The folder `assets.extra` of a SavedModel.
        provenance: What to write.
    """
    text = json.dumps(_plain(provenance), indent=1, allow_nan=False, ensure_ascii=False)
    (extra / _FILE_NAME).write_text(text + "\n", encoding="utf-8")


def read_provenance(extra: Path) -> dict[str, Any]:
    """What `write_provenance` wrote.

    Args:
        extra: The folder `assets.extra` of a SavedModel.
    """
    return dict(json.loads((extra / _FILE_NAME).read_text(encoding="utf-8")))


def origin() -> dict[str, Any]:
    """Date and versions of what is being written.

    Returns:
        Plain values.
    """
    import tensorflow as tf

    import keras_calibration

    return {
        "exported_at": utc_now(),
        "versions": {
            "keras_calibration": keras_calibration.__version__,
            "keras": keras.__version__,
            "tensorflow": tf.__version__,
            "python": platform.python_version(),
        },
    }


def files_sha256(savedmodel: Path) -> str:
    """A hash of the graph and the weights of a SavedModel as they are on disk."""
    digest = hashlib.sha256()
    for file in (savedmodel / "saved_model.pb", *sorted((savedmodel / "variables").iterdir())):
        with file.open("rb") as opened:
            digest.update(hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()


def describe_base(model: CalibratedModel) -> dict[str, Any]:
    """Which base model it is: name, size, and a hash of its weights.

    Args:
        model: The calibrated model.

    Returns:
        Plain values.
    """
    weights = [np.asarray(keras.ops.convert_to_numpy(w)) for w in model.base_model.weights]
    digest = hashlib.sha256()
    for weight in weights:
        digest.update(np.ascontiguousarray(weight).tobytes())
    return {
        "name": model.base_model.name,
        "num_weights": sum(weight.size for weight in weights),
        "weights_sha256": digest.hexdigest(),
    }


def describe_head(head: Any) -> dict[str, Any]:
    """What the head is and what it has learnt: class, configuration, knots and values.

    Args:
        head: The calibration head.

    Returns:
        Plain values; `curve` is null where no part has knots.
    """
    parts = (head, getattr(head, "calibrator", None))
    curved = (part for part in parts if hasattr(part, "get_knots") and hasattr(part, "get_values"))
    curve = next(curved, None)
    return {
        "class": type(head).__name__,
        "config": _shortened(head.get_config()),
        "num_weights": sum(int(np.prod(weight.shape)) for weight in head.weights),
        "curve": curve and {"knots": curve.get_knots(), "values": curve.get_values()},
    }


def describe_fit(model: CalibratedModel, fit_summary: Any) -> dict[str, Any]:
    """What is known of the fit: rows, and the figures before and after.

    Args:
        model: The calibrated model.
        fit_summary: What the head's `fit` returned, or None.

    Returns:
        Plain values; null for what nobody knows.
    """
    told = [w for w in model.head.weights if w.name == "num_rows" and w.shape == ()]
    rows: Iterable[int] = (round(float(keras.ops.convert_to_numpy(weight))) for weight in told)
    num_rows = max(rows, default=0) or None
    figures = fit_summary if fit_summary is not None else model.report
    history = getattr(model, "history", None)
    return {
        "num_rows": getattr(figures, "num_rows", num_rows),
        "fitted_at": getattr(figures, "fitted_at", model.fitted_at),
        "summary": None if fit_summary is None else summary_figures(fit_summary),
        "report": None if model.report is None else model.report.to_dict(),
        "last_epoch": {name: values[-1] for name, values in history.history.items() if values}
        if history is not None and history.history
        else None,
    }


def describe_logits(logits: Any, rows: str, weights: Any = None) -> dict[str, Any]:
    """The distribution of base logits, by which a refresh tells logits from probabilities.

    Args:
        logits: Base logits, of any shape.
        rows: Which rows they are of.
        weights: How many rows each logit stands for; ones by default.

    Returns:
        Plain values.
    """
    values = np.asarray(keras.ops.convert_to_numpy(logits), "float64").reshape(-1)
    weights = np.ones(len(values)) if weights is None else np.asarray(weights)
    counts = np.isfinite(values) & (weights > 0)
    values, weights = values[counts], weights[counts]
    if not len(values):
        return {"rows": rows, "num_rows": 0}
    levels = (0.01, 0.1, 0.5, 0.9, 0.99)
    quantiles = np.quantile(values, levels, weights=weights, method="inverted_cdf")
    return {
        "rows": rows,
        "num_rows": round(float(weights.sum())),
        "min": values.min(),
        "max": values.max(),
        "mean": np.average(values, weights=weights),
        "quantiles": dict(zip(map(str, levels), quantiles, strict=True)),
        "share_in_0_1": np.average((values >= 0) & (values <= 1), weights=weights),
    }


def known_logits(model: CalibratedModel, sample_logits: Any) -> dict[str, Any] | None:
    """The distribution of the logits that the head was fitted to, else of the sample's, or None.

    Args:
        model: The calibrated model.
        sample_logits: Logits of the sample, or None where nobody has given one.
    """
    histogram = getattr(getattr(model.head, "calibrator", None), "_histogram", None)
    if histogram is not None:
        atoms = histogram.atoms()
        counts = histogram.num_rows * atoms.weights / atoms.weights.sum()
        return describe_logits(atoms.means, "fitted on", counts)
    return None if sample_logits is None else describe_logits(sample_logits, "sample")


def summary_figures(fit_summary: Any) -> dict[str, Any]:
    """The figures of a `FitSummary`, without those of single rows and without its time.

    Args:
        fit_summary: What a `fit` returned.

    Returns:
        Plain values.
    """
    figures = dataclasses.asdict(fit_summary)
    figures.pop("fitted_at", None)
    return {name: value for name, value in figures.items() if not isinstance(value, np.ndarray)}


def _shortened(config: Any) -> Any:
    if isinstance(config, Mapping):
        return {str(name): _shortened(value) for name, value in config.items()}
    if isinstance(config, list | tuple):
        if len(config) > _LONGEST_LIST:
            return f"{len(config)} entries"
        return [_shortened(value) for value in config]
    return config


def _plain(value: Any) -> Any:
    """As JSON has it."""
    if isinstance(value, Mapping):
        return {str(name): _plain(entry) for name, entry in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)
