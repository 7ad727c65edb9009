"""Piecewise-linear curves on knots: evaluation, slopes, penalties and the hat basis.

**Which line a row is on** is the number of knots at or left of its logit. XLA fuses element-wise
operations into one loop over memory, but neither searches nor sums. Therefore, where XLA compiles
(`jax.jit`, or `jit_compile=True` on TensorFlow), on a CPU:

- With up to 32 knots, each row is compared with the first knots of four groups of lines, then with
  the knots of its group, selecting knot, value and slope on the way. No table is read.
- With more knots and many rows, a table of narrow bins of logits gives the line, up to one knot
  within the bin, with which the row is compared. Where knots are too close for that, or rows are
  too few to pay for the table, knots are counted: by comparison with up to 256 knots, 32 at a time
  (XLA splits longer sums), or by a search.

On a GPU, a kernel that computes more is faster than two kernels that pass arrays through memory.
There, up to 1024 knots are halved: each comparison with the middle one of the knots that are left
rules out half of them. With more than 32 knots, a group of them is found first, whose knots are a
row of a table. One row of another table holds all numbers of a line. The sums of the gradient find
their lines anew.

Without XLA, every comparison would be a pass over memory; there a binary search finds the line, and
one table is read. All variants give the same curve.

**The gradient** is written by hand, because autodiff would sum every table read separately. Two
columns are summed by line in 512 interleaved parts. This keeps float32 accurate over many rows,
fixes the order of the sum on a CPU, and keeps additions from waiting for each other, also on a GPU,
where they are atomic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import keras
import numpy as np
from keras import ops

from keras_calibration._ops.compiled import is_compiled, runs_on_gpu, side_by_side
from keras_calibration._ops.custom_gradients import with_gradient
from keras_calibration._typing import Tensor

_COUNTED_TOGETHER = 32
_MOST_COUNTED_KNOTS = 256
_MOST_COMPARED_KNOTS = 32
_MOST_SEARCHED_TOGETHER, _MOST_SEARCHED_KNOTS = 32, 1024
_NUM_GROUPS = 4
_NUM_BINS = 4096
_BINS_PER_UNIT = np.exp2(np.arange(-30, 31)).astype("float32")
_MANY_FOR_BINS = 1 << 16
_FEW_ROWS = 1 << 18
_NUM_LANES_OF_FEW_ROWS, _NUM_LANES = 64, 512


# Line, knot and slope of each row.
LineOfRows = Callable[[], tuple[Tensor, Tensor, Tensor]]


def piecewise_linear(
    logits: Tensor, knots: Tensor, values: Tensor, extrapolation: str = "linear"
) -> Tensor:
    """Evaluates the piecewise-linear curve through the points `(a_k, b_k)`.

    Between knots, `η(l) = b_k + (l - a_k) (b_{k+1} - b_k) / (a_{k+1} - a_k)`. Outside them, the end
    segments continue (`"linear"`), or the curve keeps its end values (`"constant"`). NaN gives NaN.
    If the values do not decrease, neither does the curve, not even by rounding.

    The gradient with respect to `values` is dense (no `IndexedSlices`): Keras' Adam, RMSprop and
    Adagrad compute a wrong second moment from sparse gradients with repeated indices.

    Args:
        logits: Float tensor of any shape.
        knots: Increasing knots a, of the same dtype, shape `(K,)`, K ≥ 2.
        values: Values b at the knots, of the same dtype, shape `(K,)`.
        extrapolation: `"linear"` or `"constant"`.

    Returns:
        A tensor of the shape and dtype of `logits`.

    Example:
        >>> print(piecewise_linear([-1.0, 0.5, 3.0], [0.0, 1.0], [0.0, 2.0]).numpy())
        [-2.  1.  6.]

    Reference:
        Pan et al., *Field-aware Calibration*, WWW 2020, eq. 10 ("linear") and eq. 9 ("constant").
    """
    logits, knots, values = (ops.convert_to_tensor(tensor) for tensor in (logits, knots, values))
    rows = ops.reshape(logits, (-1,))
    if extrapolation == "constant":
        # Keeps NaN, which a clip may turn into an end of the range.
        rows = ops.where(ops.isnan(rows), rows, ops.clip(rows, knots[0], knots[-1]))
    table = lines(knots, values)
    return ops.reshape(with_gradient(_on_lines)(rows, table), ops.shape(logits))


def lines(knots: Tensor, values: Tensor) -> Tensor:
    """The line to the right of each knot, (3, K): knot, value and slope; the last slope repeats."""
    knots, values = ops.convert_to_tensor(knots), ops.convert_to_tensor(values)
    segment_slopes = slopes(knots, values)
    # TensorFlow can stack Keras variables along the last axis only.
    columns = [knots, values, ops.concatenate([segment_slopes, segment_slopes[-1:]])]
    return ops.transpose(ops.stack(columns, axis=1))


def _on_lines(logits: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """The curve of the lines, and its gradient."""
    curve, line_of_rows = _search_method(logits, table)(logits, table)

    def gradient(*upstream: Tensor, **by_keyword: Tensor) -> tuple[Tensor, Tensor]:
        (by_curve,) = upstream or by_keyword.values()
        line, knot, slope = line_of_rows()
        by_value, by_slope = _sums_by_line(
            by_curve, by_curve * (logits - knot), line, table.shape[1]
        )
        by_table = [-table[2] * by_value, by_value, by_slope]
        return by_curve * slope, ops.stack(by_table, axis=0)

    return curve, gradient


def _search_method(
    logits: Tensor, table: Tensor
) -> Callable[[Tensor, Tensor], tuple[Tensor, LineOfRows]]:
    """The fastest way, as measured, in which the rows find their lines."""
    if not is_compiled(logits):
        return _by_table
    if runs_on_gpu() and table.shape[1] <= _MOST_SEARCHED_KNOTS:
        return _by_search
    if table.shape[1] <= _MOST_COMPARED_KNOTS:
        return _by_comparison
    are_few = logits.shape[0] is not None and logits.shape[0] < _MANY_FOR_BINS
    return _by_table if are_few else _by_bins


def _curve(
    logits: Tensor, line: Sequence[Tensor], next_value: Tensor, ends: tuple[Tensor, Tensor]
) -> Tensor:
    """`b_k + (l - a_k) s_k`, at most `max(b_k, b_{k+1})` between the end knots.

    Rounding could lift the end of a rising line above the start of the next.
    """
    knot, value, slope = line
    is_outside = ops.logical_or(logits < ends[0], logits >= ends[1])
    highest = ops.where(is_outside, math.inf, ops.maximum(value, next_value))
    return ops.minimum(value + (logits - knot) * slope, highest)


def _by_comparison(logits: Tensor, table: Tensor) -> tuple[Tensor, LineOfRows]:
    """Curve, line, knot and slope of each row, by comparison with groups of lines, then lines."""
    num_lines = table.shape[1]
    group_size = -(-num_lines // _NUM_GROUPS)
    knots, values, line_slopes = (ops.unstack(row, num_lines) for row in ops.unstack(table, 3))

    def chosen(conditions: Sequence[Tensor], cases: Sequence[Tensor]) -> Tensor:
        """The last of the cases whose condition holds; the first has no condition."""
        result = cases[0]
        for condition, case in zip(conditions, cases[1:], strict=True):
            result = ops.where(condition, case, result)
        return result

    def group_values(line_values: Sequence[Tensor]) -> list[Tensor]:
        """The values for the lines in each row's group; the last line pads the last group."""
        filled = [*line_values, *[line_values[-1]] * (_NUM_GROUPS * group_size - num_lines)]
        return [chosen(starts, filled[place::group_size]) for place in range(group_size)]

    starts = [
        logits >= knots[min(group * group_size, num_lines - 1)] for group in range(1, _NUM_GROUPS)
    ]
    passed = [logits >= knot for knot in group_values(knots)[1:]]

    def choose(line_values: Sequence[Tensor]) -> Tensor:
        return chosen(passed, group_values(line_values))

    def line() -> Tensor:
        first = chosen(starts, range(0, _NUM_GROUPS * group_size, group_size))
        return ops.minimum(first + chosen(passed, range(group_size)), num_lines - 1)

    next_value = choose([*values[1:], values[-1]])
    curve = _curve(
        logits, [*map(choose, (knots, values, line_slopes))], next_value, (knots[0], knots[-1])
    )
    # Computed again: XLA then fuses each of them into the operation that uses it.
    return curve, lambda: (line(), choose(knots), choose(line_slopes))


def _by_table(logits: Tensor, table: Tensor) -> tuple[Tensor, LineOfRows]:
    """Curve, line, knot and slope of each row, read from its row of the table."""
    line = _line(logits, table[0])
    # Read again: XLA then fuses each of the two into the operation that uses it.
    return _read(logits, table, line), lambda: (
        line,
        ops.take(table[0], line),
        ops.take(table[2], line),
    )


def _read(logits: Tensor, table: Tensor, line: Tensor) -> Tensor:
    """The curve, given the line of each row."""
    if is_compiled(logits):
        # All from the table itself: XLA may round differently what it computes twice.
        next_value = ops.take(table[1], ops.minimum(line + 1, table.shape[1] - 1))
        line_of_row = [ops.take(row, line) for row in ops.unstack(table, 3)]
        return _curve(logits, line_of_row, next_value, (table[0, 0], table[0, -1]))
    # Without XLA, every operation is a pass over the rows: the fewer, the better.
    line_of_row = ops.take(_with_highest(table), line, axis=1)
    knot, value, slope, highest = ops.unstack(line_of_row, 4)
    return ops.minimum(value + (logits - knot) * slope, highest)


def _with_highest(table: Tensor) -> Tensor:
    """The lines with the highest that the curve may be on each, (4, K)."""
    highest = ops.where(table[2, :-1] < 0, math.inf, table[1, 1:])
    highest = ops.append(highest, ops.full_like(highest[:1], math.inf))
    return ops.concatenate([table, highest[None]])


def _by_search(logits: Tensor, table: Tensor) -> tuple[Tensor, LineOfRows]:
    """Curve, line, knot and slope of each row, found by halving and read together."""
    line, _ = _search(logits, table[0])
    line_of_row = _rows_read(ops.transpose(_with_highest(table)), line)
    knot, value, slope, highest = ops.unstack(line_of_row, 4, axis=1)
    curve = ops.minimum(value + (logits - knot) * slope, highest)
    return curve, lambda: (*_search(logits, table[0], again=True), slope)


def _search(logits: Tensor, knots: Tensor, again: bool = False) -> tuple[Tensor, Tensor]:
    """The line of each row, int32, and its knot.

    With `again`, XLA does not recognize the same comparisons. It would otherwise keep the line of
    each row in memory, although a second search is faster.
    """

    def is_past(knot: Tensor) -> Tensor:
        return knot <= logits if again else logits >= knot

    num_knots = knots.shape[0]
    if num_knots <= _MOST_SEARCHED_TOGETHER:
        return _last_passed(ops.unstack(knots, num_knots), is_past)
    size = math.isqrt(num_knots - 1) + 1
    num_groups = -(-num_knots // size)
    missing = ops.full_like(knots[: num_groups * size - num_knots], math.inf)
    groups = ops.reshape(ops.concatenate([knots, missing]), (num_groups, size))
    group, _ = _last_passed(ops.unstack(groups[:, 0], num_groups), is_past)
    if again:
        # XLA keeps the group in memory, because two tables are read one after the other: one byte.
        group = ops.cast(ops.cast(group, "uint8"), "int32")
    group_values = ops.unstack(_rows_read(groups, group), size, axis=1)
    place, knot = _last_passed(group_values, is_past)
    return group * size + place, knot


def _rows_read(table: Tensor, places: Tensor) -> Tensor:
    """The rows of a table at places that are in it."""
    # On JAX, `take` also writes NaN for places beyond the table.
    return table[places] if keras.backend.backend() == "jax" else ops.take(table, places, axis=0)


def _last_passed(
    knots: Sequence[Tensor], is_past: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """The last of the knots that are passed, or else the first: its place, int32, and itself."""
    place: Tensor = 0
    while len(knots) > 1:
        half = (len(knots) + 1) // 2
        right = [*knots[half:], math.inf][:half]
        is_right = is_past(knots[half])
        place = place + ops.where(is_right, half, 0)
        knots = [ops.where(is_right, b, a) for a, b in zip(knots[:half], right, strict=True)]
    return place, knots[0]


def _by_bins(logits: Tensor, table: Tensor) -> tuple[Tensor, LineOfRows]:
    """Curve, line, knot and slope of each row, found by narrow bins of logits.

    A table holds the number of lines that begin left of each bin; a comparison with the knot inside
    the bin does the rest. The width is a power of two, which makes bin numbers exact. Where two
    knots share a bin, or rows are too few to pay for the table, knots are counted.
    """
    starts = table[0, 1:]
    powers = ops.cast(_BINS_PER_UNIT, starts.dtype)
    per_unit = ops.max(ops.where(powers * (starts[-1] - starts[0]) <= _NUM_BINS - 2, powers, 0))
    # In one array: XLA moves only array reads out of its loop over the rows.
    grid = ops.stack([per_unit, ops.floor(starts[0] * per_unit)])

    def bin_number(logits: Tensor) -> Tensor:
        position = ops.clip(ops.floor(logits * grid[0]) - grid[1], 0, _NUM_BINS - 1)
        # A cast NaN can be any integer.
        return ops.clip(ops.cast(position, "int32"), 0, _NUM_BINS - 1)

    bin_of_starts = bin_number(starts)
    is_left = bin_of_starts[:, None] < np.arange(_NUM_BINS, dtype=np.int32)
    num_left = ops.sum(ops.cast(is_left, "int32"), axis=0)
    # No logit is greater than NaN, not even infinity.
    next_start = ops.take(ops.append(starts, ops.full_like(starts[:1], math.nan)), num_left)
    is_exact = ops.logical_and(
        ops.size(logits) >= _MANY_FOR_BINS, ops.all(bin_of_starts[1:] > bin_of_starts[:-1])
    )

    def line() -> Tensor:
        number = bin_number(logits)
        is_past = logits >= ops.take(next_start, number)
        return ops.take(num_left, number) + ops.cast(is_past, "int32")

    curve = ops.cond(
        is_exact, lambda: _read(logits, table, line()), lambda: _by_table(logits, table)[0]
    )

    def line_of_rows() -> tuple[Tensor, Tensor, Tensor]:
        line_of_row = ops.cond(is_exact, line, lambda: _line(logits, table[0]))
        return line_of_row, ops.take(table[0], line_of_row), ops.take(table[2], line_of_row)

    return curve, line_of_rows


def _line(logits: Tensor, knots: Tensor) -> Tensor:
    """The number of knots after the first that are at or left of each logit, int32."""
    if knots.shape[0] > _MOST_COUNTED_KNOTS:
        return ops.searchsorted(knots[1:], logits, side="right")
    line = ops.zeros_like(logits, dtype="int32")
    for start in range(1, knots.shape[0], _COUNTED_TOGETHER):
        # LiteRT does not accept a slice past the end.
        group = knots[start : min(start + _COUNTED_TOGETHER, knots.shape[0])]
        if keras.backend.backend() == "tensorflow":
            line = line + ops.searchsorted(group, logits, side="right")
        else:
            line = line + ops.sum(ops.cast(logits[:, None] >= group, "int32"), axis=1)
    return line


def _sums_by_line(
    first: Tensor, second: Tensor, line: Tensor, num_lines: int
) -> tuple[Tensor, Tensor]:
    """Sums of two columns over the rows of each line, first in interleaved parts."""
    few = line.shape[0] is not None and line.shape[0] < _FEW_ROWS
    num_lanes = _NUM_LANES_OF_FEW_ROWS if few else _NUM_LANES
    lane = ops.arange(ops.shape(line)[0], dtype="int32") % num_lanes
    rows = side_by_side([first, second])
    sums = ops.segment_sum(rows, line + lane * num_lines, num_segments=num_lanes * num_lines)
    sums = ops.sum(ops.reshape(sums, (num_lanes, num_lines, 2)), axis=0)
    return sums[:, 0], sums[:, 1]


def slopes(knots: Tensor, values: Tensor) -> Tensor:
    """Slope of each segment, K - 1 in all: `(b_{k+1} - b_k) / (a_{k+1} - a_k)`."""
    return (values[1:] - values[:-1]) / (knots[1:] - knots[:-1])


def decrease_penalty(values: Tensor) -> Tensor:
    """How much the values decrease, `Σ_k (b_k - b_{k+1})₊`, a scalar.

    Reference:
        Pan et al., *Field-aware Calibration*, WWW 2020, eq. 11.
    """
    return ops.sum(ops.relu(values[:-1] - values[1:]))


def isotonic_values(values: Tensor) -> Tensor:
    """The closest non-decreasing values in the maximum norm, as a differentiable tensor (K,).

    It is the mean of the running maximum from the left and the running minimum from the right.
    Values that do not decrease are returned unchanged, to the last bit.
    """
    values = ops.convert_to_tensor(values)
    # Without `flip`, whose negative stride LiteRT does not convert.
    later = np.tri(values.shape[0], dtype=bool).T
    smallest_later = ops.min(ops.where(later, values[None, :], math.inf), axis=1)
    return 0.5 * (running_maximum(values) + smallest_later)


def running_maximum(values: Tensor) -> Tensor:
    """The maximum of each value and those before it, (K,)."""
    earlier = np.tri(values.shape[0], dtype=bool)
    return ops.max(ops.where(earlier, values[None, :], -math.inf), axis=1)


def slope_change_penalty(knots: Tensor, values: Tensor) -> Tensor:
    """Half the squared changes of slope, `½ Σ_k (s_{k+1} - s_k)²`, a scalar.

    It is the negative log density of a Gaussian prior of unit precision on the changes of slope,
    and 0 for every straight line: a strong prior leaves Platt scaling.
    """
    segment_slopes = slopes(knots, values)
    changes = segment_slopes[1:] - segment_slopes[:-1]
    return 0.5 * ops.sum(ops.square(changes))


def hat_basis(values: Tensor, knots: Tensor) -> Tensor:
    """The K hat functions of a value, (n, K): 1 at their own knot, 0 at the others, else linear.

    Every curve that is linear between the knots and constant outside them is a weighted sum of
    these. Each row sums to 1, or to 0 where the value is missing (NaN). A repeated knot has an
    empty hat.
    """
    values, knots = ops.convert_to_tensor(values), ops.convert_to_tensor(knots)
    present = ops.logical_not(ops.isnan(values))[:, None]
    position = values[:, None] - knots[None, :-1]
    # The gap to the next greater knot; a repeated knot leaves its segment to its first occurrence.
    following = ops.searchsorted(knots, knots[:-1], side="right")
    gap = ops.take(knots, ops.minimum(following, knots.shape[0] - 1)) - knots[:-1]
    # How far the value is into each segment, from 0 to 1; 0 for empty segments.
    passed = ops.clip(ops.divide_no_nan(position, gap), 0.0, 1.0)
    one = ops.ones_like(passed[:, :1])
    rising = ops.concatenate([one, passed], axis=1)
    falling = ops.concatenate([passed, ops.zeros_like(one)], axis=1)
    return ops.where(present, rising - falling, 0.0)
