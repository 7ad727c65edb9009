"""refit_head: fits the head of an exported model to new rows."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops
from numpy.typing import ArrayLike

from calibration_records._columns import select_features
from calibration_records._predictions import check_probabilities
from calibration_records._warn import warn
from keras_calibration._ops.losses import probabilities_from_logits
from keras_calibration._rows.checks import logits_of_probabilities
from keras_calibration._rows.inputs import entering
from keras_calibration._typing import Features, Tensor
from keras_calibration.export.provenance import describe_head, summary_figures
from keras_calibration.export.serving_spec import first_rows, tensor_specs
from keras_calibration.export.signatures import interval_of
from keras_calibration.layers.field_ids import id_fields
from keras_calibration.layers.fit_settings import FitSettings
from keras_calibration.layers.head import Head
from keras_calibration.layers.histogram_head import HistogramHead
from keras_calibration.models.logit_range import describe_logits

# Provenance entries kept from the previous version, including its own `refreshed_from`.
_KEPT = ("exported_at", "versions", "fit", "logits", "refreshed_from")


class Refit(NamedTuple):
    """What a fit to new rows gives.

    Args:
        rows: The first rows, with their `logit`, for the comparison.
        outputs: What the head gives for them, by name.
        entries: Entries of the provenance: the head, its fit and its logits.
    """

    rows: dict[str, Tensor]
    outputs: dict[str, Tensor]
    entries: dict[str, Any]


def refit_head(
    wrapped: keras.Model,
    head: Head,
    inputs: Mapping[str, keras.KerasTensor],
    before: Mapping[str, Any],
    predictions: ArrayLike,
    labels: ArrayLike,
    features: Mapping[str, ArrayLike] | None,
    sample_weight: ArrayLike | None,
    *,
    from_logits: bool,
    weights_are: str,
    forget: float,
    settings: FitSettings | None,
) -> Refit:
    """Fits a head to rows, which are those of `refresh_savedmodel`.

    `wrapped` is the head as a Functional model, of which `head` is the only layer, and `inputs` are
    its inputs by name, `logit` among them. `before` is the provenance of the version before.
    """
    logits = _logits(predictions, from_logits)
    _warn_of_other_logits(logits, before["logits"])
    columns = _columns(head, inputs, features)
    with warnings.catch_warnings():
        if not from_logits:  # Logits of probabilities may all lie in [0, 1].
            warnings.filterwarnings("ignore", "The logits look like probabilities", UserWarning)
        if forget == 1:
            summary = head.fit(
                logits, labels, columns, sample_weight, weights_are=weights_are, settings=settings
            )
        else:
            summary = _with_update(head).update(
                logits,
                labels,
                sample_weight=sample_weight,
                forget=forget,
                weights_are=weights_are,
            )
    rows = first_rows({"logit": logits, **columns}, tensor_specs(inputs))
    entries = {
        "head": describe_head(head),
        "fit": {
            "num_rows": summary.num_rows,
            "fitted_at": summary.fitted_at,
            "summary": summary_figures(summary),
            "forget": forget,
        },
        "logits": describe_logits(logits, "fit"),
    }
    return Refit(rows, _outputs(wrapped, head, rows, before.get("interval")), entries)


def kept_from(before: Mapping[str, Any]) -> dict[str, Any]:
    """What the provenance of a version keeps of that before."""
    return {name: before[name] for name in before if name in _KEPT}


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


def _with_update(head: Head) -> HistogramHead:
    """The head itself, if rows can be added to it; else raises."""
    if not isinstance(head, HistogramHead):
        raise ValueError(
            "Argument `forget` must be 1 unless the head itself has `update`, as ILPS has. "
            f"Received: a head of type {type(head).__name__}. Pass forget=1 and all rows to fit."
        )
    if head.histogram is None:
        raise ValueError(
            "With `forget` below 1, the head must hold the histogram of the rows of earlier fits. "
            "Received: a head without one, because it was never fitted, was only trained by "
            "gradient, or serves classes. Pass forget=1 and all rows to fit, or call the "
            "head's own `fit` and export the model again."
        )
    return head


def _outputs(
    wrapped: keras.Model, head: Head, rows: Features, level: float | None
) -> dict[str, Tensor]:
    """What the refitted head gives for some rows: probabilities, with a level also intervals."""
    import tensorflow as tf

    features = {name: values for name, values in rows.items() if name != "logit"}
    with tf.device("CPU:0"):
        probability = probabilities_from_logits(wrapped([rows["logit"], features]))
    return {"probability": probability, **interval_of(head, rows["logit"], features, level)}
