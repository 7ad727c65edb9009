"""What the checks of a head compare, and their errors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from keras_calibration._rows.rows import Rows
from keras_calibration.layers.fits import heads_in
from keras_calibration.layers.head import Head

# How far two logits may be apart, relative to their size, but to no less than 1.
_ROUNDING = 1e-6


def called(head: Head, rows: Rows) -> np.ndarray:
    """The call of a head, float64, in the shape of the logits."""
    called = keras.ops.convert_to_numpy(head(rows.logits.astype("float32"), rows.features))
    check(
        called.size == rows.logits.size,
        f"The call must return as many logits as it gets, {rows.logits.shape}. Received: an output "
        f"of shape {called.shape}.",
    )
    return called.astype("float64").reshape(rows.logits.shape)


def state_of(head: Head) -> dict[str, Any]:
    """What a fit may not change before it is assigned, by name."""
    state: dict[str, Any] = {_name_weight(w, head): np.asarray(w).tobytes() for w in head.weights}
    for part in heads_in(head):
        state[f"`fit_summary` of {part.name}"] = str(part.fit_summary)
        state[f"`histogram` of {part.name}"] = id(part.histogram)
    return state


def _name_weight(weight: keras.Variable, head: Head) -> str:
    """The attribute that holds a weight, or its path where it is not one of a head."""
    names = [(name, v) for part in heads_in(head) for name, v in vars(part).items()]
    return next((name for name, value in names if value is weight), weight.path)


def disturb(head: Head) -> dict[str, tuple[keras.Variable, np.ndarray]]:
    """Changes the weights as training would; returns them by name, with their values."""
    generator = np.random.default_rng(0)
    for weight in head.trainable_weights:
        weight.assign(np.asarray(weight) + 0.1 * generator.normal(size=weight.shape))
    return {_name_weight(w, head): (w, np.array(w)) for w in head.trainable_weights}


def check_alike(
    message: str,
    rows: Rows,
    pair: tuple[np.ndarray, np.ndarray],
    tolerance: float = _ROUNDING,
) -> None:
    """Raises if what was received and what was expected differ in a row."""
    received, expected = (values.reshape(len(rows), -1) for values in pair)
    apart = np.abs(received - expected) / np.maximum(1, np.abs(expected))
    apart[np.isnan(received) != np.isnan(expected)] = np.inf
    apart = np.nan_to_num(apart, posinf=np.inf).max(axis=1)
    row = int(np.argmax(apart))
    features = {name: column[row] for name, column in rows.features.items()}
    check(
        apart[row] <= tolerance,
        f"{message} Received: {received[row]} in place of {expected[row]}, for the logit "
        f"{rows.logits[row]} and the features {features}.",
    )


def check(is_right: bool, message: str) -> None:
    """Raises an `AssertionError` with this message, unless all is right."""
    if not is_right:
        raise AssertionError(message)


@contextlib.contextmanager
def must(message: str) -> Iterator[None]:
    """Turns any error of the block into an `AssertionError` with this message."""
    try:
        yield
    except AssertionError:
        raise
    except Exception as error:
        raise AssertionError(f"{message} Received: {type(error).__name__}: {error}") from error
