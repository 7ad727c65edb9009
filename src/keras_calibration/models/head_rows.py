"""HeadRows: the rows of a fit with their base logits, computed once."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
from keras import ops

from keras_calibration._graph.head_in_model import LOGIT_OUTPUT, HeadInModel
from keras_calibration._graph.outputs import symbolic_input
from keras_calibration._rows.class_rows import class_shares
from keras_calibration._rows.data_checks import Rows, rows_that_count
from keras_calibration._rows.development_set import DevelopmentSet
from keras_calibration._rows.model_inputs import BATCH_SIZE, expected_inputs
from keras_calibration._typing import Inputs, Tensor

# A model accepts rows with known base logits as a dictionary with exactly these two keys.
LOGIT, FEATURES = "base_logit", "head_features"


@dataclass(frozen=True)
class HeadRows:
    """Base logits, features, labels and weights of the same rows.

    Args:
        logits: Base logits (n, 1), or (n, K) for K classes.
        features: Feature name → array or tensor with n rows.
        labels: Labels (n, 1), float32, in [0, 1]; class numbers (n, 1) or shares (n, K).
        weights: Sample weights (n,), float32, or None.
        unit: The sample weight of one row, if the weights are numbers of rows.
    """

    logits: np.ndarray
    features: dict[str, Tensor]
    labels: np.ndarray
    weights: np.ndarray | None
    unit: float = 1.0

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def flat(self) -> Rows:
        """Logits, labels and weights (n,), float64; logits and labels (n, K) for K classes."""
        weights = None if self.weights is None else self.weights.astype("float64")
        logits, labels = (values.astype("float64") for values in (self.logits, self.labels))
        if logits.shape[1] > 1:
            return Rows(logits, class_shares(labels, *logits.shape), weights, self.unit)
        return Rows(logits[:, 0], labels[:, 0], weights, self.unit)

    @property
    def keras_data(
        self,
    ) -> tuple[dict[str, np.ndarray | dict[str, Tensor]], np.ndarray, np.ndarray | None]:
        """The rows as x, y and sample_weight, for a model that accepts such inputs."""
        return {LOGIT: self.logits, FEATURES: self.features}, self.labels, self.weights

    def take(self, numbers: np.ndarray) -> HeadRows:
        """The rows with the given numbers (m,)."""
        features = {
            name: ops.take(column, numbers, axis=0) if ops.is_tensor(column) else column[numbers]
            for name, column in self.features.items()
        }
        weights = None if self.weights is None else self.weights[numbers]
        columns = self.logits[numbers], features, self.labels[numbers], weights
        return HeadRows(*columns, self.unit)


def is_head_input(inputs: Inputs) -> bool:
    """Whether an input holds base logits and features, in the form of `keras_data`.

    Example:
        >>> is_head_input({"price": 1.0})
        False
    """
    return isinstance(inputs, Mapping) and set(inputs) == {LOGIT, FEATURES}


def rows_for_head(
    found: HeadInModel, rows: DevelopmentSet, verbose: int | str, also: Collection[str] = ()
) -> HeadRows:
    """The rows as the head sees them; `also` names further inputs to keep."""
    inputs = expected_inputs(rows.inputs, symbolic_input(found.model))
    is_long = bool(verbose) and len(rows.labels) > BATCH_SIZE
    if is_long:
        print(f"Computing the base logits of {len(rows.labels):,} rows:")
    values = found.base_part.values(inputs, verbose if is_long else 0)
    logits, columns = values[LOGIT_OUTPUT], found.columns(inputs)
    features = found.features_from(columns, values)
    features |= {name: columns[name] for name in also if name in columns and name not in features}
    # One shape of labels, (n, 1) or (n, K), so that all metrics see the same.
    labels = np.asarray(rows.labels, "float32").reshape(len(logits), -1)
    weights = None if rows.weights is None else np.asarray(rows.weights, "float32").reshape(-1)
    if (numbers := rows_that_count(weights)) is not None:
        # Keras multiplies the loss of a row, NaN too, by its weight. Valid rows stay as they are,
        # for metrics that are not weighted.
        values = np.concatenate([labels, np.abs(logits)], axis=1)
        are_invalid = ~((values >= 0) & (values < np.inf)).all(axis=1)
        numbers = np.where(are_invalid, numbers, np.arange(len(labels)))
        labels, logits = labels[numbers], logits[numbers]
    return HeadRows(logits, features, labels, weights, rows.unit)
