"""Piecewise-linear curves on knots: evaluation, slopes, penalties and the hat basis.

**The line of a row** is the number of knots at or left of its logit. XLA fuses element-wise
operations into one loop over memory, but neither searches nor sums. So where XLA compiles
(`jax.jit`, or `jit_compile=True` on TensorFlow), knots are halved: each comparison with the middle
one of the remaining knots rules out half of them.

- On a CPU, up to 32 knots are halved together with their values and slopes, and no table is read.
  Up to 256 knots are halved to find the line, and then, in a second loop over the rows, its numbers
  are read from a table. The lines of more knots are found by a search.
- On a GPU, a kernel that computes more is faster than two kernels that pass arrays through memory.
  One row of a table holds all numbers of a line. With more than 32 knots, a group of knots is found
  first, whose knots are a row of another table. The sums of the gradient search the lines again.

Without XLA, every comparison would be a pass over memory. Few rows are compared with all knots at
once, which needs only built-in operations of LiteRT; many rows are searched. All variants give the
same curve.

**The gradient** is written by hand, because autodiff would sum every table read separately. Knots
are constants, without a gradient.

- Two columns are summed by line in interleaved parts. This keeps float32 accurate over many rows,
  fixes the order of the sum on a CPU, and keeps additions from waiting for each other.
- On a GPU, additions to an address are atomic, and still wait. Up to 32 knots need none: the sum of
  each hat function is the difference of two sums over all rows, which XLA computes in one pass. For
  fewer than 262,144 rows, XLA would launch a kernel for each sum: they are summed by line too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import keras
import numpy as np
from keras import ops

from keras_calibration._ops.compiled import is_compiled, runs_on_gpu
from keras_calibration._ops.custom_gradients import with_gradient
from keras_calibration._ops.sums_by_cell import sums_by_cell
from keras_calibration._typing import Tensor

_FEW_KNOTS, _MOST_HALVED_KNOTS, _MOST_SEARCHED_KNOTS = 32, 256, 1024
_MOST_COMPARISONS = 1 << 22  # of all rows with all knots
_FEW_ROWS = 1 << 18
_NUM_PARTS_OF_FEW_ROWS, _NUM_PARTS, _NUM_PARTS_ON_GPU = 64, 512, 4096
_MOST_SUMS_ON_GPU = 1 << 19

# Line, knot and slope of each row.
LineOfRows = Callable[[], tuple[Tensor, Tensor, Tensor]]


def piecewise_linear(
    logits: Tensor, knots: Tensor, values: Tensor, extrapolation: str = "linear"
) -> Tensor:
    """Evaluates the piecewise-linear curve through the points `(a_k, b_k)`.

    Between knots, `η(l) = b_k + (l - a_k) (b_{k+1} - b_k) / (a_{k+1} - a_k)`. Outside them, the end
    segments continue (`"linear"`), or the curve keeps its end values (`"constant"`). NaN gives NaN.
    If the values do not decrease, neither does the curve, not even by rounding.

    The knots are constants, without a gradient. The gradient with respect to `values` is dense (no
    `IndexedSlices`): Keras' Adam, RMSprop and Adagrad compute a wrong second moment from sparse
    gradients with repeated indices.

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
    logits, knots, values = map(ops.convert_to_tensor, (logits, knots, values))
    knots = ops.stop_gradient(knots)
    rows = ops.reshape(logits, (-1,))
    if extrapolation == "constant":
        # Keeps NaN, which a clip may turn into an end of the range.
        rows = ops.where(ops.isnan(rows), rows, ops.clip(rows, knots[0], knots[-1]))
    return ops.reshape(
        with_gradient(_evaluate_lines)(rows, lines(knots, values)), ops.shape(logits)
    )


def lines(knots: Tensor, values: Tensor) -> Tensor:
    """The line to the right of each knot, (3, K): knot, value and slope; the last slope repeats."""
    knots, values = map(ops.convert_to_tensor, (knots, values))
    segment_slopes = slopes(knots, values)
    # TensorFlow can stack Keras variables along the last axis only.
    columns = [knots, values, ops.concatenate([segment_slopes, segment_slopes[-1:]])]
    return ops.transpose(ops.stack(columns, axis=1))


def _evaluate_lines(logits: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """The curve of the lines, and its gradient."""
    num_lines = table.shape[1]
    find = _choose_search(logits, table)
    curve, line_of_rows = find(logits, table)

    def gradient(*upstream: Tensor, **by_keyword: Tensor) -> tuple[Tensor, Tensor]:
        (by_curve,) = upstream or by_keyword.values()
        line, knot, slope = line_of_rows()
        if find is _find_by_search and num_lines <= _FEW_KNOTS and not _are_few(logits):
            by_value = _sum_hats(by_curve, logits, table[0])
            by_slope = ops.zeros_like(by_value)  # `by_value` includes it
        else:
            # The curve is b + (l - a) s: of its gradient g, b gets Σ g and s gets Σ g (l - a).
            columns = [by_curve, by_curve * (logits - knot)]
            sums = sums_by_cell(columns, line, num_lines, _choose_num_parts(line, num_lines))
            by_value, by_slope = ops.unstack(sums, 2, axis=1)
        return by_curve * slope, ops.stack([ops.zeros_like(by_value), by_value, by_slope])

    return curve, gradient


def _choose_search(
    logits: Tensor, table: Tensor
) -> Callable[[Tensor, Tensor], tuple[Tensor, LineOfRows]]:
    """The fastest way to find the lines of the rows, as measured."""
    if not is_compiled(logits):
        return _find_without_xla
    if runs_on_gpu() and table.shape[1] <= _MOST_SEARCHED_KNOTS:
        return _find_by_search
    return _find_by_comparison if table.shape[1] <= _FEW_KNOTS else _find_by_table


def curve_on(logits: Tensor, line: Sequence[Tensor], has_bounds: bool = False) -> Tensor:
    """`b_k + (l - a_k) s_k`, at most `b_{k+1}`, the last of `line`, unless that is below `b_k`.

    Rounding could lift the end of a rising line above the start of the next. With `has_bounds`, the
    last of `line` is infinite where it is no bound.
    """
    knot, value, slope, following = line
    curve = value + (logits - knot) * slope
    bounded = ops.minimum(curve, following)
    return bounded if has_bounds else ops.where(following < value, curve, bounded)


def _mark_unbounded(value: Tensor) -> Tensor:
    """Stands for "no upper bound" after the last knot. Infinity would spoil quantized tables."""
    # `curve_on` ignores a bound that is below the value at the knot.
    return -2 * ops.abs(value) - 1


def _find_by_comparison(logits: Tensor, table: Tensor) -> tuple[Tensor, LineOfRows]:
    """Curve, line, knot and slope of each row, by comparison with knots, without a table."""
    knots, values, line_slopes = (ops.unstack(row, table.shape[1]) for row in ops.unstack(table, 3))
    following = [*values[1:], _mark_unbounded(values[-1])]

    def last_passed(*columns: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        return _find_last_passed([knots, *columns], lambda knot: logits >= knot)

    _, line = last_passed(values, line_slopes, following)

    def line_of_rows() -> tuple[Tensor, Tensor, Tensor]:
        # Searched again: XLA then fuses each of them into the operation that uses it.
        place, (knot, slope) = last_passed(line_slopes)
        return place, knot, slope

    return curve_on(logits, line), line_of_rows


def _find_by_table(logits: Tensor, table: Tensor) -> tuple[Tensor, LineOfRows]:
    """Curve, line, knot and slope of each row, read from a table after a search."""
    knots = table[0]
    last = table.shape[1] - 1
    if last < _MOST_HALVED_KNOTS:
        line = _find_by_halving(logits, knots)
    else:
        line = ops.searchsorted(knots[1:], logits, side="right")
    # All from the table, because XLA may round two computations of a number differently.
    following = ops.take(table[1], ops.minimum(line + 1, last))
    following = ops.where(line < last, following, _mark_unbounded(following))
    columns = [*(ops.take(row, line) for row in ops.unstack(table, 3)), following]

    def line_of_rows() -> tuple[Tensor, Tensor, Tensor]:
        # Read again: XLA then fuses each of the two into the operation that uses it.
        return line, ops.take(knots, line), ops.take(table[2], line)

    return curve_on(logits, columns), line_of_rows


def _find_by_halving(logits: Tensor, knots: Tensor) -> Tensor:
    """The line of each row, int32, for up to 256 knots, in a loop over the rows of its own.

    XLA would put the search and the reads of the line into one loop. For CPUs without AVX-512, the
    compiler does not vectorize it, and it takes ten to twenty times as long. XLA leaves a loop
    alone whose number of turns it does not know. It is 1; were a knot NaN, so would be the curve.
    """

    def search(turn: Tensor, line: Tensor) -> Tensor:
        place, _ = _find_last_passed(
            [ops.unstack(knots, knots.shape[0])], lambda knot: logits >= knot
        )
        return ops.cast(place, "uint8")  # the fewer bytes pass through memory, the better

    num_turns = ops.cast(knots[0] == knots[0], "int32")
    start = ops.zeros_like(logits, dtype="uint8")
    return ops.cast(ops.fori_loop(0, num_turns, search, start), "int32")


def _find_without_xla(logits: Tensor, table: Tensor) -> tuple[Tensor, LineOfRows]:
    """Curve, line, knot and slope of each row; every operation is a pass over the rows."""
    knots = table[0]
    num_knots = table.shape[1]
    if num_knots <= _MOST_HALVED_KNOTS and (logits.shape[0] or 0) * num_knots <= _MOST_COMPARISONS:
        line = ops.sum(ops.cast(logits[:, None] >= knots[1:], "int32"), axis=1)
    else:
        line = ops.searchsorted(knots[1:], logits, side="right")
    columns = ops.unstack(_read_rows(ops.transpose(with_following(table)), line), 4, axis=1)
    return curve_on(logits, columns), lambda: (line, columns[0], columns[2])


def _find_by_search(logits: Tensor, table: Tensor) -> tuple[Tensor, LineOfRows]:
    """Curve, line, knot and slope of each row on a GPU."""
    following = with_following(table)[3]
    # Decided for a row instead, XLA would keep the line of each row in memory.
    bound = ops.where(following < table[1], math.inf, following)
    line, _ = _search(logits, table[0])
    lines_read = _read_rows(ops.transpose(ops.concatenate([table, bound[None]])), line)
    columns = ops.unstack(lines_read, 4, axis=1)
    return (
        curve_on(logits, columns, has_bounds=True),
        lambda: (*_search(logits, table[0], again=True), columns[2]),
    )


def with_following(table: Tensor) -> Tensor:
    """The lines with the value at the next knot, (4, K); `_mark_unbounded` after the last."""
    following = ops.append(table[1, 1:], _mark_unbounded(table[1, -1:]))
    return ops.concatenate([table, following[None]])


def _search(logits: Tensor, knots: Tensor, again: bool = False) -> tuple[Tensor, Tensor]:
    """The line of each row, int32, and its knot.

    With `again`, XLA does not recognize the same comparisons. It would otherwise keep the line of
    each row in memory, although a second search is faster.
    """

    def is_past(knot: Tensor) -> Tensor:
        return knot <= logits if again else logits >= knot

    num_knots = knots.shape[0]
    if num_knots <= _FEW_KNOTS:
        place, (knot,) = _find_last_passed([ops.unstack(knots, num_knots)], is_past)
        return place, knot
    # Two short searches in place of a long one: about √K groups of √K knots each.
    size = math.isqrt(num_knots - 1) + 1
    num_groups = -(-num_knots // size)
    missing = ops.full_like(knots[: num_groups * size - num_knots], math.inf)
    groups = ops.reshape(ops.concatenate([knots, missing]), (num_groups, size))
    group, _ = _find_last_passed([ops.unstack(groups[:, 0], num_groups)], is_past)
    if again:
        # One byte: XLA keeps the group in memory, because two tables are read one after the other.
        group = ops.cast(ops.cast(group, "uint8"), "int32")
    group_values = ops.unstack(_read_rows(groups, group), size, axis=1)
    place, (knot,) = _find_last_passed([group_values], is_past)
    return group * size + place, knot


def _read_rows(table: Tensor, places: Tensor) -> Tensor:
    """The rows of a table at places that are in it."""
    # On JAX, `take` also writes NaN for places beyond the table.
    return table[places] if keras.backend.backend() == "jax" else ops.take(table, places, axis=0)


def _find_last_passed(
    columns: Sequence[Sequence[Tensor]], is_past: Callable[[Tensor], Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """The last knot that is passed, or the first: its place, int32, and its entries of all columns.

    The first column holds the knots.
    """
    place: Tensor = 0
    while len(columns[0]) > 1:
        half = (len(columns[0]) + 1) // 2
        # Binary search of all rows at once: `where` keeps one half of each column. NaN fills up a
        # shorter right half, because no logit is past it.
        is_right = is_past(columns[0][half])
        place = place + ops.where(is_right, half, 0)
        columns = [
            [
                ops.where(is_right, right, left)
                for left, right in itertools.zip_longest(
                    column[:half], column[half:], fillvalue=math.nan
                )
            ]
            for column in columns
        ]
    return place, [column[0] for column in columns]


def _are_few(rows: Tensor) -> bool:
    return rows.shape[0] is not None and rows.shape[0] < _FEW_ROWS


def _choose_num_parts(line: Tensor, num_lines: int) -> int:
    """The number of parts in which the rows of each line are summed."""
    if _are_few(line):
        return _NUM_PARTS_OF_FEW_ROWS
    return min(_NUM_PARTS_ON_GPU, _MOST_SUMS_ON_GPU // num_lines) if runs_on_gpu() else _NUM_PARTS


def _sum_hats(rows: Tensor, logits: Tensor, knots: Tensor) -> Tensor:
    """Sums over the rows of each hat function, (K,), as `hat_basis` but with ends that continue.

    The share of a segment that lies right of a logit, 1 before and 0 behind the segment, is the sum
    of the hats of all knots up to its left end. The difference of two such sums is a single hat.
    """
    gaps = knots[1:] - knots[:-1]
    per_unit = 1 / ops.maximum(gaps, np.finfo("float32").tiny)  # an empty gap gives a step
    least = [0.0] * gaps.shape[0]
    most = [1.0] * gaps.shape[0]
    # The end segments continue beyond the knots.
    most[0] = ops.where(gaps[0] > 0, math.inf, 1.0)
    least[-1] = ops.where(gaps[-1] > 0, -math.inf, 0.0)
    sums = [
        ops.sum(rows * ops.clip((knots[k + 1] - logits) * per_unit[k], least[k], most[k]))
        for k in range(gaps.shape[0])
    ]
    return ops.diff(ops.stack([ops.zeros_like(sums[0]), *sums, ops.sum(rows)]))


def slopes(knots: Tensor, values: Tensor) -> Tensor:
    """Slope of each of K - 1 segments: `(b_{k+1} - b_k) / (a_{k+1} - a_k)`; 0 if it is empty."""
    return ops.divide_no_nan(values[1:] - values[:-1], knots[1:] - knots[:-1])


def decrease_penalty(values: Tensor) -> Tensor:
    """The total decrease of the values, `Σ_k (b_k - b_{k+1})₊`, a scalar.

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
    return 0.5 * ops.sum(ops.square(ops.diff(slopes(knots, values))))


def hat_basis(values: Tensor, knots: Tensor) -> Tensor:
    """The K hat functions of a value, (n, K): 1 at one knot, 0 at the others, linear between.

    Every curve that is linear between the knots and constant outside them is a weighted sum of
    these. Each row sums to 1, or to 0 where the value is missing (NaN). A repeated knot has an
    empty hat.
    """
    values, knots = map(ops.convert_to_tensor, (values, knots))
    present = ops.logical_not(ops.isnan(values))[:, None]
    # The gap to the next greater knot; a repeated knot leaves its segment to its first occurrence.
    # (Counted, because LiteRT has no search.)
    following = ops.sum(ops.cast(knots <= knots[:-1, None], "int32"), axis=1)
    gap = ops.take(knots, ops.minimum(following, knots.shape[0] - 1)) - knots[:-1]
    # The passed share of each segment, from 0 to 1; 0 for empty segments.
    passed = ops.clip(ops.divide_no_nan(values[:, None] - knots[:-1], gap), 0.0, 1.0)
    # A hat is what of the segment to its left is passed, without that of the segment to its right.
    one = ops.ones_like(passed[:, :1])
    shares = ops.concatenate([one, passed, ops.zeros_like(one)], axis=1)
    return ops.where(present, shares[:, :-1] - shares[:, 1:], 0.0)
