"""The rows of a scored log as a fit takes them: a batch after the other, not all in memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import keras
import numpy as np

from calibration_records._progress import ProgressBar
from calibration_records.logs import ScoredLog, log_sums
from calibration_records.logs.embedded import log_batches
from calibration_records.logs.query import Query, field_column
from calibration_records.logs.rows import Selection
from calibration_records.logs.sums import TOTALS, whole_numbers
from keras_calibration._rows.array_store import temporary_store
from keras_calibration._rows.checks import refuse_one_class
from keras_calibration._rows.rows import Rows
from keras_calibration._rows.stored_rows import StoredRows
from keras_calibration._rows.weights import check_counts, check_weights_are
from keras_calibration.layers.field_bias import FieldBias
from keras_calibration.layers.field_ids import Fields, Vocabulary
from keras_calibration.layers.fit_summary import FitSummary

SECONDS_OF_A_DAY = 86_400


def selection_of(follows_time: bool) -> Selection:
    """The rows to fit to, with the day of each if they have times."""
    return Selection("day" if follows_time else None)


@dataclass(frozen=True)
class LogRows:
    """The rows of a log, with features.

    Args:
        log: The log.
        fields: Its columns of ids or texts.
        numeric: Its columns of numbers.
        follows_time: Whether the rows have times, the days of the log's `timestamp`.
        weights_are: What the log's weights are.
    """

    log: ScoredLog
    fields: Fields = field(default_factory=dict)
    numeric: Sequence[str] = ()
    follows_time: bool = False
    weights_are: str = "importance"

    @property
    def _log(self) -> ScoredLog:
        return replace(self.log, fields=(*self.fields, *self.numeric))

    def totals(self) -> dict[str, float]:
        """Sums over all rows: `rows`, `weight`, `squares` of weights, `positives`.

        Raises:
            ValueError: If rows are invalid, or all of one class.
        """
        check_weights_are(self.weights_are)
        sums = {"weight": "w", "squares": "w * w", "positives": "w * y"}
        selection = selection_of(self.follows_time)
        found = log_sums(self._log, {TOTALS: Query({}, sums)}, selection).table(TOTALS)
        total = {name: float(values[0]) for name, values in found.items()}
        refuse_one_class(total["positives"], total["weight"] - total["positives"], total["rows"])
        return total

    def batches(
        self, total: Mapping[str, float], verbose: int | str = 0
    ) -> Iterator[tuple[Rows, np.ndarray]]:
        """The rows, and the keys that divide them by chance, a batch after the other.

        Args:
            total: The `totals`.
            verbose: 1 shows how many are read.
        """
        unit = total["squares"] / total["weight"] if self.weights_are == "importance" else 1.0
        columns = {name: field_column(name) for name in (*self.fields, *self.numeric)}
        optional = {"w": self.log.sample_weight is not None, "t": self.follows_time}
        names = ["l", "y", "k", *(name for name, is_used in optional.items() if is_used)]
        names += columns.values()
        for batch in log_batches(self._log, names, selection_of(self.follows_time)):
            weights = np.asarray(batch["w"]) if "w" in batch else None
            if weights is not None and self.weights_are == "counts":
                check_counts(weights)
            rows = Rows(
                logits=np.asarray(batch["l"], "float64"),
                labels=np.asarray(batch["y"], "float64"),
                weights=None if weights is None else weights / unit,
                features={n: self._feature(batch[each], n) for n, each in columns.items()},
                unit=unit,
                times=np.asarray(batch["t"]) / SECONDS_OF_A_DAY if "t" in batch else None,
                time_unit="day" if "t" in batch else "",
            )
            yield rows, np.asarray(batch["k"])

    def _feature(self, column: np.ndarray, name: str) -> np.ndarray:
        return feature_values(column, name, self.fields, self.numeric)


def fit_to_rows(
    head: FieldBias, log: ScoredLog, weights_are: str = "importance", verbose: int = 1
) -> FitSummary:
    """Fits a head to the rows of a log, which are copied to files for the time of the fit.

    Args:
        head: The head.
        log: The log.
        weights_are: What its weights are.
        verbose: 1 shows how many rows are read, then how many steps are taken.
    """
    given = LogRows(log, head.fields, head.numeric, head.follows_time, weights_are)
    total = given.totals()
    head.ensure_built()
    with temporary_store() as store:
        parts = (
            head.encoded(head.with_features(part)) for part, _ in given.batches(total, verbose)
        )
        rows = StoredRows.of(parts, store)
        progress = ProgressBar(0, "steps", verbose, tells_time_left=False)
        summary = head.fit_stored(rows, progress)
        progress.end()
        return summary


def feature_values(
    values: np.ndarray, feature: str, fields: Fields, numeric: Collection[str]
) -> np.ndarray:
    """Values of a column of a log as those of a feature: of a field, or a numeric one."""
    if feature in numeric:
        return numeric_values(values, feature)
    return field_values(values, feature, fields.get(feature))


def numeric_values(values: np.ndarray, feature: str) -> np.ndarray:
    """Values of a numeric column as floats, with NaN for a missing one; texts may be of numbers."""
    try:
        return values.astype("float64")
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"The numeric column {feature!r} must hold numbers. Received: {error}. Name texts in "
            "the `fields` of the head, with a StringLookup; make numbers of times, for example of "
            "days, with `where` or in the source."
        ) from error


def field_values(values: np.ndarray, feature: str, vocabulary: Vocabulary | None) -> np.ndarray:
    """Field values as features: strings as NumPy strings, a missing one as "".

    Ids are whole numbers, also where a CSV file holds their texts; a missing one is -1.
    """
    if values.dtype.kind == "f" and np.isnan(values).any():
        # A missing value makes floats of a column of ids.
        values = np.where(np.isnan(values), -1.0, values)
    if isinstance(vocabulary, keras.layers.StringLookup) and values.dtype != object:
        return values.astype(str)  # texts of a CSV file may all be of numbers
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
