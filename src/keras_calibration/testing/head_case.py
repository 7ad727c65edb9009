"""What a head is checked with: rows that are drawn, and its fits to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from calibration_records._check import integer, refused
from keras_calibration._rows.door import Given
from keras_calibration._rows.rows import Rows
from keras_calibration.layers.fit import Fit
from keras_calibration.layers.fit_settings import FitSettings
from keras_calibration.layers.fits import fit_to, rows_to_fit
from keras_calibration.layers.head import Head
from keras_calibration.testing.assertions import check

_FAR_LOGITS = [0.0, -0.0, 1e-6, -1e-6, 5.0, -5.0, 36.7, -36.7, 80.0, -80.0, 1e4, -1e4]


@dataclass(frozen=True)
class HeadCase:
    """A head to check, and rows.

    Args:
        make: Makes a new head.
        settings: How to train a network.
        rows: Labelled rows for fits; labels of classes are their numbers.
        points: Rows to compare logits of: those of the fits, and some with values of no fit.
    """

    make: Callable[[], Head]
    settings: FitSettings
    rows: Rows
    points: Rows

    def fit(self, head: Head, rows: Rows | None = None, **weights: Any) -> Fit:
        """The fit of a head to rows, with `sample_weight` and `weights_are`."""
        rows = rows or self.rows
        given = Given(
            rows.logits,
            rows.labels,
            columns=rows.features,
            time=rows.times if head.follows_time else None,
            **weights,
        )
        fit = fit_to(head, rows_to_fit(head, given), self.settings)
        check(
            isinstance(fit, Fit),
            "`fitted` must return a `Fit`, for example `self.fit_of(rows, {...})`. Received: "
            f"{type(fit).__name__}.",
        )
        return fit


def drawn_rows(
    features: Mapping[str, ArrayLike], num_classes: int | None, num_rows: int
) -> tuple[Rows, Rows]:
    """`rows` and `points` of a case."""
    number = integer("num_rows", num_rows, 100)
    width = 1 if num_classes is None else integer("num_classes", num_classes, 2)
    generator = np.random.default_rng(0)
    logits = generator.normal(-0.5, 1.5, (number, width))
    logits = np.clip(logits, -4, 4).astype("float32").astype("float64")
    far = np.array(_FAR_LOGITS)[(np.arange(len(_FAR_LOGITS))[:, None] + np.arange(width)) % 12]
    truth = 0.7 * logits
    columns, all_columns = {}, {}
    for name, given in features.items():
        values = _convert_feature(name, given)
        codes = generator.integers(0, len(values), number)
        columns[name] = values[codes]
        truth += generator.normal(size=(len(values), width))[codes]
        all_columns[name] = np.append(columns[name], np.resize(_list_unseen(values), len(far)))
    all_logits = np.concatenate([logits, far])
    scores = np.hstack([np.zeros((number, 1)), truth]) if width == 1 else truth
    labels = np.argmax(scores + generator.gumbel(size=scores.shape), axis=1)
    shape = (-1,) if width == 1 else (-1, width)
    rows = Rows(logits.reshape(shape), labels, None, columns, times=np.arange(float(number)))
    return rows, Rows(all_logits.reshape(shape), None, None, all_columns)


def _convert_feature(name: str, given: ArrayLike) -> np.ndarray:
    """The values of a feature in a dtype that models take."""
    values: np.ndarray = np.array(given)
    if values.ndim != 1 or not len(values):
        raise refused("features", f"values (n,) of {name!r}, at least one", given)
    if values.dtype.kind == "f":
        return values.astype("float32")
    if values.dtype.kind == "U":
        return values.astype(object)
    is_small = values.dtype.kind in "iu" and np.abs(values).max() < 2**31 - 1
    return values.astype("int32") if is_small else values


def _list_unseen(values: np.ndarray) -> list[Any]:
    """Values of a feature that no fit has seen; of truth values, the same."""
    if values.dtype.kind in "iu":
        return [-1, values.max() + 1]
    if values.dtype.kind == "f":
        return [np.nan, 1e30, -1e30]
    return ["no such value"] if values.dtype.kind == "O" else [*values]
