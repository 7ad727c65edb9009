"""What the tables of effects say of rows: variances of their effects, and responses to the line."""

from __future__ import annotations

from keras import ops

from keras_calibration._typing import Tensor


def spreads_of_offsets(of_rows: Tensor, leaders: Tensor) -> tuple[Tensor, Tensor]:
    """Sums of t and r over the fields of each row, and the covariances of fields that coincide.

    Args:
        of_rows: The rows of `effect_tables.offset_table` of the values (fields, batch, 5).
        leaders: The first field of the group of each field (fields,).

    Returns:
        Sums of t and r (batch, 3), and covariances (batch,).
    """
    codes, covariances = of_rows[:, :, 3], of_rows[:, :, 4]
    leaders = ops.cast(leaders, "int32")
    is_same = ops.cast(codes == ops.take(codes, leaders, axis=0), codes.dtype)
    # Each field has this covariance with each of the others of its group.
    are_one_group = ops.cast(leaders[:, None] == leaders[None, :], codes.dtype)
    others = ops.matmul(are_one_group, is_same) - 1.0
    return ops.sum(of_rows[:, :, :3], axis=0), ops.sum(is_same * others * covariances, axis=0)


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
