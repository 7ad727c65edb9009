"""Blocks of the rows of a fit: what a step needs of each, so that all need not be in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from keras_calibration._rows.array_store import IN_MEMORY, ArrayStore
from keras_calibration._solvers.logistic_fit import row_log_losses

# Curvature of a row of weight 1: that of saturated rows can be so small that a step overflows.
_SMALLEST_CURVATURE = 1e-16
# Rows of a block whose arrays stay in the processor's cache, and the most of any block.
_ROWS_IN_CACHE, _MOST_ROWS = 1 << 16, 1 << 20


def row_parts(num_rows: int, num_values: Sequence[int]) -> Iterator[slice]:
    """Parts of the rows that are a block each: larger where sums by value are long.

    Their size is a power of two, so that rows in files and in memory have the same parts.

    Example:
        >>> list(row_parts(100_000, [50]))
        [slice(0, 65536, None), slice(65536, 131072, None)]
    """
    size = 2 ** (2 * max(num_values, default=0)).bit_length()
    size = min(max(_ROWS_IN_CACHE, size), _MOST_ROWS)
    return (slice(start, start + size) for start in range(0, num_rows, size))


class LeftOut(NamedTuple):
    """The rows that count as none, those of one fold.

    Args:
        folds: The fold of each row (n,).
        number: Which fold.
    """

    folds: np.ndarray
    number: int


class RowBlock:
    """Some rows of a fit, and their curve so far: `β·φ + fixed` plus the effects.

    Args:
        functions: φ at the rows (q, n), or the logits l (n,) for φ = (l, 1).
        labels: Labels (n,).
        weights: Sample weights (n,), or None for ones.
        places: For each effect, where the rows are in it: see `effects.Effect`.
        fixed: A constant part of the curve, a number or (n,).
        store: Where arrays of the block are kept.
        left_out: The rows that count as none.

    Attributes:
        curve: The curve of the rows (n,).
        next: Room for that of a step, which may not be taken.
    """

    def __init__(
        self,
        functions: np.ndarray,
        labels: np.ndarray,
        weights: np.ndarray | None,
        places: Sequence[Any] = (),
        fixed: np.ndarray | float = 0.0,
        store: ArrayStore = IN_MEMORY,
        left_out: LeftOut | None = None,
    ) -> None:
        self.labels, self.places, self.fixed = labels, list(places), fixed
        self.store = store
        self._functions, self._weights, self._left_out = functions, weights, left_out
        if store is IN_MEMORY:
            self._functions, self._weights, self._left_out = self.functions, self.weights, None
        self.curve, self.next = (store.empty(len(labels)) for _ in range(2))

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def functions(self) -> np.ndarray:
        """φ at the rows (q, n)."""
        if self._functions.ndim == 2:
            return self._functions
        return np.stack([self._functions, np.ones(len(self))])

    @property
    def weights(self) -> np.ndarray:
        """Sample weights (n,), 0 for rows that are left out."""
        weights = self._weights
        if self._left_out is None:
            return np.ones(len(self)) if weights is None else weights
        weights = np.ones(len(self), "uint8") if weights is None else weights
        return np.where(self._left_out.folds == self._left_out.number, 0.0, weights)

    def without(self, folds: np.ndarray, number: int) -> RowBlock:
        """The same rows without those of a fold, with a curve of their own."""
        left_out = LeftOut(folds, number)
        rows = self._functions, self.labels, self._weights
        return RowBlock(*rows, self.places, self.fixed, self.store, left_out)

    def derivatives(self) -> tuple[np.ndarray, np.ndarray]:
        """First and second derivative of the log loss by the curve of each row (n,)."""
        one, weights = special.expit(self.curve), self.weights
        return weights * (one - self.labels), weights * _curvature(one)

    def curvature(self) -> np.ndarray:
        """The second derivative alone (n,)."""
        return self.weights * _curvature(special.expit(self.curve))

    def loss(self) -> float:
        """The log loss of the curve, summed over the rows."""
        return self._loss_of(self.curve)

    def loss_of_next(self) -> float:
        """The loss of the next curve."""
        return self._loss_of(self.next)

    def row_losses(self) -> np.ndarray:
        """The log loss of the curve at each row (n,)."""
        return row_log_losses(self.labels, self.curve)

    def take_step(self) -> None:
        """Makes the next curve that of the block; a second time, takes it back."""
        self.curve, self.next = self.next, self.curve

    def hold_shapes(self) -> None:
        """Keeps the first function alone, and no fixed part."""
        self._functions, self.fixed = self.functions[:1], 0.0

    def _loss_of(self, curve: np.ndarray) -> float:
        return float(self.weights @ row_log_losses(self.labels, curve))


def _curvature(probabilities: np.ndarray) -> np.ndarray:
    return np.maximum(probabilities * (1 - probabilities), _SMALLEST_CURVATURE)
