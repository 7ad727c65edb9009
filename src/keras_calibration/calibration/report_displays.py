"""The pictures of a report: the model before and after calibration."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from scipy import special

from calibration_records._display import Display
from keras_calibration._rows.rows import Rows
from keras_calibration.plots.field_display import FieldDisplay
from keras_calibration.plots.reliability_display import ReliabilityDisplay


def displays_of(
    rows: Rows, before: np.ndarray, after: np.ndarray, fields: Iterable[str]
) -> dict[str, Display]:
    """The errors by value of each field, and the reliability diagram, for labels 0 and 1.

    Args:
        rows: The scored rows, with their weights and the fields.
        before: Cross-fitted logits of the model as it was passed.
        after: Cross-fitted logits of the chosen calibration.
        fields: Names of the fields.
    """
    if after.ndim == 2 or not np.isin(rows.labels, (0, 1)).all():
        return {}
    predictions = {"before": special.expit(before), "after": special.expit(after)}
    shown, weights = (rows.labels, predictions), rows.weights
    displays: dict[str, Display] = {
        name: FieldDisplay.from_predictions(
            *shown, rows.features[name], field_name=name, sample_weight=weights
        )
        for name in fields
    }
    diagram = ReliabilityDisplay.from_predictions(*shown, sample_weight=weights)
    displays.setdefault("reliability", diagram)
    return displays
