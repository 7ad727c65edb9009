"""Direct fits of heads: the rows, the fit, its assignment, and the record of the weights."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from numpy.typing import ArrayLike

from calibration_records._check import instance, one_of, refused
from calibration_records._progress import VERBOSE
from calibration_records._warn import warn
from keras_calibration._keras import throwaway_layers
from keras_calibration._rows.columns import take
from keras_calibration._rows.door import Given, Wanted, by_names, columns_of, rows_of
from keras_calibration._rows.groups import with_folds
from keras_calibration._rows.rows import Rows
from keras_calibration._rows.weights import Counted, counted_rows
from keras_calibration._solvers.row_folds import folds_of
from keras_calibration._solvers.row_order import rows_apart
from keras_calibration.layers.fit import Fit
from keras_calibration.layers.fit_settings import FitSettings
from keras_calibration.layers.fit_summary import FitSummary
from keras_calibration.layers.head_logits import head_logits

if TYPE_CHECKING:
    from keras_calibration.layers.head import Head

_STORED = "last_fit"


def rows_to_fit(head: Head, given: Given, wanted: Wanted | None = None) -> Rows:
    """The arguments of `Head.fit` as rows; raises for invalid ones."""
    check_fit(head, given.time)
    given, wanted = by_names(given, wanted_by(head) if wanted is None else wanted)
    head.check_logits(np.shape(given.scores))
    return rows_of(given, wanted)


def wanted_by(head: Head, to_fit: bool = True) -> Wanted:
    """The columns that a head reads; for a fit, numbers must not be lost in float32."""
    reads = head.reads()
    numeric = reads.numeric if to_fit else ()
    return Wanted(head.feature_names, reads.ids, numeric, type(head).__name__)


def columns_to_adapt(
    head: Head, logits: ArrayLike, features: Any, sample_weight: ArrayLike | None
) -> tuple[dict[str, np.ndarray], Counted]:
    """The columns that a head reads, for `Head.adapt`, and which rows count."""
    counted = counted_rows(sample_weight)
    # Rows of weight 0 do not count, in the logits and in the features alike.
    sizes = {"logits": len(np.atleast_1d(counted.of(logits, "logits")))}
    return columns_of(features, wanted_by(head), counted, sizes), counted


def heads_in(head: Head) -> list[Head]:
    """A head and all heads inside it."""
    return [head, *(inner for part in head.parts() for inner in heads_in(part))]


def draws_by_chance(head: Head) -> bool:
    """Whether the direct fit of a head, or of one inside it, draws folds or batches."""
    return any(part.draws_by_chance for part in heads_in(head))


def check_fit(head: Head, time: ArrayLike | str | None) -> None:
    """Raises if a head has no direct fit, needs times and gets none, or gets times it ignores."""
    name = type(head).__name__
    if not head.has_direct_fit():
        raise ValueError(
            f"{name} has no direct fit, or one of its parts has none. Received: {head!r}. Train it "
            "by gradient, with Keras' `fit`, or define `fitted`."
        )
    if head.follows_time and time is None:
        raise refused(
            "time",
            f"the time of each row, because this {name} follows time",
            None,
            'Pass an array, the name of a column, or "order".',
        )
    if time is not None and not head.follows_time:
        raise ValueError(
            f"Argument `time` must be None, because this {name} does not follow time. Received: "
            f"{repr(time) if isinstance(time, str) else 'the times of the rows'}. Use "
            "FieldBias(fields, follows_time=True)."
        )


def settings_for(heads: Iterable[Head], settings: Any, verbose: Any) -> FitSettings:
    """The settings of a fit, checked; warns if a head has neither network nor trees to use them."""
    one_of("verbose", verbose, VERBOSE)
    if settings is None:
        return FitSettings(verbose=int(bool(verbose)))
    instance("settings", settings, FitSettings, "a FitSettings", "Pass FitSettings(max_epochs=20).")
    for head in heads:
        if not draws_by_chance(head):
            warn(
                f"Argument `settings` has no effect on {type(head).__name__}, which has neither "
                "network nor trees."
            )
    return replace(settings, verbose=int(bool(verbose)))


def save_fit(head: Head, store: MutableMapping[str, Any]) -> None:
    """Adds the record of a fit, if there is one, to what a head saves: JSON, as bytes."""
    if head.fit_summary is not None:
        record = {"weights": head._fitted_weights, "summary": head.fit_summary.to_dict()}
        # JSON knows no numbers of NumPy: `item` gives those of Python.
        text = json.dumps(record, default=lambda value: value.item())
        store[_STORED] = np.frombuffer(text.encode(), "uint8")


def load_fit(head: Head, saved: dict[str, Any]) -> None:
    """Takes the record of a fit out of what a head has saved; without one, no fit is known."""
    head.fit_summary = head._fitted_weights = None
    if (text := saved.pop(_STORED, None)) is not None:
        record = json.loads(np.asarray(text).tobytes())
        head.fit_summary = FitSummary.from_dict(record["summary"])
        head._fitted_weights = record["weights"]


def is_as_fitted(head: Head) -> bool:
    """Whether a head still has the weights of its last fit."""
    return head._fitted_weights is not None and head._fitted_weights == hash_of_weights(head)


@throwaway_layers()  # A network is trained as a copy.
def fit_to(
    head: Head, rows: Rows, settings: FitSettings | None = None, start: Fit | None = None
) -> Fit:
    """The direct fit of a head to checked rows, as a value.

    Args:
        head: The head, which stays as it is.
        rows: Rows with the features that the head reads.
        settings: Its folds, if it has one for each row, are of the rows passed to `Head.fit`.
        start: A fit to all rows, if `rows` are a part of them, see `Head.fitted`.
    """
    if head.follows_time:
        check_fit(head, rows.times)
    head.check_logits(rows.logits.shape)
    settings = settings or FitSettings()
    rows = with_folds(rows, settings.folds)
    if not draws_by_chance(head):
        return head.fitted(rows, settings, start)
    # Draw folds and batches from rows in one order and form, so that they depend neither on the
    # order of the rows nor on whether counts or repeated rows were passed.
    apart, *places = rows_apart(rows, settings.folds)
    settings = replace(settings, folds=folds_of(settings.folds, apart))
    fit = head.fitted(apart, settings, start)
    return replace(fit, summary=fit.summary.of_given(apart, *places))


def as_fit(head: Head, rows: Rows) -> Fit:
    """The present head as a fit, with figures for rows; `assign` of this fit changes nothing."""

    def logits(rows: Rows) -> np.ndarray:
        return head_logits(head, rows.logits, rows.features)

    summary = head.fit_summary or FitSummary.of(rows, logits(rows))
    return Fit(summary, logits, weights=None)


def assign_all(fits: Sequence[tuple[Head, Fit]]) -> None:
    """Gives built heads their fits: all of them, or none if it is interrupted."""
    # Keep copies of everything that `assign` may change, to restore them after an interruption.
    heads = [part for head, _ in fits for part in heads_in(head)]
    weights = [(weight, np.asarray(weight).copy()) for head, _ in fits for weight in head.weights]
    records = [(head.histogram, head.fit_summary, head._fitted_weights) for head in heads]

    def set_back() -> None:
        try:
            for weight, value in weights:
                weight.assign(value)
            for head, record in zip(heads, records, strict=True):
                head.histogram, head.fit_summary, head._fitted_weights = record
        except KeyboardInterrupt:  # a second one, while restoring: restore first, then stop
            set_back()
            raise

    try:
        for head, fit in fits:
            head.assign(fit)
    except BaseException:
        set_back()
        raise


def build_for(head: Head, rows: Rows) -> None:
    """Creates the weights of a head by a call on one of these rows, unless they exist."""
    if not head.built:
        # A call on one row gives `build` the shapes of the features, by Keras' own rules.
        head(rows.logits[:1], take(rows.features, slice(1)))


def own_values(head: Head, weights: Mapping[str, Any]) -> list[tuple[keras.Variable, Any]]:
    """The variables of a built head, without those of its parts, and their values in a fit."""
    return [pair for n, value in weights.items() for pair in _pair_weights(getattr(head, n), value)]


def values_of(
    head: Head, weights: Mapping[str, Any], parts: Sequence[Fit]
) -> list[tuple[keras.Variable, Any]]:
    """The variables of a built head and of its parts, and their values in a fit, as tensors."""
    values = [
        (variable, keras.ops.convert_to_tensor(value, variable.dtype))
        for variable, value in own_values(head, weights)
    ]
    # The variables of parts belong to their own fits.
    for part, inner in zip(head.parts(), parts, strict=True):
        values += values_of(part, inner.weights or {}, inner.parts)
    return values


def _pair_weights(target: Any, value: Any) -> list[tuple[keras.Variable, Any]]:
    """The variables of a weight, of a layer or of a list of these, with their values."""
    if isinstance(target, keras.Variable):
        return [(target, value)]
    # The value of a layer or a list is a list in the same order, down to single variables.
    inner = target.weights if isinstance(target, keras.layers.Layer) else target
    return [pair for parts in zip(inner, value, strict=True) for pair in _pair_weights(*parts)]


def hash_of_weights(head: Head) -> str:
    """A hash of all weights of a head, which is the same on every machine."""
    digest = hashlib.sha256()
    for weight in weights_of(head):
        digest.update(f"{weight.dtype}{weight.shape}".encode() + weight.tobytes())
    return digest.hexdigest()


def weights_of(layer: keras.layers.Layer) -> list[np.ndarray]:
    """A copy of the weights: `get_weights` may return views of memory that is reused."""
    return [np.array(weight) for weight in layer.get_weights()]
