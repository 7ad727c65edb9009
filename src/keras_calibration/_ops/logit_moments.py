"""A fixed-size, mergeable summary of labelled logits that gives the log loss at any scale and bias.

With x = a l + c, the log loss of a row is `(1 - y) softplus(x) + y softplus(-x)`. Softplus is a
straight line plus `log(1 + exp(-|x|))`. Within a bin of logits, the loss is therefore a linear
part, which four sums by label give exactly, and a smooth part, which does not depend on the labels.

**Bins.** 1/4 wide on [-16, 16), 1/2 wide from there to ±88, and one open bin at each end: 418 in
all (`_logit_bins`). The logits inside are -88 ≤ l < 88. Let u be the offset from the centre in
units of half the width (in the open bins: the offset from ±88, in logits). For each bin, it holds
`Σ w (1 - y)`, `Σ w y`, `Σ w (1 - y) u`, `Σ w y u` and `Σ w Tₖ(u)` for k = 2 … 5, where Tₖ are the
Chebyshev polynomials.

**Terms.** These sums give the sum of any polynomial of degree 5 over the rows of a bin. That
includes the polynomial that interpolates a function f at six Chebyshev nodes:
`Σ w f(l) ≈ Σᵢ ωᵢ f(tᵢ)`. A bin thus acts as six weighted rows, for every scale and bias. With two
more terms for the linear part, a sum over rows becomes a sum over eight terms a bin.

**Accuracy.** For a bin of width h and r = |a| h / 2, the interpolation error of a row is at most
`r⁶ / (2⁵ 6!) max |softplus⁽⁶⁾|`, where `|softplus⁽⁶⁾| ≤ σ (1 - σ)`. With a = 1 this is 4e-11 nats
and 2e-10 of the loss for logits in [-16, 16), and 3e-9 nats and 2e-8 of the loss in [-88, 88). Rows
in an open bin count as if they were on the straight line, which neglects at most `softplus(-x)` at
±88, that is e⁻⁸⁸ without a bias. The sum of these bounds is computed with each loss: **the error of
a loss is at most 1e-6 of it (or 1e-12 nats a row), else the loss is NaN**. It is NaN where a
correction moves logits from beyond ±88 close to 0, and where the scale is too large for the bins.
How large depends on the rows: the bound is met up to |a| = 4.5 to 5 for typical logits in [-16,
16), and up to half of that beyond. In float32, rounding adds about 1e-6.

A summary is a tensor (groups, 418, 8). Summaries add up over batches, replicas and shards. XLA adds
eight columns, a power of two, faster than seven.

**CPU and GPU.** On a CPU, rows are added one after the other, straight into the summary. On a GPU
they are added at the same time by atomic operations, and rows of the same bin would wait for each
other. There, the rows are distributed over up to 256 summaries (as many as 131,072 bins allow),
which are then added up. On a CPU, most of the time is spent on compilation, about 30 ms for each
array that XLA creates, however small. Therefore sums over terms are computed together, and loops
carry a single array.
"""

from __future__ import annotations

from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from calibration_records._logit_bins import (
    CENTRE,
    CENTRES,
    HALF_WIDTHS,
    HAS_BIAS,
    IS_CENTRE,
    IS_LINEAR,
    IS_NODE,
    IS_OPEN,
    LARGEST_LOGIT,
    LOGITS,
    MOMENT_BINS,
    NUM_BINS,
    NUM_COLUMNS,
    REACH,
    TO_TERMS,
)
from keras_calibration._ops.compiled import runs_on_gpu, side_by_side
from keras_calibration._ops.logit_bins import bin_numbers, bin_offsets
from keras_calibration._typing import Tensor

_RELATIVE_ERROR, _ABSOLUTE_ERROR = 1e-6, 1e-12

_MOST_PARTS_ON_GPU = 256
_MOST_BINS_ON_GPU = 1 << 17

_LARGEST_BIAS = 256.0
_LARGEST_NUM_STEPS = 100
_TOLERANCE = 1e-5  # the error after a Newton step of this size is about 1e-10
_ROUNDING = {"float32": 3e-7, "float64": 1e-15}
_LARGEST_BIAS_ERROR = {"float32": 1e-2, "float64": 1e-6}


def logit_moments(
    labels: Tensor, logits: Tensor, weights: Tensor, group: Tensor, num_groups: int
) -> Tensor:
    """The summary of the rows of each group, in one pass, shape (num_groups · 418, 8).

    Labels are in [0, 1] and weights non-negative, of one dtype, which the sums have too. A logit
    that is not finite makes everything computed from its group NaN. `by_group` reshapes to
    (num_groups, 418, 8); in this shape XLA adds rows directly to a running sum.
    """
    labels, logits, weights = (ops.convert_to_tensor(rows) for rows in (labels, logits, weights))
    bin_number = bin_numbers(MOMENT_BINS, logits)
    u = ops.cast(bin_offsets(MOMENT_BINS, logits), weights.dtype)
    positives, negatives = weights * labels, weights * (1 - labels)
    columns = [negatives, positives, negatives * u, positives * u]
    # Powers of a huge logit would overflow; the open bins do not need them.
    u = ops.clip(u, -1.0, 1.0)
    second = 2 * ops.square(u) - 1
    third = u * (2 * second - 1)
    fourth = 2 * ops.square(second) - 1
    fifth = 2 * u * fourth - third
    columns += [weights * power for power in (second, third, fourth, fifth)]
    cell = ops.convert_to_tensor(group, "int32") * NUM_BINS + bin_number
    rows = side_by_side(columns)
    num_cells = num_groups * NUM_BINS
    num_parts = min(_MOST_PARTS_ON_GPU, _MOST_BINS_ON_GPU // num_cells) if runs_on_gpu() else 1
    if num_parts <= 1:
        return ops.segment_sum(rows, cell, num_segments=num_cells)
    part = ops.arange(ops.shape(cell)[0], dtype="int32") % num_parts
    sums = ops.segment_sum(rows, cell + part * num_cells, num_segments=num_parts * num_cells)
    return ops.sum(ops.reshape(sums, (num_parts, num_cells, NUM_COLUMNS)), axis=0)


def by_group(sums: Tensor) -> Tensor:
    """Summaries (groups, 418, 8), from sums of the shape that `logit_moments` returns."""
    return ops.reshape(sums, (-1, NUM_BINS, NUM_COLUMNS))


def label_sums(summary: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`Σ w y`, `Σ w (1 - y)` and `Σ w y l` of each summary, three tensors (g,).

    The second is not computed as a difference, so it is exactly 0 where every label is 1.
    """
    positives, offsets = summary[..., 1], summary[..., 3]
    places = (ops.cast(values[:, 0], summary.dtype) for values in (CENTRES, HALF_WIDTHS))
    centre, half_width = places
    logits = ops.sum(positives * centre + offsets * half_width, axis=-1)
    return ops.sum(positives, axis=-1), ops.sum(summary[..., 0], axis=-1), logits


def total_weight(summary: Tensor) -> Tensor:
    """`Σ w` of each summary (g,)."""
    return ops.sum(summary[..., 0] + summary[..., 1], axis=-1)


def bin_means(summary: Tensor) -> tuple[Tensor, Tensor]:
    """The weight and the mean logit of each bin, two tensors (g, 418)."""
    weight = summary[..., 0] + summary[..., 1]
    offset = ops.divide_no_nan(summary[..., 2] + summary[..., 3], weight)
    centre, half_width = (ops.cast(v[:, 0], summary.dtype) for v in (CENTRES, HALF_WIDTHS))
    return weight, centre + half_width * offset


def terms(summary: Tensor) -> tuple[Tensor, Tensor]:
    """Weights of the terms, (g, 418 · 8), with the linear part of the labels 0 and of the labels 1.

    The weights of the nodes of a bin sum to its weight; single ones may be negative.
    """
    summary = ops.convert_to_tensor(summary)[:, :, None]
    tables = (ops.cast(table, summary.dtype) for table in TO_TERMS)
    of_0, of_1 = (
        ops.reshape(ops.sum(summary * table, axis=-1), (-1, NUM_BINS * NUM_COLUMNS))
        for table in tables
    )
    return of_0, of_1


class TermsAt(NamedTuple):
    """The terms of each summary at its own scale a and bias c, all of shape (g, 418 · 8).

    `weight` is the weight of each term, with the linear part of the labels that disagree with the
    sign of x in the bin: labels 0 where x > 0. `side` is 1 where x > 0, else -1. `loss` is
    `softplus(-side x)` for a node and `side x` for the linear part; `slope` and `curvature` are its
    derivatives by x. `tail` is `exp(-side x)`.
    """

    weight: Tensor
    side: Tensor
    tail: Tensor
    loss: Tensor
    slope: Tensor
    curvature: Tensor


def terms_at(of_0: Tensor, of_1: Tensor, bias: Tensor, scale: Tensor | None = None) -> TermsAt:
    """The terms of the loss and its derivatives at a scale and bias."""
    scaled, scaled_centre = _scaled(LOGITS, scale, of_0), _scaled(CENTRE, scale, of_0)
    x = scaled + ops.cast(HAS_BIAS, of_0.dtype) * bias[:, None]
    # By bin, so that the function is smooth within each. The side of an open bin depends on the
    # scale alone.
    is_up = ops.where(IS_OPEN, scaled_centre, scaled_centre + bias[:, None]) > 0
    side = ops.cast(ops.where(is_up, 1.0, -1.0), of_0.dtype)
    tail = ops.exp(-side * x)
    rarer = tail / (1 + tail)
    return TermsAt(
        weight=ops.where(is_up, of_0, of_1),
        side=side,
        tail=tail,
        loss=ops.where(IS_NODE, ops.log1p(tail), _linear(side * x)),
        slope=side * ops.where(IS_NODE, -rarer, _linear(ops.ones_like(x))),
        curvature=ops.where(IS_NODE, rarer / (1 + tail), 0.0),
    )


def _scaled(values: np.ndarray, scale: Tensor | None, like: Tensor) -> Tensor:
    """Constants times the scale of each summary, (g, 418 · 8), or (1, 418 · 8) without scales."""
    constants = ops.cast(values, like.dtype)[None]
    return constants if scale is None else scale[:, None] * constants


def _linear(values: Tensor) -> Tensor:
    """The values for the linear part, and 0 for the nodes, real or (in open bins) missing."""
    return ops.where(IS_LINEAR, values, 0.0)


def with_bias(values: Tensor) -> Tensor:
    """The derivative by the bias, from the derivative by x."""
    return values * ops.cast(HAS_BIAS, values.dtype)


def log_loss_sum(summary: Tensor, bias: Tensor, scale: Tensor | None = None) -> Tensor:
    """`Σ w` log loss of `σ(a l + c)` of each summary at its own scale and bias, (g,), or NaN."""
    return log_loss_and_weight(summary, bias, scale)[0]


def log_loss_and_weight(
    summary: Tensor, bias: Tensor, scale: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """`log_loss_sum` and `Σ w`, both (g,)."""
    of_0, of_1 = terms(summary)
    at = terms_at(of_0, of_1, ops.convert_to_tensor(bias), scale)
    # `tail` is exp(-|x|) at the centre of a bin; for an open bin the centre is the edge.
    reach = ops.abs(_scaled(REACH, scale, of_0))
    curvature = ops.minimum(at.tail * ops.exp(reach), 0.25)
    error = ops.where(IS_OPEN, at.tail, curvature * reach**6 / (2**5 * 720))
    weight = ops.where(IS_CENTRE, of_0 + of_1, 0.0)
    loss, error, weight = sums([at.weight * at.loss, weight * error, weight])
    allowed = _RELATIVE_ERROR * loss + _ABSOLUTE_ERROR * weight
    return ops.where(error <= allowed, loss, float("nan")), weight


def sums(parts: list[Tensor]) -> list[Tensor]:
    """Sums over the terms, each (g,), computed together."""
    return list(ops.unstack(_sum_of_terms(ops.stack(parts)), len(parts)))


def _sum_of_terms(values: Tensor) -> Tensor:
    """Sums over the last axis: on a CPU by a matrix product, which needs no compilation."""
    if runs_on_gpu():  # matrix products of float32 are less precise there
        return ops.sum(values, axis=-1)
    return ops.matmul(values, ops.cast(_ONES, values.dtype))[..., 0]


def bias_root(summary: Tensor) -> Tensor:
    """The bias c of each summary at which predictions sum to labels: `Σ w σ(l + c) = Σ w y`.

    It is `argmin_c` of the log loss of `σ(l + c)`. The equation is solved in logits,
    `logit mean σ(l + c) = logit mean y`, where it is nearly linear in c: by Newton steps from c =
    0, with bisection where a step leaves the bracket. NaN if there are no rows, if all labels are 0
    or all are 1 (no finite bias exists), if the bias would move logits from beyond ±88 close to 0,
    or if the rows do not determine it, because all predictions are 0 or 1 to the last bit.

    Reference:
        Fan et al., *Calibration-then-Calculation*, arXiv 2401.16692 (their bias is -c).
    """
    summary = ops.convert_to_tensor(summary)
    weights = terms(summary)
    start = _start(summary)

    def improve(state: Tensor) -> tuple[Tensor]:
        search = _BiasSearch(*ops.unstack(state, len(_BiasSearch._fields)))
        return (ops.stack(_improved_bias(weights, search), axis=0),)

    (state,) = ops.while_loop(
        # A NaN compares as False: a group without a root neither continues nor stops the others.
        lambda state: ops.any(state[_BiasSearch._fields.index("moved")] > _TOLERANCE),
        improve,
        (start,),
        maximum_iterations=_LARGEST_NUM_STEPS,
    )
    end = _BiasSearch(*ops.unstack(state, len(_BiasSearch._fields)))
    found = ops.logical_and(end.is_known > 0, ops.abs(end.bias) < _LARGEST_BIAS - 1)
    return ops.where(found, end.bias, float("nan"))


class _BiasSearch(NamedTuple):
    """The state of the search for the bias of each summary, all of shape (g,).

    `low` and `high` are the ends of the bracket, `moved` is the length of the last step, `is_known`
    is 1 where the bias is accurate enough. The sums stay as they are: `Σ w (1 - y)`, `Σ w y`, and
    `Σ w` of the open bins.
    """

    bias: Tensor
    low: Tensor
    high: Tensor
    moved: Tensor
    is_known: Tensor
    negatives: Tensor
    positives: Tensor
    below: Tensor
    above: Tensor


# A column of ones, and one of zeros that keeps it a matrix.
_ONES = np.tile([1.0, 0.0], (NUM_BINS * NUM_COLUMNS, 1))

# What a `_BiasSearch` starts with, beside its sums, which are products of the summary with _SUMS.
_START = np.array([0, -1, 1, 1, 0, 0, 0, 0, 0])[:, None] * _LARGEST_BIAS
_SUMS = np.zeros((len(_START), NUM_BINS, NUM_COLUMNS))
_SUMS[5, :, 0] = _SUMS[6, :, 1] = _SUMS[7, 0, :2] = _SUMS[8, -1, :2] = 1
_SUMS = _SUMS.reshape(len(_START), 1, -1)


def _start(summary: Tensor) -> Tensor:
    """The initial state of the search for the bias, (9, g); NaN where there is no root."""
    summary = ops.reshape(summary, (1, -1, NUM_BINS * NUM_COLUMNS))
    # A sum that is not finite comes from an invalid row. The product with 0 makes all sums NaN.
    totals = _sum_of_terms(summary * ops.cast(_SUMS, summary.dtype))
    solvable = ops.logical_and(totals[5] > 0, totals[6] > 0)
    return ops.where(solvable, totals + ops.cast(_START, totals.dtype), float("nan"))


def _improved_bias(weights: tuple[Tensor, Tensor], search: _BiasSearch) -> _BiasSearch:
    """One step of `bias_root`."""
    bias, negatives, positives = search.bias, search.negatives, search.positives
    rounding = _ROUNDING[keras.backend.standardize_dtype(bias.dtype)]
    at = terms_at(*weights, bias)
    # `Σ w σ - Σ w y` from the labels that disagree with each bin's side: no large sums cancel.
    slope = at.weight * with_bias(at.slope)
    excess, size, curvature = sums([slope, ops.abs(slope), at.weight * at.curvature])
    # Relative to the terms, which are all tiny where a threshold separates the labels.
    sum_error = 4 * rounding * size
    excess = ops.clip(excess, (rounding - 1) * positives, (1 - rounding) * negatives)
    ones, zeros = positives + excess, negatives - excess
    share = excess * (1 / positives + 1 / negatives)
    # The logit of the mean prediction minus that of the mean label.
    value = ops.log1p(share * (negatives / zeros))
    low = ops.where(value < 0, bias, search.low)
    high = ops.where(value > 0, bias, search.high)
    # Where the slope is lost to rounding, the step is infinite.
    proposed = bias - value / (curvature * (1 / ones + 1 / zeros))
    # At the root, the bias is itself an end of the bracket and must be allowed to stay there.
    inside = ops.logical_and(proposed >= low, proposed <= high)
    improved = ops.where(inside, proposed, 0.5 * (low + high))
    improved = ops.where(ops.abs(excess) <= sum_error, bias, improved)
    # What the open bins neglect: an error of the sum over rows moves the bias by that error over
    # the curvature. (The exponent is capped at 0, where the error is too large in any case.)
    beyond = search.below * ops.exp(ops.minimum(bias - LARGEST_LOGIT, 0.0))
    beyond += search.above * ops.exp(ops.minimum(-bias - LARGEST_LOGIT, 0.0))
    is_known = ops.logical_and(
        beyond <= 1e-7 * curvature,
        # Where all predictions are 0 or 1 before and after, no bias is better than another.
        sum_error <= _LARGEST_BIAS_ERROR[keras.backend.standardize_dtype(bias.dtype)] * curvature,
    )
    return search._replace(
        bias=improved,
        low=low,
        high=high,
        moved=ops.abs(improved - bias),
        is_known=ops.cast(is_known, bias.dtype),
    )
