"""warn_of_unknown: names the fields of a fit's rows with values that a head does not know."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import keras
import numpy as np
from keras import ops

from calibration_records._columns import text_of
from calibration_records._warn import warn
from keras_calibration._rows.columns import as_array, ids_of
from keras_calibration._rows.rows import Rows
from keras_calibration.layers.field_ids import Fields, Vocabulary
from keras_calibration.layers.head_logits import head_logits, outcome_columns

if TYPE_CHECKING:
    from keras_calibration.layers.head import Head

# Of all rows; and the probability that chance alone makes one field warn.
_LARGE_SHARE, _CHANCE = 0.01, 1e-3


def warn_of_unknown(head: Head, rows: Rows, fields: Fields | None = None) -> None:
    """Warns after a fit if rows have field values that the head, or `fields`, do not know.

    A share of 1 % is worth a word, whatever its labels are; of fewer rows, those of a value whose
    rate is not the predicted one.
    """
    known = {name: each for reader in head.field_readers() for name, each in reader.fields.items()}
    known |= fields or {}
    if told := "; ".join(text for name in known for text in _told(head, rows, name, known[name])):
        warn(
            f"Fields have values that are not in their vocabulary. {told}. All such values of a "
            "field share one correction, and a fit adds none of them to the vocabulary. Call "
            "`calibrate` or `calibrate_scores` with fields=[…], the names of the fields, or make a "
            "head whose `fields` have these values; then export the model again."
        )


def _told(head: Head, rows: Rows, name: str, vocabulary: Vocabulary) -> Iterator[str]:
    """What there is to tell of the unknown values of a field."""
    column = rows.features[name]
    if isinstance(vocabulary, int | keras.layers.IntegerLookup):
        column = as_array(ids_of(column, repr(name)))
    numbers = np.flatnonzero(_is_unknown(column, vocabulary))
    texts = [text_of(value, repr(name)) for value in column[numbers].ravel().tolist()]
    # Who passes the token of unknown values says so.
    is_value = np.array(texts, object) != str(getattr(vocabulary, "oov_token", -1))
    values, place = np.unique(np.array(texts)[is_value], return_inverse=True)
    if not len(values):
        return
    unknown = rows.take(numbers[is_value])
    logits = head_logits(head, unknown.logits, unknown.features)
    # Of classes, the last.
    labels, predicted = (each[:, -1] for each in outcome_columns(unknown.labels, logits))
    count, positives, expected, variance = (
        np.bincount(place, unknown.row_weights * each)
        for each in (np.ones(len(place)), labels, predicted, predicted * (1 - predicted))
    )
    # Bernstein's inequality holds for few rows and rare labels too, and here for all the values.
    off = np.abs(positives - expected)
    evidence = off**2 / (2 * (variance + off / 3))
    is_off = not head.follows_time and evidence.max() > math.log(2 * len(values) / _CHANCE)
    share = count.sum() / rows.row_weights.sum()
    if share > _LARGE_SHARE or is_off:
        most = int(np.argmax(evidence if is_off else count))
        rates = f"{positives[most] / count[most]:.3g}", f"{expected[most] / count[most]:.3g}"
        seen = ", of which {} are positive and {} were expected".format(*rates)
        yield (
            f"{name!r}: {100 * share:.3g} % of the rows, such as those of {str(values[most])!r}"
            f"{seen if unknown.labels.ndim == 1 else ''}"
        )


def _is_unknown(column: np.ndarray, vocabulary: Vocabulary) -> np.ndarray:
    """Which rows (n,) have values outside of a vocabulary."""
    if isinstance(vocabulary, int):
        ids = column.reshape(-1)
        return (ids < 0) | (ids >= vocabulary) if ids.dtype.kind in "iu" else np.zeros(0, bool)
    first = int(getattr(vocabulary, "mask_token", None) is not None)
    number = getattr(vocabulary, "num_oov_indices", 0)
    ids = ops.convert_to_numpy(vocabulary(column)).reshape(-1) if number else np.zeros(0)
    return np.isin(ids, first + np.arange(number))
