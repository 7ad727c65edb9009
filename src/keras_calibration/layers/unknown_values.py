"""warn_of_unknown: warns of field values that are not in the vocabulary of a head."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import keras
import numpy as np

from calibration_records._columns import ids_of, text_of
from calibration_records._warn import warn
from keras_calibration._rows.rows import Rows
from keras_calibration.layers.field_ids import Fields, Vocabulary
from keras_calibration.layers.head_logits import outcome_columns

if TYPE_CHECKING:
    from keras_calibration.layers.fit import Fit
    from keras_calibration.layers.head import Head

# A share of all rows, and the probability that one field gives a warning by chance.
_LARGE_SHARE, _CHANCE = 0.01, 1e-3


def warn_of_unknown(head: Head, rows: Rows, fit: Fit, fields: Fields | None = None) -> None:
    """Warns of field values outside the vocabularies of a head and of `fields`, on rows of a fit.

    It warns for a field if unknown values make up more than 1 % of its rows, or if the observed
    rate of one of them differs significantly from its prediction.
    """
    pairs = {**head.reads().fields, **(fields or {})}.items()
    if text := "; ".join(
        text for pair in pairs for text in _describe_unknown(head, rows, fit, *pair)
    ):
        warn(
            f"Fields have values that are not in their vocabulary. {text}. All such values of a "
            "field share one correction, and a fit adds none of them to the vocabulary. Call "
            "`calibrate` or `calibrate_scores` with fields=[…], the names of the fields, or make a "
            "head whose `fields` have these values; then export the model again."
        )


def _describe_unknown(
    head: Head, rows: Rows, fit: Fit, name: str, vocabulary: Vocabulary
) -> Iterator[str]:
    """The text about the unknown values of a field, if it gives a warning."""
    column = rows.features[name]
    if isinstance(vocabulary, int | keras.layers.IntegerLookup):
        column = ids_of(column, repr(name))
    numbers = np.flatnonzero(_is_unknown(column, vocabulary))
    texts = np.array([text_of(value, repr(name)) for value in column[numbers].flat], object)
    # A row that holds the token for unknown values was marked so on purpose.
    is_value = texts != str(getattr(vocabulary, "oov_token", -1))
    values, place = np.unique(texts[is_value], return_inverse=True)
    if not len(values):
        return
    unknown = rows.take(numbers[is_value])
    labels, predicted = outcome_columns(unknown.labels, fit.logits(unknown))
    # Weighted sums by value, and by class if there are several: labels, predictions, and the
    # variance of the labels if the predictions are right.
    count = np.bincount(place, unknown.row_weights)
    positives, expected, variance = (
        np.stack([np.bincount(place, unknown.row_weights * column) for column in columns.T])
        for columns in (labels, predicted, predicted * (1 - predicted))
    )
    # Bernstein's inequality: the probability of a difference d is at most 2 exp(-evidence), also
    # with few rows and rare labels. Of m values and classes, each may have 1/m of the chance
    # (Bonferroni).
    off = np.abs(positives - expected)
    evidence = np.zeros_like(off)
    np.divide(off**2, 2 * (variance + off / 3), out=evidence, where=off > 0)
    is_off = not head.follows_time and evidence.max() > math.log(2 * evidence.size / _CHANCE)
    share = count.sum() / rows.row_weights.sum()
    if share > _LARGE_SHARE or is_off:
        # The message names one value: the one that is furthest off, or else the most frequent one.
        most = int(np.argmax(evidence.max(axis=0) if is_off else count))
        rates = (f"{sums[0, most] / count[most]:.3g}" for sums in (positives, expected))
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
    # A lookup layer numbers the mask token first, then its indices for unknown values.
    first = int(getattr(vocabulary, "mask_token", None) is not None)
    number = getattr(vocabulary, "num_oov_indices", 0)
    ids = np.asarray(vocabulary(column)).reshape(-1) if number else np.zeros(0)
    return np.isin(ids, first + np.arange(number))
