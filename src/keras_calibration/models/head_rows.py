"""HeadRows: what a head is fitted to, the base logits at hand."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from keras import ops

from keras_calibration.solvers.data_checks import Rows

# Rows whose base logit is at hand go through a model as a dictionary of just these two.
LOGIT, FEATURES = "base_logit", "head_features"


@dataclass(frozen=True)
class HeadRows:
    """Base logits, features, labels and weights of the same rows.

    Args:
        logits: Base logits (n, 1).
        features: Feature name → array or tensor with n rows.
        labels: Labels (n, 1), float32.
        weights: Weights (n,), float32, or None.
    """

    logits: np.ndarray
    features: dict[str, Any]
    labels: np.ndarray
    weights: np.ndarray | None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def flat(self) -> Rows:
        """Logits, labels and weights (n,), float64."""
        weights = None if self.weights is None else self.weights.astype("float64")
        logits, labels = (a.astype("float64")[:, 0] for a in (self.logits, self.labels))
        return Rows(logits, labels, weights)

    @property
    def keras_data(self) -> tuple[dict[str, Any], np.ndarray, np.ndarray | None]:
        """The rows as x, y and sample_weight of a Keras model that knows `is_head_input`."""
        return {LOGIT: self.logits, FEATURES: self.features}, self.labels, self.weights

    def take(self, numbers: np.ndarray) -> "HeadRows":
        """The rows of some numbers (m,)."""
        features = {
            name: ops.take(column, numbers, axis=0) if ops.is_tensor(column) else column[numbers]
            for name, column in self.features.items()
        }
        weights = None if self.weights is None else self.weights[numbers]
        return HeadRows(self.logits[numbers], features, self.labels[numbers], weights)


def is_head_input(inputs: Any) -> bool:
    """Whether an input of the model is base logits and features, as `keras_data` has them.

    Example:
        >>> is_head_input({"price": 1.0})
        False
    """
    return isinstance(inputs, Mapping) and set(inputs) == {LOGIT, FEATURES}
