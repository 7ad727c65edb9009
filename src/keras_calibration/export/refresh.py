"""What a refresh gives the head of an export: new rows as the head takes them, and their fit."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from keras import ops
from numpy.typing import ArrayLike

from calibration_records._columns import select_features
from calibration_records._predictions import check_probabilities
from calibration_records._warn import warn
from keras_calibration._rows.checks import logits_of_probabilities
from keras_calibration._rows.inputs import entering
from keras_calibration._typing import Tensor
from keras_calibration.export.head_file import SavedHead
from keras_calibration.layers.field_ids import id_fields
from keras_calibration.layers.fit_settings import FitSettings
from keras_calibration.layers.fit_summary import FitSummary
from keras_calibration.layers.fits import rows_to_fit
from keras_calibration.layers.head import Head
from keras_calibration.layers.refit import refit
from keras_calibration.layers.unknown_values import warn_of_unknown


def logits_of(predictions: ArrayLike, from_logits: bool) -> np.ndarray:
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


def warn_of_other_logits(logits: np.ndarray, before: Mapping[str, Any] | None) -> None:
    """Warns if the logits do not look like those of the previous version."""
    if not before or not before["num_rows"] or not logits.size or not np.isfinite(logits).all():
        return
    if not before["min"] <= np.median(logits) <= before["max"]:
        warn(
            f"The median of the logits, {np.median(logits):g}, is outside the range of the "
            f"previous version's logits, {before['min']:g} to {before['max']:g}. Check that they "
            "are of the same base model.",
        )


def columns_of(saved: SavedHead, features: Mapping[str, ArrayLike] | None) -> dict[str, Tensor]:
    """The features that a head reads, in the dtypes of its inputs."""
    import tensorflow as tf

    inputs = saved.inputs
    names = sorted(name for name in inputs if name != "logit")
    read = select_features({} if features is None else features, names, "The head")
    ids = id_fields(saved.head.field_readers())
    columns = {
        name: entering(values, repr(name), inputs[name], name in ids)
        for name, values in read.items()
    }
    return {
        name: tf.convert_to_tensor(column) if inputs[name].dtype == "string" else column
        for name, column in columns.items()
    }


def fit(
    head: Head,
    logits: np.ndarray,
    labels: ArrayLike,
    from_logits: bool,
    settings: FitSettings | None,
    **rows: Any,
) -> FitSummary:
    """Fits a head; logits of probabilities may all lie in [0, 1]."""
    with warnings.catch_warnings():
        if not from_logits:
            warnings.filterwarnings("ignore", "The logits look like probabilities", UserWarning)
        checked = rows_to_fit(head, logits, labels, **rows)
        summary = refit(head, checked, settings, only_if_better=False)
        warn_of_unknown(head, checked)
        return summary
