"""Rows: the checked, labelled rows of a fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from keras_calibration._rows.columns import take
from keras_calibration._rows.line import Line
from keras_calibration._rows.weights import are_counts


@dataclass(frozen=True)
class Rows:
    """The rows of a fit, as `door.rows_of` gives them: nothing reads or checks them again.

    Args:
        logits: Logits (n,), or class logits (n, K), float64.
        labels: Labels (n,) in [0, 1], or class shares (n, K), float64; None without labels.
        weights: Numbers of rows (n,), above 0, float64 (`weights.counts_of`); None for ones.
        features: Name → array with n rows.
        unit: The sample weight of one row.
        times: Times of the rows (n,), float64, in any order; None if they are unknown.
        time_unit: `"day"` if the times are dates, else empty.
        groups: Groups of the rows (n,), whole numbers: rows of a group are dependent. -1 for all
            rows if there are no groups; None if nobody has looked for groups yet.
        fold: Folds of the rows (n,), whole numbers, if the user has passed the fold of each row.
        numbers: Numbers of the rows among those that the user has passed (n,); None for 0, 1, ….
    """

    logits: np.ndarray
    labels: Any
    weights: np.ndarray | None
    features: Mapping[str, np.ndarray] = field(default_factory=dict)
    unit: float = 1.0
    times: np.ndarray | None = None
    time_unit: str = ""
    groups: np.ndarray | None = None
    fold: np.ndarray | None = None
    numbers: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.logits)

    @property
    def row_weights(self) -> np.ndarray:
        """The weights (n,), ones if there are none."""
        return np.ones(len(self)) if self.weights is None else self.weights

    @property
    def meant_counts(self) -> np.ndarray:
        """How many rows each row stands for (n,): its weight, if the weights are counts."""
        return self.row_weights if are_counts(self.weights) else np.ones(len(self))

    @property
    def num_meant(self) -> int:
        """How many rows are meant: the sum of the weights, if they are counts."""
        return round(self.meant_counts.sum())

    @property
    def num_effective(self) -> float:
        """The number of rows of equal weight with the same information."""
        weights = self.row_weights
        if are_counts(weights):
            return float(weights.sum())
        # Kish's effective sample size.
        return float(weights.sum() ** 2 / (weights @ weights))

    @property
    def shares(self) -> np.ndarray:
        """The labels as class shares (n, K); labels (n,) have two classes."""
        if self.labels.ndim == 2:
            return np.asarray(self.labels)
        # Contiguous columns: the sums by class read whole columns, three times as fast as rows.
        return np.stack([1 - self.labels, self.labels]).T

    def take(self, numbers: np.ndarray) -> Rows:
        """The rows with these numbers, or those where an array (n,) is true."""
        numbers = np.flatnonzero(numbers) if numbers.dtype == bool else numbers
        # These have an entry for each row; all other attributes belong to the rows as a whole.
        columns = ("logits", "labels", "weights", "features", "times", "groups", "fold")
        taken = {name: take(getattr(self, name), numbers) for name in columns}
        passed = numbers if self.numbers is None else self.numbers[numbers]
        return replace(self, **taken, numbers=passed)

    def only(self, names: Iterable[str] | None) -> Rows:
        """The same rows, with the features of these names alone; None for all."""
        if names is None:
            return self
        return replace(self, features={name: self.features[name] for name in names})

    def seen(self, line: Line) -> Rows:
        """The same rows, with logits mapped by a line."""
        return replace(self, logits=line(self.logits))


def describe_logits(
    logits: ArrayLike, rows: str, weights: np.ndarray | None = None
) -> dict[str, Any]:
    """The distribution of base logits, for the comparison with new rows at a refresh."""
    values = np.asarray(logits, "float64")
    values = values.reshape(len(values), -1)
    weights = np.ones(len(values)) if weights is None else weights
    # The K logits of a row share its weight, so that the row counts once.
    shares = np.broadcast_to(weights[:, None] / values.shape[1], values.shape)
    is_finite = np.isfinite(values)
    # Importances are no numbers of rows, so each finite row counts once; counts count as they are.
    num_rows = np.where(are_counts(weights), weights, 1.0) @ is_finite.mean(axis=1)
    values, shares = (column[is_finite] for column in (values, shares))
    if not len(values):
        return {"rows": rows, "num_rows": 0}
    # A refresh compares these quantiles with the new rows, to notice a changed score.
    levels = (0.01, 0.1, 0.5, 0.9, 0.99)
    quantiles = np.quantile(values, levels, weights=shares, method="inverted_cdf")
    return {
        "rows": rows,
        "num_rows": round(float(num_rows)),
        "min": values.min(),
        "max": values.max(),
        "mean": np.average(values, weights=shares),
        "quantiles": dict(zip(map(str, levels), quantiles, strict=True)),
    }
