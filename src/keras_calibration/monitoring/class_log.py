"""A log of K classes as K logs of one class against the others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from keras_calibration.metrics.rows import SUM_TOLERANCE
from keras_calibration.monitoring.log_sums import refuse
from keras_calibration.scoring.batch import Batch

_FEWEST = 3


def class_names(
    probability: str | Sequence[str], classes: Sequence[str] | None
) -> list[str] | None:
    """The names of the classes; None where there is one column and no names are given.

    Example:
        >>> class_names(["cat", "dog", "bird"], None), class_names("probability", None)
        (['cat', 'dog', 'bird'], None)
    """
    if isinstance(classes, str):
        raise ValueError(
            f"Argument `classes` must be a list of names. Received: classes={classes!r}."
        )
    columns = None if isinstance(probability, str) else [*probability]
    names = columns if classes is None else [*map(str, classes)]
    if names is None:
        return None
    if len(names) < _FEWEST:
        raise ValueError(
            f"Arguments `probability` and `classes` must name at least {_FEWEST} classes. "
            f"Received: {names}. For two classes, pass the column of one and labels 0 and 1."
        )
    if columns is not None and len(columns) != len(names):
        raise ValueError(
            "Argument `classes` must name the class of each column of `probability`. Received: "
            f"{len(names)} classes for {len(columns)} columns."
        )
    if len(set(names)) < len(names):
        raise ValueError(f"Argument `classes` must hold different names. Received: {names}.")
    return names


class ClassNumbers:
    """Class numbers of labels, which are numbers already or the names of the classes.

    Example:
        >>> numbers = ClassNumbers(["cat", "dog", "bird"])
        >>> numbers(np.array(["bird", "cat"])), numbers(np.array([2, 0]))
        (array([2, 0]), array([2, 0]))
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._numbers = {name: number for number, name in enumerate(names)}

    def __call__(self, values: ArrayLike) -> np.ndarray:
        """The class numbers of distinct values, shape (n,)."""
        values = np.asarray(values)
        if values.dtype.kind in "biuf":
            return values
        if unknown := [name for name in values.tolist() if name not in self._numbers]:
            raise ValueError(
                "Labels must be class numbers or the names of the classes, "
                f"{list(self._numbers)}. Received: {unknown[0]!r}. Name the classes of the "
                "probabilities, in their order, with `classes`."
            )
        return np.array([self._numbers[name] for name in values.tolist()], np.int64)


def against_others(batch: Batch, num_classes: int | None) -> list[Batch]:
    """Batches of labels 0 or 1 and probabilities: one of each class, or the batch as it is.

    `num_classes` is the number of classes expected; None where it is not known yet.

    Example:
        >>> batch = Batch(np.array([2, 0]), np.array([[0.2, 0.3, 0.5], [0.6, 0.4, 0.0]]))
        >>> [of_class.labels.tolist() for of_class in against_others(batch, 3)]
        [[False, True], [False, False], [True, False]]
    """
    labels, probabilities = np.asarray(batch.labels), np.asarray(batch.predictions)
    if probabilities.ndim == 1 and num_classes is None:
        return [batch]
    received = probabilities.shape[1] if probabilities.ndim == 2 else 1
    if received < _FEWEST or received != (num_classes or received):
        raise ValueError(
            f"Rows must have a probability for each of {num_classes or f'{_FEWEST} or more'} "
            f"classes. Received: {received} in a row. For two classes, pass the column of one."
        )
    probabilities = probabilities.astype(np.float64)
    refuse(
        ~np.isin(labels, np.arange(received)),
        labels,
        "label",
        f"Labels must be class numbers 0 … {received - 1} or names of classes.",
    )
    refuse(
        ~((probabilities >= 0) & (probabilities <= 1)),
        probabilities,
        "probability",
        "Probabilities must be in [0, 1], not logits.",
    )
    sums = probabilities.sum(axis=1)
    refuse(
        np.abs(sums - 1) > SUM_TOLERANCE,
        sums,
        "sum",
        "The probabilities of the classes must add up to 1.",
    )
    return [
        batch._replace(labels=labels == number, predictions=probabilities[:, number])
        for number in range(received)
    ]
