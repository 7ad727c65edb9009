"""Table: a binary classification table, split into train, development and test."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from calibration_records._check import integer, one_of
from calibration_records._columns import names_of

PARTS = ("train", "development", "test")


def split_parts(num_rows: int) -> dict[str, slice]:
    """The 60/20/20 split of rows in split order: the slice of each part, none of them empty."""
    integer("num_rows", num_rows, 5, "It is split into train, development and test.")
    borders = (0, int(0.6 * num_rows), int(0.8 * num_rows), num_rows)
    return {part: slice(borders[i], borders[i + 1]) for i, part in enumerate(PARTS)}


@dataclasses.dataclass(frozen=True)
class Table:
    """Features, labels and split of one binary classification table.

    The n rows are in split order (train first, then development, then test), so a part is a slice
    and needs no copy.

    Args:
        name: Name of the table.
        features: Column name → array of shape `(n,)`. Categorical columns are int32 ids in
            `[0, num_values[column])`, numeric columns are float32 with NaN for missing.
        labels: Labels, 0 or 1, float32, shape `(n,)`.
        num_values: Number of ids of each categorical column.
        numeric: Names of the numeric columns.
        fields: Names of the categorical columns whose field errors matter. The first is the main
            field.
        parts: The slice of the rows of `"train"`, `"development"` and `"test"`.
        rows: Row number in the source, from 0 and before any filter, int64, shape `(n,)`.
        vocabularies: Column name → the text of each id, for columns where it is known.
        probabilities: True probabilities if they are known, float64, shape `(n,)`.

    Example:
        >>> from keras_calibration.datasets import generate_click_log
        >>> table = generate_click_log(num_rows=1000)
        >>> features, labels = table.part("development")
        >>> features["site_id"].shape, labels.shape
        ((200,), (200,))
        >>> table.fields[0]
        'site_id'
    """

    name: str
    features: Mapping[str, NDArray[np.generic]]
    labels: NDArray[np.float32]
    num_values: Mapping[str, int]
    numeric: tuple[str, ...]
    fields: tuple[str, ...]
    parts: Mapping[str, slice]
    rows: NDArray[np.int64]
    vocabularies: Mapping[str, tuple[str, ...]]
    probabilities: NDArray[np.float64] | None = None

    def part(
        self, name: str, columns: Iterable[str] | None = None
    ) -> tuple[dict[str, NDArray[np.generic]], NDArray[np.float32]]:
        """Features and labels of one part, as views.

        Args:
            name: `"train"`, `"development"` or `"test"`.
            columns: Names of the features to return; None for all.

        Returns:
            Name → feature array, and the labels, all of shape `(rows of the part,)`.

        Raises:
            ValueError: If there is no such part.
            KeyError: If there is no such feature.
        """
        one_of("name", name, [*self.parts])
        names = self.features if columns is None else names_of(columns)
        rows = self.parts[name]
        return {column: self.features[column][rows] for column in names}, self.labels[rows]
