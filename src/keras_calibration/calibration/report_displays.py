"""The pictures of a report: the model before and after calibration."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from scipy import special

from calibration_records._display import Display
from keras_calibration._rows.rows import Rows
from keras_calibration._rows.scored_rows import ScoredRows
from keras_calibration._rows.weights import Counted, are_counts
from keras_calibration.plots.field_display import FieldDisplay
from keras_calibration.plots.rates import rates_by_bin, rates_by_value
from keras_calibration.plots.reliability_display import ReliabilityDisplay


def displays_of(
    rows: Rows, before: np.ndarray, after: np.ndarray, fields: Iterable[str], fold: np.ndarray
) -> dict[str, Display]:
    """The errors by value of each field, and the reliability diagram, for labels 0 and 1.

    They show the rows of the last fold. Over several folds, the errors of a value would cancel,
    because the rows of each fold were in the fits of the others.

    Args:
        rows: The scored rows, with their weights and the fields.
        before: Cross-fitted logits of the model as it was passed.
        after: Cross-fitted logits of the chosen calibration.
        fields: Names of the fields.
        fold: The fold of each row (n,).
    """
    if after.ndim == 2 or not np.isin(rows.labels, (0, 1)).all():
        return {}
    # The last fold always has a fit, in blocks of time the one to the most rows.
    is_shown = fold == fold.max()
    rows = rows.take(is_shown)
    predictions = {
        "before": special.expit(before[is_shown]),
        "after": special.expit(after[is_shown]),
    }
    scored = ScoredRows(rows.labels, predictions, rows.features, (), Counted(rows.weights))
    kind = "importance" if rows.weights is None or not are_counts(rows.weights) else "counts"
    displays: dict[str, Display] = {
        name: FieldDisplay(name, *rates_by_value(scored, name, weights_are=kind)) for name in fields
    }
    displays.setdefault("reliability", ReliabilityDisplay(rates_by_bin(scored, weights_are=kind)))
    return displays
