"""refresh: fits the head of an export to new rows and publishes it, whatever its format."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops
from numpy.typing import ArrayLike

from calibration_records._columns import select_features
from calibration_records._predictions import check_probabilities
from calibration_records._warn import warn
from keras_calibration._rows.checks import logits_of_probabilities
from keras_calibration._rows.inputs import entering
from keras_calibration._rows.logit_range import describe_logits
from keras_calibration._rows.times import time_given
from keras_calibration._typing import Tensor
from keras_calibration.export.head_file import SavedHead
from keras_calibration.export.provenance import describe_head, describe_versions, summary_figures
from keras_calibration.export.publish import CALIBRATE, Format, Request, publish
from keras_calibration.export.sample import first_rows
from keras_calibration.export.spec import by_signature, head_outputs, tensor_specs
from keras_calibration.export.target import Target
from keras_calibration.export.verification import tolerance_for
from keras_calibration.layers.field_ids import id_fields
from keras_calibration.layers.fit_settings import FitSettings
from keras_calibration.layers.fit_summary import FitSummary
from keras_calibration.layers.head import Head
from keras_calibration.layers.histogram_head import HistogramHead
from keras_calibration.layers.refit import refit

# Provenance entries kept from the previous version, including its own `refreshed_from`.
_KEPT = ("exported_at", "versions", "fit", "logits", "refreshed_from")


class NewRows(NamedTuple):
    """The rows of a refresh and how to fit to them: the arguments of `refresh_savedmodel`."""

    predictions: ArrayLike
    labels: ArrayLike
    features: Mapping[str, ArrayLike] | None
    sample_weight: ArrayLike | None
    from_logits: bool
    weights_are: str
    forget: float
    settings: FitSettings | None
    time: ArrayLike | str | None


@dataclass
class Exported:
    """An export, read to be refreshed.

    Args:
        provenance: Its provenance.
        saved: Its head, which is fitted anew.
        reference: How the provenance of the next one names it.
    """

    provenance: Mapping[str, Any]
    saved: SavedHead
    reference: Mapping[str, str]


def refresh(
    old: Exported, new: NewRows, target: Target, form: Callable[[dict[str, Any]], Format]
) -> Path:
    """Fits the head of an export to new rows and publishes the export with it.

    Args:
        old: The export.
        new: The rows.
        target: Where the new one goes; checked before.
        form: From the provenance of the new one to its format, which writes the fitted head.

    Returns:
        The path of the new one.
    """
    import tensorflow as tf

    before, saved = old.provenance, old.saved
    logits = _logits(new.predictions, new.from_logits)
    _warn_of_other_logits(logits, before["logits"])
    columns = _columns(saved.head, saved.inputs, new.features)
    summary = _fit(saved.head, logits, columns, new)
    rows = first_rows({"logit": logits, **columns}, tensor_specs(saved.inputs))
    with tf.device("CPU:0"):
        expected = head_outputs(saved.head, rows, before.get("interval"))
    provenance = {
        **before,
        **describe_versions(),
        "head": describe_head(saved.head),
        "fit": {
            "num_rows": summary.num_rows,
            "fitted_at": summary.fitted_at,
            "summary": summary_figures(summary),
            "forget": new.forget,
        },
        "logits": describe_logits(logits, "fit"),
        "refreshed_from": {**old.reference, **{n: before[n] for n in before if n in _KEPT}},
    }
    request = Request(CALIBRATE, by_signature(rows), lambda _: expected)
    return publish(target, form(provenance), [request], tolerance_for(rows["logit"]))


def _fit(
    head: Head, logits: np.ndarray, columns: Mapping[str, ArrayLike], new: NewRows
) -> FitSummary:
    """Fits the head to the rows, or adds them to those of earlier fits."""
    weights: dict[str, Any] = {"sample_weight": new.sample_weight, "weights_are": new.weights_are}
    if new.forget < 1 and head.histogram is None:
        raise ValueError(
            "With `forget` below 1, the head must know the rows of earlier fits. "
            f"Received: forget={new.forget!r} and a {type(head).__name__} without that: it was "
            "never fitted or only trained by gradient, serves classes, or is a head without "
            "`update` (ILPS and PlattScaling have it). Pass forget=1 and all rows to "
            "fit, or call the head's own `fit` and export the model again."
        )
    with warnings.catch_warnings():
        if not new.from_logits:  # Logits of probabilities may all lie in [0, 1].
            warnings.filterwarnings("ignore", "The logits look like probabilities", UserWarning)
        # What `calibrate` has chosen, which may follow no time, is refreshed by the same call.
        time = time_given(new.time, new.features) if head.follows_time else None
        if isinstance(head, HistogramHead) and new.forget < 1:
            return head.update(logits, new.labels, forget=new.forget, **weights)
        rows: dict[str, Any] = {"features": columns, "time": time, **weights}
        checked = head.checked_rows(logits, new.labels, **rows)
        return refit(head, checked, new.settings, only_if_better=False)


def _logits(predictions: ArrayLike, from_logits: bool) -> np.ndarray:
    """The logits of the rows."""
    values = ops.convert_to_numpy(predictions) if ops.is_tensor(predictions) else predictions
    values = np.asarray(values)
    if from_logits:
        return values
    if values.ndim == 2 and values.shape[1] > 1:
        raise ValueError(
            "Argument `from_logits` must be True for classes, because the probabilities leave open "
            "a constant of each row, on which the scales of the head depend. Received: "
            f"from_logits=False and predictions of {values.shape[1]} classes. Pass the logged "
            "`logit`."
        )
    check_probabilities(values, "predictions")
    return logits_of_probabilities(values)


def _warn_of_other_logits(logits: np.ndarray, before: Mapping[str, Any] | None) -> None:
    """Warns if the logits do not look like those of the previous version."""
    if not before or not before["num_rows"] or not logits.size or not np.isfinite(logits).all():
        return
    if not before["min"] <= np.median(logits) <= before["max"]:
        warn(
            f"The median of the logits, {np.median(logits):g}, is outside the range of the "
            f"previous version's logits, {before['min']:g} to {before['max']:g}. Check that they "
            "are of the same base model.",
        )


def _columns(
    head: Head,
    inputs: Mapping[str, keras.KerasTensor],
    features: Mapping[str, ArrayLike] | None,
) -> dict[str, Tensor]:
    """The features that the head reads, in the dtypes of its inputs."""
    import tensorflow as tf

    names = sorted(name for name in inputs if name != "logit")
    read = select_features({} if features is None else features, names, "The head")
    ids = id_fields(head.field_readers())
    columns = {
        name: entering(values, repr(name), inputs[name], name in ids)
        for name, values in read.items()
    }
    return {
        name: tf.convert_to_tensor(column) if inputs[name].dtype == "string" else column
        for name, column in columns.items()
    }
