"""Piecewise-linear curves on knots: evaluation, slopes, penalties and the hat basis.

Everything here is a plain function on tensors, in `keras.ops`, and compiles under XLA.

What runs where: the line of a logit is given by the number of knots at or left of it. XLA fuses
what goes row by row into one loop over memory, but no search, no table read and no sum. So where it
compiles (`jax.jit`; on TensorFlow a function with `jit_compile=True`) and knots are few, each row
takes its line by comparing with one knot after the other: the same arithmetic as by table, in half
the time. Operations that run one by one would write every comparison out: there, and with more
knots, a row reads its line from a table. The count that this needs is a binary search, though up to
256 knots XLA compares with all of them, 32 at a time (it takes longer sums apart), and so does JAX,
whose search is a loop.

The gradient is written out: autodiff would add up every table read by itself. Two columns are
summed by line in 512 interleaved parts: float32 stays accurate over many rows, the order of the sum
is fixed, and no addition waits for the one before.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calibration.ops.compiled import is_compiled

_COUNTED_TOGETHER = 32
_MOST_COUNTED_KNOTS = 256
_MOST_CHOSEN_KNOTS = 32
_FEW_ROWS = 1 << 18
_NUM_LANES_OF_FEW_ROWS, _NUM_LANES = 64, 512


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
    return ops.reshape(ops.custom_gradient(_on_lines)(rows, table), ops.shape(logits))


def lines(knots: Any, values: Any) -> Any:
    """The line to the right of each knot: knot, value, slope and room (4, K).

    The room is how far a line may go above the value at the next knot: not at all where it rises,
    for rounding may carry its end just past where the next one starts; else infinitely far.

    Args:
        knots: Increasing knots a (K,).
        values: Values b (K,).

    Returns:
        A tensor (4, K); the last line goes on with the slope of the last segment.

    Example:
        >>> print(ops.convert_to_numpy(lines(ops.array([0.0, 1.0]), ops.array([0.0, 2.0]))))
        [[ 0.  1.]
         [ 0.  2.]
         [ 2.  2.]
         [ 0. inf]]
    """
    knots, values = ops.convert_to_tensor(knots), ops.convert_to_tensor(values)
    of_segments = slopes(knots, values)
    of_lines = ops.concatenate([of_segments, of_segments[-1:]])
    is_open = ops.logical_or(of_lines < 0, np.arange(knots.shape[0]) == knots.shape[0] - 1)
    room = ops.where(is_open, ops.cast(math.inf, of_lines.dtype), ops.zeros_like(of_lines))
    # TensorFlow stacks Keras variables along the last axis only.
    return ops.transpose(ops.stack([knots, values, of_lines, room], axis=1))


def _on_lines(logits: Any, table: Any) -> tuple[Any, Any]:
    """`min(b_k + (l - a_k) s_k, b_{k+1} + room_k)`, k the last knot left of l; its gradient."""
    by_choice = table.shape[1] <= _MOST_CHOSEN_KNOTS and is_compiled(logits)
    curve, line_of_rows = (_chosen if by_choice else _looked_up)(logits, table)

    def gradient(*upstream: Any, **by_keyword: Any) -> tuple[Any, Any]:
        (by_curve,) = upstream or by_keyword.values()
        line, knot, slope = line_of_rows()
        by_value, by_slope = _sums_by_line(
            by_curve, by_curve * (logits - knot), line, table.shape[1]
        )
        by_table = [-table[2] * by_value, by_value, by_slope, ops.zeros_like(by_value)]
        return by_curve * slope, ops.stack(by_table, axis=0)

    return curve, gradient


def _chosen(logits: Any, table: Any) -> tuple[Any, Callable[[], tuple[Any, Any, Any]]]:
    """The curve, and line, knot and slope of each row, by comparing with each knot in turn."""
    knots, values, line_slopes, room = (
        ops.unstack(row, table.shape[1]) for row in ops.unstack(table, 4)
    )

    def choose(of_lines: Sequence[Any]) -> Any:
        chosen = of_lines[0]
        for knot, of_line in zip(knots[1:], of_lines[1:], strict=True):
            chosen = ops.where(logits >= knot, of_line, chosen)
        return chosen

    curves = [
        ops.minimum(value + (logits - knot) * slope, next_value + above)
        for knot, value, slope, next_value, above in zip(
            knots, values, line_slopes, [*values[1:], values[-1]], room, strict=True
        )
    ]
    # Each anew: XLA then fuses it into what it is used for.
    return choose(curves), lambda: (choose(range(len(knots))), choose(knots), choose(line_slopes))


def _looked_up(logits: Any, table: Any) -> tuple[Any, Callable[[], tuple[Any, Any, Any]]]:
    """The curve, and line, knot and slope of each row, by its row of the table."""
    line = _line(logits, table[0])
    knot, value, slope, room = ops.unstack(ops.take(table, line, axis=1), 4, axis=0)
    # From the table too: XLA may round what it computes twice in two ways.
    next_value = ops.take(table[1], ops.minimum(line + 1, table.shape[1] - 1))
    curve = ops.minimum(value + (logits - knot) * slope, next_value + room)
    # Read anew: XLA then fuses each of the two into what it is used for.
    return curve, lambda: (line, ops.take(table[0], line), ops.take(table[2], line))


def _line(logits: Any, knots: Any) -> Any:
    """How many knots after the first are at or left of each logit, int32."""
    if knots.shape[0] > _MOST_COUNTED_KNOTS:
        return ops.searchsorted(knots[1:], logits, side="right")
    line = ops.zeros_like(logits, dtype="int32")
    for start in range(1, knots.shape[0], _COUNTED_TOGETHER):
        some = knots[start : start + _COUNTED_TOGETHER]
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
