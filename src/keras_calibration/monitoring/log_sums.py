"""Sums over a scored log by period, field and field value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import ArrayLike

from keras_calibration.ops.field_sums import field_sums
from keras_calibration.ops.logit_moments import NUM_BINS, NUM_COLUMNS, logit_moments
from keras_calibration.ops.losses import logits_from_probabilities
from keras_calibration.scoring.batch import Batch

_NUM_SUMS = 7


class LogSums:
    """Logit moments of each period, and sums of each field value in each period.

    They take 27 kB a period, and 56 bytes for each field value in a period: memory does not grow
    with the number of rows.

    Example:
        >>> sums = LogSums(["site"])
        >>> sums.add([1, 0, 0], [0.5, 0.25, 0.25], [0, 0, 0], {"site": np.array([0, 1, -1])})
        >>> sums.of_period(0)[:3]  # Σ (y - p), Σ y, rows
        array([0., 1., 3.])
        >>> sums.of_field("site", 0)[:, 2]  # rows of "other", and of the two values
        array([1., 1., 1.])
    """

    def __init__(self, fields: Iterable[str]) -> None:
        self.fields = tuple(fields)
        self._moments: dict[int, np.ndarray] = {}
        self._sums: dict[tuple[int, str | None], np.ndarray] = {}

    @property
    def periods(self) -> list[int]:
        """Starts of the periods that have rows, in ascending order."""
        return sorted(self._moments)

    def add_batch(self, batch: Batch, timestamp: str) -> None:
        """Adds the rows of a batch, whose field `timestamp` holds period starts."""
        self.add(batch.labels, batch.predictions, batch.fields[timestamp], batch.fields)

    def add(
        self,
        labels: ArrayLike,
        probabilities: ArrayLike,
        periods: ArrayLike,
        fields: Mapping[str, ArrayLike],
    ) -> None:
        """Adds rows with their period starts and, for each field, their ids (-1 for "other")."""
        labels = np.asarray(labels, np.float64)
        probabilities = np.asarray(probabilities, np.float64)
        refuse(~np.isin(labels, (0, 1)), labels, "label", "Labels must be 0 or 1.")
        refuse(
            ~((probabilities >= 0) & (probabilities <= 1)),
            probabilities,
            "probability",
            "Probabilities must be in [0, 1], not logits.",
        )
        if not len(labels):
            return
        starts, place = np.unique(np.asarray(periods), return_inverse=True)
        ones = np.ones_like(labels)
        logits = logits_from_probabilities(probabilities)
        # All periods at once: the calls take longer than the rows.
        moments = logit_moments(labels, logits, ones, place.astype(np.int32), len(starts))
        parts = np.asarray(moments).reshape(-1, NUM_BINS, NUM_COLUMNS)
        for period, part in zip(starts.tolist(), parts, strict=True):
            self._moments[period] = self._moments.get(period, 0.0) + part
        of_fields: dict[str | None, np.ndarray] = {None: np.zeros_like(place)}
        of_fields |= {name: np.asarray(fields[name]) for name in self.fields}
        for field, ids in of_fields.items():
            # "Other" comes first, so that new values can be appended.
            width = int(ids.max()) + 2
            cells, cell = np.unique(place * width + ids + 1, return_inverse=True)
            sums = np.asarray(field_sums(labels, probabilities, ones, cell, len(cells)))[:-1]
            number, value = np.divmod(cells, width)
            ends = np.searchsorted(number, np.arange(1, len(starts)))
            for period, values, part in zip(
                starts.tolist(), np.split(value, ends), np.split(sums, ends), strict=True
            ):
                self._add_sums((period, field), values, part)

    def of_period(self, period: int) -> np.ndarray:
        """The seven sums of `ops.field_sums` over a period, shape (7,)."""
        return self._sums[period, None][1]

    def moments(self, period: int) -> np.ndarray:
        """The `ops.logit_moments` of a period, shape (NUM_BINS, NUM_COLUMNS)."""
        return self._moments[period]

    def of_field(self, field: str, period: int | None = None) -> np.ndarray:
        """Sums of each value of a field, "other" first; over all periods if `period` is `None`."""
        if period is not None:
            return self._sums[period, field]
        parts = [self._sums[each, field] for each in self.periods]
        total = np.zeros((max(map(len, parts)), _NUM_SUMS))
        for part in parts:
            total[: len(part)] += part
        return total

    def _add_sums(self, key: tuple[int, str | None], values: np.ndarray, sums: np.ndarray) -> None:
        """Adds the sums of some values, in ascending order, of a field in a period."""
        known = self._sums.get(key, np.zeros((0, _NUM_SUMS)))
        total = np.zeros((max(len(known), values[-1] + 1), _NUM_SUMS))
        total[: len(known)] = known
        total[values] += sums
        self._sums[key] = total


def refuse(bad: np.ndarray, values: np.ndarray, name: str, expected: str) -> None:
    """Raises an error that shows one of the bad values, if there are any."""
    if bad.any():
        raise ValueError(
            f"{expected} Received: {int(bad.sum())} invalid values in {len(values)} rows, for "
            f"example a {name} of {values[bad][0]:g}. Check the name of the column."
        )
