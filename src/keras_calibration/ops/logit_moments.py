"""A fixed-size, mergeable summary of labelled logits: the log loss at any scale and bias.

With x = a l + c, the log loss of a row is `(1 - y) softplus(x) + y softplus(-x)`. Softplus is a
straight line plus `log(1 + exp(-|x|))`, so that within a bin of logits the loss is a linear part,
which four sums by label give exactly, and a smooth part, which needs no labels.

**Bins.** 1/4 wide on [-16, 16), 1/2 wide from there to ±88, and an open bin beyond each end: 418.
Widths that are powers of two make bin number, centre and offset exact in float32. Per bin, with u
the offset from the centre in units of half the width (from ±88 itself, in logits, for the open
bins), a summary holds `Σ w (1 - y)`, `Σ w y`, `Σ w (1 - y) u`, `Σ w y u` and `Σ w Tₖ(u)`, k = 2 …
5, where Tₖ are Chebyshev's polynomials.

**Terms.** The sums give that of any polynomial of degree 5 over the rows of a bin, and so that of
the polynomial that agrees with a function f at six Chebyshev nodes: `Σ w f(l) ≈ Σᵢ ωᵢ f(tᵢ)`. A bin
is as good as six weighted rows, whatever the scale and bias. With two more for the linear part, a
sum over rows is a sum over eight terms a bin.

**Accuracy.** For a bin of width h and r = |a| h / 2, interpolation is off by at most
`r⁶ / (2⁵ 6!) max |softplus⁽⁶⁾|` a row, where `|softplus⁽⁶⁾| ≤ σ (1 - σ)`. With a = 1, that is
4e-11 nats and 2e-10 of the loss for logits within ±16, 3e-9 nats and 2e-8 of the loss up to ±88.
The rows of an open bin count as on the straight line; what they lack is at most `softplus(-x)` at
±88, e⁻⁸⁸ without a bias. The sum of these bounds is computed with each loss: **a loss is right to
1e-6 of itself (or 1e-12 nats a row), or NaN**. It is NaN where a scale is too large for the bins
(beyond 4 to 5 for logits within ±16, half of that beyond), or where a correction moves logits from
beyond ±88 near 0. In float32, rounding adds some 1e-6.

A summary is a tensor (groups, 418, 8). Summaries add up over batches, replicas and shards. Eight
columns are a power of two, which XLA adds up faster than seven.

What runs where: on a CPU one row is added after the other, straight into the summary. On a GPU all
are added at once, atomically, and those of a bin would wait for each other: there the rows are
dealt out in turns to up to 256 summaries, as many as 131,072 bins allow, which are then added up.
On a CPU, compilation takes longest, some 30 ms for each array that XLA makes, however small: sums
over terms are therefore taken together, and what a loop carries is one array.
"""

from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_calibration.ops.compiled import runs_on_gpu

_FINE_WIDTH, _WIDTH = 1 / 4, 1 / 2
_FINE_END, LARGEST_LOGIT = 16, 88
_NUM_FINE = int(2 * _FINE_END / _FINE_WIDTH)
NUM_BINS = _NUM_FINE + int(2 * (LARGEST_LOGIT - _FINE_END) / _WIDTH) + 2
# Columns: Σ w (1 - y), Σ w y, Σ w (1 - y) u, Σ w y u, Σ w Tₖ(u) for k = 2 … 5.
NUM_COLUMNS = 8

_EDGES = np.concatenate(
    [
        np.arange(-LARGEST_LOGIT, -_FINE_END, _WIDTH),
        np.arange(-_FINE_END, _FINE_END, _FINE_WIDTH),
        np.arange(_FINE_END, LARGEST_LOGIT + _WIDTH, _WIDTH),
    ]
)
_CENTRES = np.concatenate([_EDGES[:1], (_EDGES[1:] + _EDGES[:-1]) / 2, _EDGES[-1:]])[:, None]
_HALF_WIDTHS = np.concatenate([[1.0], np.diff(_EDGES) / 2, [1.0]])[:, None]

_IS_END = np.isin(np.arange(NUM_BINS), (0, NUM_BINS - 1))[:, None]

# The eight terms of each bin: six nodes, the labels at its centre, and the offsets of the labels.
_NUM_NODES = 6
_NODES = np.cos(np.pi * (np.arange(_NUM_NODES) + 0.5) / _NUM_NODES)
_CHEBYSHEV = np.cos(np.arange(_NUM_NODES)[:, None] * np.arccos(_NODES)) * 2 / _NUM_NODES
_CHEBYSHEV[0] /= 2
_TO_NODES = _CHEBYSHEV.T[:, [0, 0, 1, 1, 2, 3, 4, 5]]
# From the columns to the terms, with the labels 0 or the labels 1.
_TO_TERMS = [np.concatenate([_TO_NODES, np.eye(NUM_COLUMNS)[label:4:2]]) for label in (0, 1)]


def _by_term(nodes: Any, labels: Any, offsets: Any) -> np.ndarray:
    """Constants (418 · 8,), each given by bin (418, 1) or for all bins."""
    table = np.zeros((NUM_BINS, NUM_COLUMNS))
    table[:, :_NUM_NODES], table[:, -2:-1], table[:, -1:] = nodes, labels, offsets
    return table.reshape(-1)


# x = a l + c for a node and for the centre, and a h / 2 for the offsets.
LOGITS = _by_term(_CENTRES + _NODES * _HALF_WIDTHS, _CENTRES, _HALF_WIDTHS)
_HAS_BIAS = _by_term(1, 1, 0)
_CENTRE, _REACH, _IS_OPEN = (
    _by_term(values, values, values) for values in (_CENTRES, _HALF_WIDTHS, _IS_END)
)
_IS_NODE, _IS_CENTRE = _by_term(~_IS_END, 0, 0) > 0, _by_term(0, 1, 0) > 0
_IS_LINEAR = _by_term(0, 1, 1) > 0
_IS_OPEN = _IS_OPEN > 0

_RELATIVE_ERROR, _ABSOLUTE_ERROR = 1e-6, 1e-12

_MOST_PARTS_ON_GPU = 256
_MOST_BINS_ON_GPU = 1 << 17

_LARGEST_BIAS = 256.0
_LARGEST_NUM_STEPS = 100
_TOLERANCE = 1e-5  # what a Newton step as small leaves is some 1e-10
_ROUNDING = {"float32": 3e-7, "float64": 1e-15}


def logit_moments(labels: Any, logits: Any, weights: Any, group: Any, num_groups: int) -> Any:
    """The summary of the rows of each group, in one pass.

    Args:
        labels: Labels y in [0, 1] (n,), of the dtype of the weights.
        logits: Logits l (n,), any float dtype. One that is not finite makes everything computed
            from its group NaN.
        weights: Weights w (n,), not negative; the sums have their dtype.
        group: The group of each row (n,), int32 in [0, num_groups).
        num_groups: Number of groups.

    Returns:
        A tensor (num_groups · 418, 8), the groups one below the other: `by_group` gives them
        apart. (A sum over batches kept in this shape lets XLA add the rows into it directly.)

    Example:
        >>> sums = logit_moments(np.array([1.0, 0.0]), np.array([2.0, -3.0]), np.ones(2), [0, 0], 1)
        >>> positives, negatives, positive_logits = label_sums(by_group(sums))
        >>> float(positives[0]), float(negatives[0]), float(positive_logits[0])
        (1.0, 1.0, 2.0)
    """
    labels, logits, weights = (ops.convert_to_tensor(rows) for rows in (labels, logits, weights))
    # Into the open bins at most, so that whole numbers stay small.
    inside = ops.clip(logits, -LARGEST_LOGIT - _WIDTH, LARGEST_LOGIT)
    fine, coarse = ops.floor(inside / _FINE_WIDTH), ops.floor(inside / _WIDTH)
    fine_ends, ends = _FINE_END / _FINE_WIDTH, _FINE_END / _WIDTH
    place = ops.clip(fine, -fine_ends, fine_ends) + coarse - ops.clip(coarse, -ends, ends)
    # NaN turns into an integer of any size: it must not leave its group.
    bin_number = ops.clip(ops.cast(place, "int32") + NUM_BINS // 2, 0, NUM_BINS - 1)
    is_fine = ops.logical_and(inside >= -_FINE_END, inside < _FINE_END)
    centre = ops.where(is_fine, (fine + 0.5) * _FINE_WIDTH, (coarse + 0.5) * _WIDTH)
    per_unit = ops.where(is_fine, 2 / _FINE_WIDTH, 2 / _WIDTH)
    is_open = ops.logical_or(logits < -LARGEST_LOGIT, logits >= LARGEST_LOGIT)
    centre = ops.where(is_open, ops.sign(logits) * LARGEST_LOGIT, centre)
    per_unit = ops.where(is_open, 1.0, per_unit)
    u = ops.cast((logits - centre) * ops.cast(per_unit, logits.dtype), weights.dtype)
    positives, negatives = weights * labels, weights * (1 - labels)
    columns = [negatives, positives, negatives * u, positives * u]
    # Powers of a huge logit would overflow; the open bins need none.
    u = ops.clip(u, -1.0, 1.0)
    second = 2 * ops.square(u) - 1
    third = u * (2 * second - 1)
    fourth = 2 * ops.square(second) - 1
    fifth = 2 * u * fourth - third
    columns += [weights * power for power in (second, third, fourth, fifth)]
    cell = ops.convert_to_tensor(group, "int32") * NUM_BINS + bin_number
    # Three times as fast under XLA as stacking them side by side.
    rows = ops.transpose(ops.stack(columns, axis=0))
    num_cells = num_groups * NUM_BINS
    num_parts = min(_MOST_PARTS_ON_GPU, _MOST_BINS_ON_GPU // num_cells) if runs_on_gpu() else 1
    if num_parts <= 1:
        return ops.segment_sum(rows, cell, num_segments=num_cells)
    part = ops.arange(ops.shape(cell)[0], dtype="int32") % num_parts
    sums = ops.segment_sum(rows, cell + part * num_cells, num_segments=num_parts * num_cells)
    return ops.sum(ops.reshape(sums, (num_parts, num_cells, NUM_COLUMNS)), axis=0)


def by_group(sums: Any) -> Any:
    """Summaries (groups, 418, 8) from sums as `logit_moments` gives them (groups · 418, 8)."""
    return ops.reshape(sums, (-1, NUM_BINS, NUM_COLUMNS))


def label_sums(summary: Any) -> tuple[Any, Any, Any]:
    """`Σ w y`, `Σ w (1 - y)` and `Σ w y l` of each summary, three tensors (g,).

    The second is no difference of sums, so that it is exactly 0 where every label is 1.
    """
    positives, offsets = summary[..., 1], summary[..., 3]
    places = (ops.cast(values[:, 0], summary.dtype) for values in (_CENTRES, _HALF_WIDTHS))
    centre, half_width = places
    logits = ops.sum(positives * centre + offsets * half_width, axis=-1)
    return ops.sum(positives, axis=-1), ops.sum(summary[..., 0], axis=-1), logits


def total_weight(summary: Any) -> Any:
    """`Σ w` of each summary (g,)."""
    return ops.sum(summary[..., 0] + summary[..., 1], axis=-1)


def bin_means(summary: Any) -> tuple[Any, Any]:
    """The weight and the mean logit of each bin, two tensors (g, 418)."""
    weight = summary[..., 0] + summary[..., 1]
    offset = ops.divide_no_nan(summary[..., 2] + summary[..., 3], weight)
    centre, half_width = (ops.cast(v[:, 0], summary.dtype) for v in (_CENTRES, _HALF_WIDTHS))
    return weight, centre + half_width * offset


def terms(summary: Any) -> tuple[Any, Any]:
    """Weights of the terms (g, 418 · 8), with the rows of label 0 for the linear part, and of 1.

    Those of a bin's nodes add up to its weight; single ones may be negative.
    """
    summary = ops.convert_to_tensor(summary)[:, :, None]
    tables = (ops.cast(table, summary.dtype) for table in _TO_TERMS)
    of_0, of_1 = (
        ops.reshape(ops.sum(summary * table, axis=-1), (-1, NUM_BINS * NUM_COLUMNS))
        for table in tables
    )
    return of_0, of_1


class TermsAt(NamedTuple):
    """The terms of each summary at its own scale a and bias c, all (g, 418 · 8).

    `weight` is that of each term, with the labels against the side of 0 on which its bin is:
    labels 0 where x > 0. `side` is 1 where x > 0, else -1; `loss` is `softplus(-side x)` for a node
    and `side x` for the linear part, and `slope` and `curvature` its derivatives by x. `tail` is
    `exp(-side x)`.
    """

    weight: Any
    side: Any
    tail: Any
    loss: Any
    slope: Any
    curvature: Any


def terms_at(of_0: Any, of_1: Any, bias: Any, scale: Any = None) -> TermsAt:
    """What the loss and its derivatives at a scale and bias are the sums of."""
    scaled, scaled_centre = _scaled(LOGITS, scale, of_0), _scaled(_CENTRE, scale, of_0)
    x = scaled + ops.cast(_HAS_BIAS, of_0.dtype) * bias[:, None]
    # By bin, for a function that is smooth within each. The rows of an open bin are on the side
    # where the scale alone puts them.
    is_up = ops.where(_IS_OPEN, scaled_centre, scaled_centre + bias[:, None]) > 0
    side = ops.cast(ops.where(is_up, 1.0, -1.0), of_0.dtype)
    tail = ops.exp(-side * x)
    rarer = tail / (1 + tail)
    return TermsAt(
        weight=ops.where(is_up, of_0, of_1),
        side=side,
        tail=tail,
        loss=ops.where(_IS_NODE, ops.log1p(tail), _linear(side * x)),
        slope=side * ops.where(_IS_NODE, -rarer, _linear(ops.ones_like(x))),
        curvature=ops.where(_IS_NODE, rarer / (1 + tail), 0.0),
    )


def _scaled(values: np.ndarray, scale: Any, like: Any) -> Any:
    """Constants times the scale of each summary (g, 418 · 8), or (1, 418 · 8) without scales."""
    constants = ops.cast(values, like.dtype)[None]
    return constants if scale is None else scale[:, None] * constants


def _linear(values: Any) -> Any:
    """Values of the linear part; 0 for the nodes, also those that an open bin has none of."""
    return ops.where(_IS_LINEAR, values, 0.0)


def with_bias(values: Any) -> Any:
    """The derivative by the bias, from that by x."""
    return values * ops.cast(_HAS_BIAS, values.dtype)


def log_loss_sum(summary: Any, bias: Any, scale: Any = None) -> Any:
    """`Σ w` log loss of `σ(a l + c)` of each summary at its own scale and bias.

    Args:
        summary: Summaries (g, 418, 8).
        bias: Biases c (g,).
        scale: Scales a (g,), or None for 1.

    Returns:
        Sums of losses in nats (g,), right to 1e-6 of themselves (in float32 but for rounding), or
        NaN: see the top of this module.
    """
    return log_loss_and_weight(summary, bias, scale)[0]


def log_loss_and_weight(summary: Any, bias: Any, scale: Any = None) -> tuple[Any, Any]:
    """What `log_loss_sum` returns, and `Σ w` (g,)."""
    of_0, of_1 = terms(summary)
    at = terms_at(of_0, of_1, ops.convert_to_tensor(bias), scale)
    # At the centre of a bin, `tail` is exp(-|x|); at that of an open one, the edge, more.
    reach = ops.abs(_scaled(_REACH, scale, of_0))
    curvature = ops.minimum(at.tail * ops.exp(reach), 0.25)
    error = ops.where(_IS_OPEN, at.tail, curvature * reach**6 / (2**5 * 720))
    weight = ops.where(_IS_CENTRE, of_0 + of_1, 0.0)
    loss, error, weight = sums([at.weight * at.loss, weight * error, weight])
    allowed = _RELATIVE_ERROR * loss + _ABSOLUTE_ERROR * weight
    return ops.where(error <= allowed, loss, float("nan")), weight


def sums(parts: list[Any]) -> list[Any]:
    """Sums over the terms, each (g,), taken together."""
    return list(ops.unstack(_sum_of_terms(ops.stack(parts)), len(parts)))


def _sum_of_terms(values: Any) -> Any:
    """Sums over the last axis: on a CPU, a product of matrices is nothing to compile."""
    if runs_on_gpu():  # whose products of float32 are rounded
        return ops.sum(values, axis=-1)
    return ops.matmul(values, ops.cast(_ONES, values.dtype))[..., 0]


def bias_root(summary: Any) -> Any:
    """The bias c at which the predictions add up to the labels: `Σ w σ(l + c) = Σ w y`.

    It is `argmin_c` of the log loss of `σ(l + c)`. The equation is solved in logits,
    `logit mean σ(l + c) = logit mean y`, where it is close to linear in c: Newton steps from c = 0,
    with bisection where one leaves the bracket.

    Args:
        summary: Summaries (g, 418, 8).

    Returns:
        Biases (g,); NaN where there is no row, where all labels are 0 or all are 1, for then no
        finite bias exists, and where it would move logits from beyond ±88 near 0.

    Example:
        >>> rows = np.array([1.0, 0.0, 0.0, 0.0]), np.zeros(4), np.ones(4), [0, 0, 0, 0]
        >>> bias = bias_root(by_group(logit_moments(*rows, 1)))
        >>> round(float(bias[0]), 4)  # the logit of 1/4
        -1.0986

    Reference:
        Fan et al., *Calibration-then-Calculation*, arXiv 2401.16692 (their bias is -c).
    """
    summary = ops.convert_to_tensor(summary)
    weights = terms(summary)
    start = _start(summary)

    def improve(state: Any) -> tuple[Any]:
        return (ops.stack(_improved_bias(weights, *ops.unstack(state, _NUM_STATES)), axis=0),)

    (state,) = ops.while_loop(
        # A group without a root is NaN: it neither goes on nor stops the others.
        lambda state: ops.any(state[3] > _TOLERANCE),
        improve,
        (start,),
        maximum_iterations=_LARGEST_NUM_STEPS,
    )
    found = ops.logical_and(state[4] > 0, ops.abs(state[0]) < _LARGEST_BIAS - 1)
    return ops.where(found, state[0], float("nan"))


# A column of ones. The other one keeps it a matrix.
_ONES = np.tile([1.0, 0.0], (NUM_BINS * NUM_COLUMNS, 1))

# What the search for the bias carries: the bias, the ends of its bracket, how far it moved, whether
# it can be told; and four sums, Σ w (1 - y), Σ w y and Σ w of each open bin.
_NUM_STATES = 9
_START = np.array([0, -1, 1, 1, 0, 0, 0, 0, 0])[:, None] * _LARGEST_BIAS
_SUMS = np.zeros((_NUM_STATES, NUM_BINS, NUM_COLUMNS))
_SUMS[5, :, 0] = _SUMS[6, :, 1] = _SUMS[7, 0, :2] = _SUMS[8, -1, :2] = 1
_SUMS = _SUMS.reshape(_NUM_STATES, 1, -1)


def _start(summary: Any) -> Any:
    """What the search for the bias starts from (9, g); NaN where there is none."""
    summary = ops.reshape(summary, (1, -1, NUM_BINS * NUM_COLUMNS))
    # A sum that is not finite comes from a row that is not: 0 times it, it makes all NaN.
    totals = _sum_of_terms(summary * ops.cast(_SUMS, summary.dtype))
    solvable = ops.logical_and(totals[5] > 0, totals[6] > 0)
    return ops.where(solvable, totals + ops.cast(_START, totals.dtype), float("nan"))


def _improved_bias(
    weights: tuple[Any, Any],
    bias: Any,
    low: Any,
    high: Any,
    _: Any,
    __: Any,
    negatives: Any,
    positives: Any,
    below: Any,
    above: Any,
) -> list[Any]:
    """One step of `bias_root`: its state."""
    rounding = _ROUNDING[keras.backend.standardize_dtype(bias.dtype)]
    at = terms_at(*weights, bias)
    # `Σ w σ - Σ w y` from the labels against each bin's side: no large sums cancel.
    excess, curvature = sums([at.weight * with_bias(at.slope), at.weight * at.curvature])
    excess = ops.clip(excess, (rounding - 1) * positives, (1 - rounding) * negatives)
    ones, zeros = positives + excess, negatives - excess
    share = excess * (1 / positives + 1 / negatives)
    # The logit of the mean prediction less that of the mean label.
    value = ops.log1p(share * (negatives / zeros))
    low, high = ops.where(value < 0, bias, low), ops.where(value > 0, bias, high)
    # Where the slope is lost to rounding, the step is infinite.
    proposed = bias - value / (curvature * (1 / ones + 1 / zeros))
    # At the root the bias is itself an end of the bracket, and must be let rest there.
    inside = ops.logical_and(proposed >= low, proposed <= high)
    improved = ops.where(inside, proposed, 0.5 * (low + high))
    improved = ops.where(ops.abs(value) <= rounding, bias, improved)
    # What the open bins lack: an error of the rows' sum moves the bias by as much over the
    # curvature. (Beyond 0, where the exponential would overflow, that is too much at any rate.)
    beyond = below * ops.exp(ops.minimum(bias - LARGEST_LOGIT, 0.0)) + above * ops.exp(
        ops.minimum(-bias - LARGEST_LOGIT, 0.0)
    )
    is_known = beyond <= 1e-7 * curvature + _ABSOLUTE_ERROR * (ones + zeros)
    moved = ops.abs(improved - bias)
    return [
        improved,
        low,
        high,
        moved,
        ops.cast(is_known, bias.dtype),
        negatives,
        positives,
        below,
        above,
    ]
