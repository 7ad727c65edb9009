"""Parts of the rows of a fit whose arrays stay in the processor's cache for the time of a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

from keras_calibration._solvers.logistic_fit import row_log_losses

# Least curvature of a row of weight 1. Saturated rows can have so little that a step overflows.
_SMALLEST_CURVATURE = 1e-16
# Rows whose arrays stay in the processor's cache, and the most of any block.
_ROWS_IN_CACHE = 1 << 16
_MOST_ROWS = 1 << 20


def row_parts(num_rows: int, num_values: Sequence[int] = ()) -> Iterator[slice]:
    """Parts of the rows that are a block each: larger where sums by value are long.

    Example:
        >>> list(row_parts(100_000, [50]))
        [slice(0, 65536, None), slice(65536, 131072, None)]
    """
    # Each part pays for its sums by value, however few its rows: at least two rows a value make up
    # for them.
    size = 2 ** (2 * max(num_values, default=0)).bit_length()
    size = min(max(_ROWS_IN_CACHE, size), _MOST_ROWS)
    return (slice(start, start + size) for start in range(0, num_rows, size))


@dataclass(eq=False)
class RowBlock:
    """Some rows of a fit, and their curve so far: `β·φ + fixed` plus the effects.

    Args:
        functions: φ at the rows (q, n).
        labels: Labels (n,).
        weights: Sample weights (n,).
        places: For each effect, the places of the rows in it: see `effects.Effect`.
        fixed: A constant part of the curve, a number or (n,).

    Attributes:
        curve: The curve of the rows (n,).
        next: The curve after a step that is tried, which may be rejected.
    """

    functions: np.ndarray
    labels: np.ndarray
    weights: np.ndarray
    places: Sequence[Any] = ()
    fixed: np.ndarray | float = 0.0

    def __post_init__(self) -> None:
        self.curve, self.next = np.empty((2, len(self.labels)))

    def derivatives(self) -> tuple[np.ndarray, np.ndarray]:
        """Derivatives of each row's log loss by its curve (n,): `w (p - y)` and `w p (1 - p)`."""
        one = special.expit(self.curve)
        curvature = np.maximum(one * (1 - one), _SMALLEST_CURVATURE)
        return self.weights * (one - self.labels), self.weights * curvature

    def loss_of(self, curve: np.ndarray) -> float:
        """The log loss of a curve (n,), summed over the rows."""
        return float(self.weights @ row_log_losses(self.labels, curve))

    def take_step(self) -> None:
        """Swaps the current curve and the next one; a second call takes the step back."""
        self.curve, self.next = self.next, self.curve
