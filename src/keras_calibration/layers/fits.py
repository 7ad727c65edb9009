"""Steps before and after a direct fit of a head: checks of rows, and a record of the weights."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, MutableMapping
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from numpy.typing import ArrayLike

from calibration_records._check import refused
from calibration_records._warn import warn
from keras_calibration._rows.door import Given, Wanted, columns_of, rows_of
from keras_calibration._rows.rows import Rows
from keras_calibration._rows.weights import Counted, counted_rows
from keras_calibration.layers.field_ids import id_fields, numeric_names
from keras_calibration.layers.fit_summary import FitSummary

if TYPE_CHECKING:
    from keras_calibration.layers.head import Head

_STORED = "last_fit"


def rows_to_fit(head: Head, given: Given, wanted: Wanted | None = None) -> Rows:
    """The arguments of `Head.fit` as rows for `fit_checked`; raises for invalid ones."""
    check_fit(head, given.time)
    head.check_logits(np.shape(given.scores))
    return rows_of(given, wanted_by(head) if wanted is None else wanted)


def wanted_by(head: Head) -> Wanted:
    """The columns that a fit of a head reads."""
    readers = head.field_readers()
    of_readers = id_fields(readers), numeric_names(readers)
    return Wanted(head.feature_names, *of_readers, reader=type(head).__name__)


def columns_to_adapt(
    head: Head, logits: ArrayLike, features: Any, sample_weight: ArrayLike | None
) -> tuple[dict[str, np.ndarray], Counted]:
    """The columns that a head reads, for `Head.adapt`, and which rows count."""
    counted = counted_rows(sample_weight)
    sizes = {"logits": len(np.atleast_1d(counted.of(logits, "logits")))}
    return columns_of(features, wanted_by(head), counted, sizes), counted


def heads_in(head: Head) -> list[Head]:
    """A head and all heads inside it."""
    return [head, *(inner for part in head.parts() for inner in heads_in(part))]


def has_direct_fit(head: Head) -> bool:
    """Whether a head, with its parts, defines `fit_rows`."""
    return not any(hasattr(type(part).fit_rows, "is_missing") for part in heads_in(head))


def draws_by_chance(head: Head) -> bool:
    """Whether the direct fit of a head, or of one inside it, draws folds or batches."""
    return any(part.draws_by_chance for part in heads_in(head))


def check_fit(head: Head, time: ArrayLike | str | None) -> None:
    """Raises if a head has no direct fit, needs times and gets none, or gets times it ignores."""
    name = type(head).__name__
    if not has_direct_fit(head):
        raise ValueError(
            f"{name} has no direct fit, or one of its parts has none. Received: {head!r}. Train it "
            "by gradient, with Keras' `fit`, or define `fit_rows`."
        )
    if head.follows_time and time is None:
        expected = f"the time of each row, because this {name} follows time"
        raise refused("time", expected, None, 'Pass an array, the name of a column, or "order".')
    if time is not None and not head.follows_time:
        expected = f"None, because this {name} does not follow time"
        raise refused("time", expected, "times", "Use FieldBias(fields, follows_time=True).")


def warn_of_settings(head: Head, settings: Any) -> None:
    """Warns of settings of a network for a head that has none."""
    if settings is not None and not draws_by_chance(head):
        name = type(head).__name__
        warn(f"Argument `settings` has no effect on {name}, which has neither network nor trees.")


def remember_fit(head: Head, summary: FitSummary | None) -> None:
    """Sets `fit_summary`, and records that the present weights are those of the fit."""
    head.fit_summary, head._fitted_weights = summary, hash_of_weights(head)


def save_fit(head: Head, store: MutableMapping[str, Any]) -> None:
    """Adds the record of a fit, if there is one, to what a head saves: JSON, as bytes."""
    if head.fit_summary is not None:
        record = {"weights": head._fitted_weights, "summary": head.fit_summary.to_dict()}
        # Numbers of NumPy become those of Python.
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


@contextlib.contextmanager
def unchanged_if_refused(head: Head) -> Iterator[None]:
    """Restores the weights of a built head, and the record of its fit, if the block raises."""
    restore = restorer(head)
    try:
        yield
    except BaseException:
        restore()
        raise


def restorer(head: Head) -> Callable[[], None]:
    """A function that restores the present weights of a built head, and the record of its fit."""
    weights = weights_of(head)
    heads = heads_in(head)
    states = [(part.histogram, part.fit_summary, part._fitted_weights) for part in heads]

    def restore() -> None:
        head.set_weights(weights)
        for part, state in zip(heads, states, strict=True):
            part.histogram, part.fit_summary, part._fitted_weights = state

    return restore


def hash_of_weights(head: Head) -> str:
    """A hash of all weights of a head, which is the same on every machine."""
    digest = hashlib.sha256()
    for weight in weights_of(head):
        digest.update(f"{weight.dtype}{weight.shape}".encode() + weight.tobytes())
    return digest.hexdigest()


def weights_of(layer: keras.layers.Layer) -> list[np.ndarray]:
    """A copy of the weights: `get_weights` may return views of memory that is reused."""
    return [np.array(weight) for weight in layer.get_weights()]
