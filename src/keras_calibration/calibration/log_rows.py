"""The rows of a scored log, as heads are fitted to them: without sums, and not all in memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import keras
import numpy as np

from calibration_records._progress import ProgressBar
from calibration_records.logs import ScoredLog, log_sums
from calibration_records.logs.batches import Coded, log_batches
from calibration_records.logs.query import Query, field_column
from calibration_records.logs.rows import Selection
from calibration_records.logs.sums import TOTALS, whole_numbers
from keras_calibration._rows.array_store import FolderStore
from keras_calibration._rows.rows import Rows
from keras_calibration._rows.stored_rows import StoredRows
from keras_calibration._rows.weights import check_counts, check_weights_are
from keras_calibration.layers.field_bias import FieldBias
from keras_calibration.layers.field_ids import Vocabulary
from keras_calibration.layers.fit_summary import FitSummary

_SECONDS_OF_A_DAY = 86_400


def fit_to_rows(
    head: FieldBias, log: ScoredLog, weights_are: str = "importance", verbose: int = 1
) -> FitSummary:
    """Fits a head to the rows of a log, which are copied to files for the time of the fit.

    Args:
        head: The head.
        log: The log, whose fields are the features of the head.
        weights_are: What its weights are.
        verbose: 1 shows how many rows are read, then how many steps are taken.
    """
    with tempfile.TemporaryDirectory(prefix="keras-calibration-") as folder:
        rows = StoredRows.of(
            (head.encoded(part) for part in _rows(head, log, weights_are, verbose)),
            FolderStore(folder),
        )
        progress = ProgressBar(0, "steps", verbose, tells_time_left=False)
        summary = head.fit_stored(rows, progress)
        progress.show(progress.done, is_end=True)
        return summary


def _rows(head: FieldBias, log: ScoredLog, weights_are: str, verbose: int) -> Iterator[Rows]:
    """The checked rows, a batch after the other, with the features of the head."""
    check_weights_are(weights_are)
    selection = Selection("day" if head.follows_time else None, purpose="fit")
    sums = {"weight": "w", "squares": "w * w", "positives": "w * y"}
    # This also refuses invalid rows.
    found = log_sums(log, {TOTALS: Query({}, sums)}, selection)
    total = {name: float(values[0]) for name, values in found.table(TOTALS).items()}
    _check_both_classes(total["positives"], total["weight"])
    unit = total["squares"] / total["weight"] if weights_are == "importance" else 1.0
    columns = {name: field_column(name) for name in head.feature_names}
    times = ["t"] if head.follows_time else []
    weights = ["w"] if log.is_weighted else []
    names = ["l", "y", *weights, *times, *columns.values()]
    head.ensure_built()
    for batch in log_batches(log, names, selection, found.num_rows, verbose):
        given = batch.get("w")
        if given is not None and weights_are == "counts":
            check_counts(np.asarray(given))
        rows = Rows(
            logits=np.asarray(batch["l"], "float64"),
            labels=np.asarray(batch["y"], "float64"),
            weights=None if given is None else np.asarray(given) / unit,
            unit=unit,
            times=np.asarray(batch["t"]) / _SECONDS_OF_A_DAY if times else None,
            time_unit="day" if times else "",
        )
        features = {name: _feature(batch[column], name, head) for name, column in columns.items()}
        yield head.with_features(rows, features)


def _feature(column: np.ndarray | Coded, name: str, head: FieldBias) -> np.ndarray:
    if not isinstance(column, Coded):
        return column
    if name in head.numeric:
        return column.values.astype("float64")[column.codes]  # with NaN for a missing value
    return field_values(column.values, name, head.fields[name])[column.codes]


def _check_both_classes(positives: float, weight: float) -> None:
    if not 0 < positives < weight:
        raise ValueError(
            "The rows must hold both classes. Received: one class only, rows that are all "
            f"{'positives' if positives else 'negatives'} where the weight is above 0. Use more "
            "rows, or check how the labels are made."
        )


def field_values(values: np.ndarray, feature: str, vocabulary: Vocabulary | None) -> np.ndarray:
    """Field values as features: strings as NumPy strings, a missing one as "".

    Ids are whole numbers, also where a CSV file holds their texts; a missing one is -1.
    """
    if values.dtype != object:
        return values
    ids = whole_numbers(values)
    is_text = any(isinstance(value, str) for value in values)
    if isinstance(vocabulary, int | keras.layers.IntegerLookup) or (
        ids is not None and not is_text
    ):
        if ids is None:
            raise ValueError(
                f"The field {feature!r} must hold whole numbers, the ids that the layer knows. "
                f"Received: {[value for value in values.tolist() if isinstance(value, str)][:3]}."
            )
        return ids
    return np.array(["" if value is None else str(value) for value in values.tolist()])
