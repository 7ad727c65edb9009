"""What the tables of effects say of rows: variances of their effects, and responses to the line."""

from __future__ import annotations

from keras import ops

from keras_calibration._typing import Tensor


def spreads_of_curves(tables: Tensor, left: Tensor, share: Tensor) -> Tensor:
    """t, r and V of the curves at each row, summed over the columns (batch, R).

    Args:
        tables: `effect_tables.curve_tables` (columns, K + 1, R).
        left: The knot at or left of each number (columns, batch).
        share: The share of the gap that it is beyond that knot (columns, batch).
    """
    total: Tensor = 0.0
    for number in range(tables.shape[0]):
        table, at, beyond = tables[number], left[number], share[number][:, None]
        value = ops.take(table, at, axis=0)
        right = ops.minimum(at + 1, table.shape[0] - 1)
        total = total + value + beyond * (ops.take(table, right, axis=0) - value)
    return total
