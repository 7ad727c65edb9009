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

    def add_batch(self, batch: Batch, timestamp: str, keep: np.ndarray | None = None) -> None:
        """Adds rows of a batch (all, or where `keep` is true); `timestamp` holds period starts."""
        rows = slice(None) if keep is None else keep
        fields = {name: batch.fields[name][rows] for name in self.fields}
        labels, predictions = np.asarray(batch.labels), np.asarray(batch.predictions)
        self.add(labels[rows], predictions[rows], batch.fields[timestamp][rows], fields)

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
        _refuse(~np.isin(labels, (0, 1)), labels, "label", "Labels must be 0 or 1.")
        _refuse(
            ~((probabilities >= 0) & (probabilities <= 1)),
            probabilities,
            "probability",
            "Probabilities must be in [0, 1], not logits.",
        )
        periods = np.asarray(periods)
        for period in np.unique(periods).tolist():
            rows = np.flatnonzero(periods == period)
            self._add_period(
                period,
                labels[rows],
                probabilities[rows],
                {name: np.asarray(fields[name])[rows] for name in self.fields},
            )

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

    def _add_period(
        self,
        period: int,
        labels: np.ndarray,
        probabilities: np.ndarray,
        fields: Mapping[str | None, np.ndarray],
    ) -> None:
        ones = np.ones_like(labels)
        logits = logits_from_probabilities(probabilities)
        moments = logit_moments(labels, logits, ones, np.zeros(len(labels), np.int32), 1)
        empty = np.zeros((NUM_BINS, NUM_COLUMNS))
        self._moments[period] = self._moments.get(period, empty) + np.asarray(moments)
        for field, ids in {None: np.zeros(len(labels), np.int64), **fields}.items():
            num_values = int(ids.max()) + 2
            # "Other" comes first, so that new values can be appended.
            new = np.array(field_sums(labels, probabilities, ones, ids + 1, num_values))[:-1]
            known = self._sums.get((period, field), new[:0])
            longer, shorter = (known, new) if len(known) > len(new) else (new, known)
            longer[: len(shorter)] += shorter
            self._sums[period, field] = longer


def _refuse(bad: np.ndarray, values: np.ndarray, name: str, expected: str) -> None:
    if bad.any():
        raise ValueError(
            f"{expected} Received: {int(bad.sum())} invalid values in {len(values)} rows, for "
            f"example a {name} of {values[bad][0]:g}. Check the name of the column."
        )
