"""Piecewise-linear curves on knots: evaluation, slopes, penalties and the hat basis.

Everything here is a plain function on tensors, in `keras.ops`, and compiles under XLA.

What runs where: the line of a logit is given by the number of knots at or left of it. XLA fuses
what goes row by row into one loop over memory, but no search and no sum. So where it compiles
(`jax.jit`; on TensorFlow a function with `jit_compile=True`), on any device:

- up to 32 knots, each row compares with the first knots of four groups of lines, then with the
  knots of its own group, choosing knot, value and slope as it goes: no table is read;
- with more knots and many rows, a table of narrow bins of logits gives the line but for a knot
  within the bin, with which the row compares. Where knots are too close for that, or rows too few
  to pay for the table, the knots are counted: XLA compares with up to 256 of them, 32 at a time
  (it takes longer sums apart), and so does JAX, whose search is a loop.

Operations that run one by one would write every comparison out: there a binary search counts, and
one table is read. All ways give the same curve, that of the plain formula.

The gradient is written out: autodiff would add up every table read by itself. Two columns are
summed by line in 512 interleaved parts: float32 stays accurate over many rows, the order of the sum
is fixed on a CPU, and no addition waits for the one before. On a GPU, where additions are atomic,
the parts keep rows that run side by side from meeting in one sum.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calibration.ops.compiled import is_compiled
from keras_calibration.ops.custom_gradients import with_gradient

_COUNTED_TOGETHER = 32
_MOST_COUNTED_KNOTS = 256
_MOST_CHOSEN_KNOTS = 32
_NUM_GROUPS = 4
_NUM_BINS = 4096
_BINS_PER_UNIT = np.exp2(np.arange(-30, 31)).astype("float32")
_MANY_FOR_BINS = 1 << 16
_FEW_ROWS = 1 << 18
_NUM_LANES_OF_FEW_ROWS, _NUM_LANES = 64, 512


# Line, knot and slope of each row.
LineOfRows = Callable[[], tuple[Any, Any, Any]]


def piecewise_linear(logits: Any, knots: Any, values: Any, extrapolation: str = "linear") -> Any:
    """Evaluates the piecewise-linear curve through the points `(a_k, b_k)`.

    Between knots, `η(l) = b_k + (l - a_k) (b_{k+1} - b_k) / (a_{k+1} - a_k)`. Outside them the end
    segments go on (`"linear"`), or the curve stays at its end values (`"constant"`). NaN gives NaN.
    Values that do not fall give a curve that does not fall, to the last bit: rounding included.

    The gradient with respect to `values` is dense (not `IndexedSlices`): Keras' Adam, RMSprop and
    Adagrad take a wrong second moment from sparse gradients with repeated indices.

    Args:
        logits: Float tensor of any shape.
        knots: Increasing knots a (K,), K ≥ 2, of the same dtype.
        values: Values b at the knots (K,), of the same dtype.
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
        # The comparison keeps NaN, which a clip may turn into an end of the range.
        rows = ops.where(ops.isnan(rows), rows, ops.clip(rows, knots[0], knots[-1]))
    table = lines(knots, values)
    return ops.reshape(with_gradient(_on_lines)(rows, table), ops.shape(logits))


def lines(knots: Any, values: Any) -> Any:
    """The line to the right of each knot: knot, value and slope (3, K).

    Args:
        knots: Increasing knots a (K,).
        values: Values b (K,).

    Returns:
        A tensor (3, K); the last line goes on with the slope of the last segment.

    Example:
        >>> print(ops.convert_to_numpy(lines(ops.array([0.0, 1.0]), ops.array([0.0, 2.0]))))
        [[0. 1.]
         [0. 2.]
         [2. 2.]]
    """
    knots, values = ops.convert_to_tensor(knots), ops.convert_to_tensor(values)
    of_segments = slopes(knots, values)
    # TensorFlow stacks Keras variables along the last axis only.
    columns = [knots, values, ops.concatenate([of_segments, of_segments[-1:]])]
    return ops.transpose(ops.stack(columns, axis=1))


def _on_lines(logits: Any, table: Any) -> tuple[Any, Any]:
    """The curve of the lines, and its gradient."""
    curve, line_of_rows = _way(logits, table)(logits, table)

    def gradient(*upstream: Any, **by_keyword: Any) -> tuple[Any, Any]:
        (by_curve,) = upstream or by_keyword.values()
        line, knot, slope = line_of_rows()
        by_value, by_slope = _sums_by_line(
            by_curve, by_curve * (logits - knot), line, table.shape[1]
        )
        by_table = [-table[2] * by_value, by_value, by_slope]
        return by_curve * slope, ops.stack(by_table, axis=0)

    return curve, gradient


def _way(logits: Any, table: Any) -> Callable[[Any, Any], tuple[Any, LineOfRows]]:
    """How the rows find their lines, by what measures best."""
    if not is_compiled(logits):
        return _looked_up
    if table.shape[1] <= _MOST_CHOSEN_KNOTS:
        return _chosen
    are_few = logits.shape[0] is not None and logits.shape[0] < _MANY_FOR_BINS
    return _looked_up if are_few else _binned


def _curve(logits: Any, line: Sequence[Any], next_value: Any, ends: tuple[Any, Any]) -> Any:
    """`b_k + (l - a_k) s_k`, between the end knots at most `max(b_k, b_{k+1})`.

    Rounding may carry the end of a rising line just past where the next one starts.
    """
    knot, value, slope = line
    is_outside = ops.logical_or(logits < ends[0], logits >= ends[1])
    highest = ops.where(is_outside, math.inf, ops.maximum(value, next_value))
    return ops.minimum(value + (logits - knot) * slope, highest)


def _chosen(logits: Any, table: Any) -> tuple[Any, LineOfRows]:
    """The curve, and line, knot and slope of each row, by comparing with knots.

    First with the first knot of each group of lines, then with the knots of the row's own group.
    """
    num_lines = table.shape[1]
    group_size = -(-num_lines // _NUM_GROUPS)
    knots, values, line_slopes = (ops.unstack(row, num_lines) for row in ops.unstack(table, 3))

    def chosen(conditions: Sequence[Any], of_cases: Sequence[Any]) -> Any:
        """The last of the cases whose condition holds; the first has none."""
        result = of_cases[0]
        for condition, of_case in zip(conditions, of_cases[1:], strict=True):
            result = ops.where(condition, of_case, result)
        return result

    def of_group(of_lines: Sequence[Any]) -> list[Any]:
        """What the lines of each row's group have; the last line fills the last group up."""
        filled = [*of_lines, *[of_lines[-1]] * (_NUM_GROUPS * group_size - num_lines)]
        return [chosen(starts, filled[place::group_size]) for place in range(group_size)]

    starts = [
        logits >= knots[min(group * group_size, num_lines - 1)] for group in range(1, _NUM_GROUPS)
    ]
    passed = [logits >= knot for knot in of_group(knots)[1:]]

    def choose(of_lines: Sequence[Any]) -> Any:
        return chosen(passed, of_group(of_lines))

    def line() -> Any:
        first = chosen(starts, range(0, _NUM_GROUPS * group_size, group_size))
        return ops.minimum(first + chosen(passed, range(group_size)), num_lines - 1)

    next_value = choose([*values[1:], values[-1]])
    curve = _curve(
        logits, [*map(choose, (knots, values, line_slopes))], next_value, (knots[0], knots[-1])
    )
    # Each anew: XLA then fuses it into what it is used for.
    return curve, lambda: (line(), choose(knots), choose(line_slopes))


def _looked_up(logits: Any, table: Any) -> tuple[Any, LineOfRows]:
    """The curve, and line, knot and slope of each row, by its row of the table."""
    line = _line(logits, table[0])
    # Read anew: XLA then fuses each of the two into what it is used for.
    return _read(logits, table, line), lambda: (
        line,
        ops.take(table[0], line),
        ops.take(table[2], line),
    )


def _read(logits: Any, table: Any, line: Any) -> Any:
    """The curve by the line of each row."""
    if is_compiled(logits):
        # All from the table itself: XLA may round what it computes twice in two ways.
        next_value = ops.take(table[1], ops.minimum(line + 1, table.shape[1] - 1))
        of_line = [ops.take(row, line) for row in ops.unstack(table, 3)]
        return _curve(logits, of_line, next_value, (table[0, 0], table[0, -1]))
    # Operations one by one: the fewer pass over the rows, the better.
    highest = ops.where(table[2, :-1] < 0, math.inf, table[1, 1:])
    highest = ops.append(highest, ops.full_like(highest[:1], math.inf))
    of_line = ops.take(ops.concatenate([table, highest[None]]), line, axis=1)
    knot, value, slope, highest = ops.unstack(of_line, 4)
    return ops.minimum(value + (logits - knot) * slope, highest)


def _binned(logits: Any, table: Any) -> tuple[Any, LineOfRows]:
    """The curve, and line, knot and slope of each row, by narrow bins of logits.

    A table tells how many lines begin left of each bin; a comparison with the knot within the bin
    does the rest. The width is a power of two, which makes the number of a bin exact. Where two
    knots share a bin, or rows are too few to be worth the table, the lines are counted.
    """
    starts = table[0, 1:]
    powers = ops.cast(_BINS_PER_UNIT, starts.dtype)
    per_unit = ops.max(ops.where(powers * (starts[-1] - starts[0]) <= _NUM_BINS - 2, powers, 0))
    # Side by side: XLA takes only what it reads from an array out of its loop over the rows.
    grid = ops.stack([per_unit, ops.floor(starts[0] * per_unit)])

    def bin_number(logits: Any) -> Any:
        position = ops.clip(ops.floor(logits * grid[0]) - grid[1], 0, _NUM_BINS - 1)
        # NaN turns into an integer of any size.
        return ops.clip(ops.cast(position, "int32"), 0, _NUM_BINS - 1)

    bin_of_starts = bin_number(starts)
    is_left = bin_of_starts[:, None] < np.arange(_NUM_BINS, dtype=np.int32)
    num_left = ops.sum(ops.cast(is_left, "int32"), axis=0)
    # Nothing is past NaN, not even infinity.
    next_start = ops.take(ops.append(starts, ops.full_like(starts[:1], math.nan)), num_left)
    is_exact = ops.logical_and(
        ops.size(logits) >= _MANY_FOR_BINS, ops.all(bin_of_starts[1:] > bin_of_starts[:-1])
    )

    def line() -> Any:
        number = bin_number(logits)
        is_past = logits >= ops.take(next_start, number)
        return ops.take(num_left, number) + ops.cast(is_past, "int32")

    curve = ops.cond(
        is_exact, lambda: _read(logits, table, line()), lambda: _looked_up(logits, table)[0]
    )

    def line_of_rows() -> tuple[Any, Any, Any]:
        of_rows = ops.cond(is_exact, line, lambda: _line(logits, table[0]))
        return of_rows, ops.take(table[0], of_rows), ops.take(table[2], of_rows)

    return curve, line_of_rows


def _line(logits: Any, knots: Any) -> Any:
    """How many knots after the first are at or left of each logit, int32."""
    if knots.shape[0] > _MOST_COUNTED_KNOTS:
        return ops.searchsorted(knots[1:], logits, side="right")
    line = ops.zeros_like(logits, dtype="int32")
    for start in range(1, knots.shape[0], _COUNTED_TOGETHER):
        # LiteRT takes no slice past the end.
        some = knots[start : min(start + _COUNTED_TOGETHER, knots.shape[0])]
        if keras.backend.backend() == "tensorflow":
            line = line + ops.searchsorted(some, logits, side="right")
        else:
            line = line + ops.sum(ops.cast(logits[:, None] >= some, "int32"), axis=1)
    return line


def _sums_by_line(first: Any, second: Any, line: Any, num_lines: int) -> tuple[Any, Any]:
    """Sums of two columns over the rows of each line, in interleaved parts that are then added."""
    few = line.shape[0] is not None and line.shape[0] < _FEW_ROWS
    num_lanes = _NUM_LANES_OF_FEW_ROWS if few else _NUM_LANES
    lane = ops.arange(ops.shape(line)[0], dtype="int32") % num_lanes
    # Three times as fast under XLA as stacking them side by side.
    rows = ops.transpose(ops.stack([first, second], axis=0))
    sums = ops.segment_sum(rows, line + lane * num_lines, num_segments=num_lanes * num_lines)
    sums = ops.sum(ops.reshape(sums, (num_lanes, num_lines, 2)), axis=0)
    return sums[:, 0], sums[:, 1]


def slopes(knots: Any, values: Any) -> Any:
    """Slope of each segment: `(b_{k+1} - b_k) / (a_{k+1} - a_k)`.

    Args:
        knots: Increasing knots a (K,).
        values: Values b (K,).

    Returns:
        K - 1 slopes.

    Example:
        >>> print(slopes(ops.array([0.0, 1.0, 3.0]), ops.array([0.0, 2.0, 2.0])).numpy())
        [2. 0.]
    """
    return (values[1:] - values[:-1]) / (knots[1:] - knots[:-1])


def decrease_penalty(values: Any) -> Any:
    """How much a sequence falls: `Σ_k (b_k - b_{k+1})₊`, 0 where it never does.

    Args:
        values: Values b at the knots (K,).

    Returns:
        A scalar.

    Example:
        >>> float(decrease_penalty(ops.array([0.0, 2.0, 1.5, 3.0])))
        0.5

    Reference:
        Pan et al., *Field-aware Calibration*, WWW 2020, eq. 11.
    """
    return ops.sum(ops.relu(values[:-1] - values[1:]))


def isotonic_values(values: Any) -> Any:
    """The closest non-decreasing sequence in the maximum norm, as a differentiable tensor.

    It is the mean of the running maximum from the left and the running minimum from the right.
    Values that do not fall come out as they are, to the last bit.

    Args:
        values: Values at the knots (K,).

    Returns:
        A tensor (K,) that does not fall.

    Example:
        >>> print(ops.convert_to_numpy(isotonic_values(ops.array([0.0, 2.0, 1.0, 3.0]))))
        [0.  1.5 1.5 3. ]
    """
    values = ops.convert_to_tensor(values)
    # Without `flip`, whose negative stride LiteRT does not convert.
    later = np.tri(values.shape[0], dtype=bool).T
    smallest_later = ops.min(ops.where(later, values[None, :], math.inf), axis=1)
    return 0.5 * (running_maximum(values) + smallest_later)


def running_maximum(values: Any) -> Any:
    """The largest of each value and those before it.

    Args:
        values: Values (K,).

    Returns:
        A tensor (K,).

    Example:
        >>> print(ops.convert_to_numpy(running_maximum(ops.array([0.0, 2.0, 1.0]))))
        [0. 2. 2.]
    """
    earlier = np.tri(values.shape[0], dtype=bool)
    return ops.max(ops.where(earlier, values[None, :], -math.inf), axis=1)


def slope_change_penalty(knots: Any, values: Any) -> Any:
    """Half the squared changes of slope: `½ Σ_k (s_{k+1} - s_k)²`.

    The negative log density of a Gaussian prior of unit precision on the changes of slope. It is 0
    for every straight line, so that a strong prior leaves Platt scaling.

    Args:
        knots: Increasing knots a (K,).
        values: Values b (K,).

    Returns:
        A scalar.

    Example:
        >>> float(slope_change_penalty(ops.array([0.0, 1.0, 3.0]), ops.array([0.0, 2.0, 2.0])))
        2.0
    """
    segment_slopes = slopes(knots, values)
    changes = segment_slopes[1:] - segment_slopes[:-1]
    return 0.5 * ops.sum(ops.square(changes))


def hat_basis(values: Any, knots: Any) -> Any:
    """The K hat functions of a real value: 1 at their own knot, 0 at the others, linear between.

    Any curve that is linear between the knots and constant outside them is a weighted sum of these.
    A repeated knot has an empty hat. A missing value (NaN) has every hat at 0.

    Args:
        values: Float tensor (n,), NaN for missing.
        knots: Knots (K,), not decreasing, of the same dtype.

    Returns:
        A tensor (n, K): each row is not negative and sums to 1, or is 0 where the value is missing.

    Example:
        >>> print(hat_basis([0.25, 9.0], [0.0, 1.0, 2.0]).numpy())
        [[0.75 0.25 0.  ]
         [0.   0.   1.  ]]
    """
    values, knots = ops.convert_to_tensor(values), ops.convert_to_tensor(knots)
    present = ops.logical_not(ops.isnan(values))[:, None]
    position = values[:, None] - knots[None, :-1]
    # To the next greater knot: a repeated knot passes its segment on to its first occurrence.
    following = ops.searchsorted(knots, knots[:-1], side="right")
    gap = ops.take(knots, ops.minimum(following, knots.shape[0] - 1)) - knots[:-1]
    # How far the value has gone through each segment, from 0 to 1; never into an empty one.
    passed = ops.clip(ops.divide_no_nan(position, gap), 0.0, 1.0)
    one = ops.ones_like(passed[:, :1])
    rising = ops.concatenate([one, passed], axis=1)
    falling = ops.concatenate([passed, ops.zeros_like(one)], axis=1)
    return ops.where(present, rising - falling, 0.0)
