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
from keras_calibration.models.logit_range import describe_logits

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
        fit_summary: What the head's `fit` returned; None for what the model's `fit` said.

    Returns:
        Plain values; null for what nobody knows.
    """
    told = [w for w in model.head.weights if w.name == "num_rows" and w.shape == ()]
    rows: Iterable[int] = (round(float(keras.ops.convert_to_numpy(weight))) for weight in told)
    num_rows = max(rows, default=0) or None
    if fit_summary is None:
        fit_summary = _own_summary(model, num_rows)
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


def _own_summary(model: CalibratedModel, num_rows: int | None) -> Any:
    """What the model's own `fit` said, if the head has seen no other rows since."""
    summary = model.fit_summary
    is_of_head = summary is None or num_rows is None or np.isclose(num_rows, summary.num_rows)
    return summary if is_of_head else None


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
    if model.fit_summary is not None and model.fit_summary.logits is not None:
        return dict(model.fit_summary.logits)
    return None if sample_logits is None else describe_logits(sample_logits, "sample")


def summary_figures(fit_summary: Any) -> dict[str, Any]:
    """The figures of a `FitSummary`, without those of single rows and without its time.

    Args:
        fit_summary: What a `fit` returned.

    Returns:
        Plain values.
    """
    return _without_rows(dataclasses.asdict(fit_summary))


def _without_rows(figures: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _without_rows(value) if isinstance(value, Mapping) else value
        for name, value in figures.items()
        if not isinstance(value, np.ndarray) and name not in ("fitted_at", "logits")
    }


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
