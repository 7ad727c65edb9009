"""Curves of numeric columns that are linear between knots and constant outside them."""

from __future__ import annotations

from keras import ops

from keras_calibration._typing import Tensor


def places_on_knots(values: Tensor, knots: Tensor) -> tuple[Tensor, Tensor]:
    """The place of each value between the knots of its column: a knot, and a share of its gap.

    All columns are processed together: with one row a batch, the number of operations determines
    the latency. Values beyond the outermost knots, also infinite ones, are placed on them.

    Args:
        values: Columns (J, n); NaN is missing.
        knots: Knots of each column (J, K), not decreasing. The last may be repeated.

    Returns:
        The knot at or left of each value (J, n), int32, or K where it is missing; and the distance
        of the value to this knot as a share of the gap to the next, in [0, 1].

    Example:
        >>> left, share = places_on_knots([[-1.0, 0.5, 3.0, float("nan")]], [[0.0, 2.0, 2.0]])
        >>> print(left.numpy(), share.numpy())
        [[0 0 2 3]] [[0.   0.25 0.   0.  ]]
    """
    values, knots = map(ops.convert_to_tensor, (values, knots))
    num_knots = knots.shape[1]
    missing = ops.isnan(values)
    lowest = knots[:, :1]
    inside = ops.clip(ops.where(missing, lowest, values), lowest, knots[:, -1:])
    # The place is the number of knots at or left of the value, without the first one. They are
    # counted, because LiteRT has no search.
    is_left = ops.cast(inside[:, :, None] >= knots[:, None, 1:], "int32")
    left = ops.sum(is_left, axis=2)
    at_left = read_columns(knots, left)
    gap = read_columns(knots, ops.minimum(left + 1, num_knots - 1)) - at_left
    share = ops.divide_no_nan(inside - at_left, gap)
    return ops.where(missing, num_knots, left), ops.where(missing, 0.0, share)


def read_columns(tables: Tensor, places: Tensor) -> Tensor:
    """The entries of the table of each column (J, L) at places (J, n).

    Example:
        >>> print(read_columns(ops.array([[1, 2], [3, 4]]), ops.array([[1], [0]])).numpy())
        [[2]
         [3]]
    """
    tables = ops.convert_to_tensor(tables)
    starts = tables.shape[1] * ops.arange(tables.shape[0], dtype="int32")[:, None]
    # `take` without an axis flattens first, which makes the gradient dense.
    return ops.take(tables, places + starts)


def numeric_curves(places: tuple[Tensor, Tensor], curves: Tensor) -> Tensor:
    """The curve of each column at places on its knots, (J, n).

    Args:
        places: From `places_on_knots`.
        curves: Values of each curve at the knots, and for missing values, (J, K + 1).

    Example:
        >>> places = places_on_knots([[0.5, float("nan")]], [[0.0, 2.0]])
        >>> print(numeric_curves(places, ops.array([[1.0, 3.0, -1.0]])).numpy())
        [[ 1.5 -1. ]]
    """
    left, share = places
    # At the last knot the share is 0, so that it does not matter which value is to its right.
    right = ops.minimum(left + 1, curves.shape[1] - 1)
    value = read_columns(curves, left)
    return value + share * (read_columns(curves, right) - value)
