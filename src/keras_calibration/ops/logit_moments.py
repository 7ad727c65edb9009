"""A fixed-size, mergeable summary of labelled logits: the log loss at any scale and bias.

The mean log loss of `σ(a l + c)` is `[Σ w softplus(a l + c) - a Σ w y l - c Σ w y] / Σ w`. The
label part is two exact sums; only `Σ w softplus` needs the logits, and it needs no labels. The
logits are sorted into 128 bins of width 1/4 on [-16, 16]. With o the offset of a row from the
centre m of its bin, the moments `Σ w oᵏ`, k = 0 … 5, give

    Σ w softplus(a l + c) ≈ Σ_bins Σ_k (aᵏ / k!) softplus⁽ᵏ⁾(a m + c) Σ w oᵏ

by Taylor's theorem: with a = 1, at most `(1/8)⁶ / 6! · max |softplus⁽⁶⁾| = 1.4e-9` off for each
row, with another scale a⁶ times that. A width that is a power of two makes bin number, centre and
offset exact in float32. The end bins are open: their rows count by their mean, to first order.

A summary is a tensor (groups, 128, 8). Summaries add up over batches, replicas and shards. Eight
columns are a power of two, which XLA adds up faster than seven; a power of the offset more is worth
half of the bins.

What runs where: on a CPU one row is added after the other, straight into the summary. On a GPU all
are added at once, atomically, and those of a bin would wait for each other: there the rows are
dealt out in turns to up to 256 summaries, as many as 32,768 bins allow, which are then added up.
"""

from typing import Any

import numpy as np
from keras import ops

from keras_calibration.ops.compiled import runs_on_gpu

NUM_BINS = 128
BIN_WIDTH = 1 / 4
# Columns: Σ w (1 - y), Σ w y, Σ w o, Σ w o², Σ w o³, Σ w o⁴, Σ w o⁵, Σ w y l.
NUM_COLUMNS = 8
_LARGEST_POWER = 5
_CENTRES = (np.arange(NUM_BINS) - (NUM_BINS - 1) / 2) * BIN_WIDTH
_IS_END = np.isin(np.arange(NUM_BINS), (0, NUM_BINS - 1))

_MOST_PARTS_ON_GPU = 256
_MOST_BINS_ON_GPU = 1 << 15

_NUM_PLAIN_STEPS = 3
_LARGEST_NUM_STEPS = 150  # bisection from the largest float32 logits takes 140
_TOLERANCE = 1e-5  # what a Newton step as small leaves is some 1e-10


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
        A tensor (num_groups · 128, 8), the groups one below the other: `by_group` gives them
        apart. (A sum over batches kept in this shape lets XLA add the rows into it directly.)

    Example:
        >>> sums = logit_moments(np.array([1.0, 0.0]), np.array([2.0, -3.0]), np.ones(2), [0, 0], 1)
        >>> clicks, no_clicks, click_logits = label_sums(by_group(sums))
        >>> float(clicks[0]), float(no_clicks[0]), float(click_logits[0])
        (1.0, 1.0, 2.0)
    """
    labels, logits, weights = (ops.convert_to_tensor(rows) for rows in (labels, logits, weights))
    half = NUM_BINS // 2
    position = ops.clip(ops.floor(logits / BIN_WIDTH), -half, half - 1)
    # NaN turns into an integer of any size: it must not leave its group.
    bin_number = ops.clip(ops.cast(position, "int32"), -half, half - 1) + half
    offset = ops.cast(logits - (position + 0.5) * BIN_WIDTH, weights.dtype)
    # Powers of a huge logit would overflow; the open end bins need none.
    small = ops.clip(offset, -BIN_WIDTH, BIN_WIDTH)
    square = ops.square(small)
    clicks = weights * labels
    weighted_square = weights * square
    columns = [
        weights * (1 - labels),
        clicks,
        weights * offset,
        weighted_square,
        weighted_square * small,
        weighted_square * square,
        weighted_square * square * small,
        clicks * ops.cast(logits, weights.dtype),
    ]
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
    """Summaries (groups, 128, 8) from sums as `logit_moments` gives them (groups · 128, 8)."""
    return ops.reshape(sums, (-1, NUM_BINS, NUM_COLUMNS))


def label_sums(summary: Any) -> tuple[Any, Any, Any]:
    """`Σ w y`, `Σ w (1 - y)` and `Σ w y l` of each summary.

    The second is no difference of sums, so that it is exactly 0 where every label is 1.

    Args:
        summary: Summaries (g, 128, 8).

    Returns:
        Three tensors (g,).
    """
    sums = ops.sum(summary, axis=-2)
    return sums[..., 1], sums[..., 0], sums[..., -1]


def total_weight(summary: Any) -> Any:
    """`Σ w` of each summary (g,)."""
    return ops.sum(summary[..., 0] + summary[..., 1], axis=-1)


def log_loss_sum(summary: Any, bias: Any, scale: Any = None) -> Any:
    """`Σ w` log loss of `σ(a l + c)` of each summary at its own scale and bias.

    Args:
        summary: Summaries (g, 128, 8).
        bias: Biases c (g,).
        scale: Scales a (g,), or None for 1.

    Returns:
        Sums of losses in nats (g,).
    """
    centres, moments = centres_and_moments(summary)
    shifted = (centres if scale is None else scale[:, None] * centres) + bias[:, None]
    derivatives = softplus_derivatives(shifted)
    softplus = taylor_sum(moments, derivatives, order=0, scale=scale)
    clicks, _, click_logits = label_sums(summary)
    if scale is not None:
        click_logits = scale * click_logits
    return ops.sum(softplus, axis=-1) - click_logits - bias * clicks


def bias_root(summary: Any) -> Any:
    """The bias c at which the predictions add up to the labels: `Σ w σ(l + c) = Σ w y`.

    It is `argmin_c` of the log loss of `σ(l + c)`. The equation is solved in logits,
    `logit mean σ(l + c) = logit mean y`, where it is close to linear in c: Newton steps from c = 0,
    and where they do not settle at once, with bisection where one leaves the bracket.

    Args:
        summary: Summaries (g, 128, 8).

    Returns:
        Biases (g,); NaN where there is no row, or where all labels are 0 or all are 1, for then no
        finite bias exists.

    Example:
        >>> rows = np.array([1.0, 0.0, 0.0, 0.0]), np.zeros(4), np.ones(4), [0, 0, 0, 0]
        >>> bias = bias_root(by_group(logit_moments(*rows, 1)))
        >>> round(float(bias[0]), 4)  # the logit of 1/4
        -1.0986

    Reference:
        Fan et al., *Calibration-then-Calculation*, arXiv 2401.16692 (their bias is -c).
    """
    sums = ops.sum(summary, axis=-2)
    # A sum that is not finite comes from a row that is not.
    is_finite = ops.isfinite(ops.sum(0 * sums, axis=-1))
    clicks, no_clicks, _ = label_sums(summary)
    solvable = ops.logical_and(ops.logical_and(clicks > 0, no_clicks > 0), is_finite)
    target = ops.where(solvable, ops.log(clicks) - ops.log(no_clicks), 0.0)
    # Most roots are three steps away. These are written out: for XLA on a CPU a loop is dear.
    bias = moved = ops.zeros_like(target)
    for _ in range(_NUM_PLAIN_STEPS):
        _, moved = _logit_newton_step(summary, bias, target)
        bias = bias - moved
    settled = ops.logical_or(ops.abs(moved) <= _TOLERANCE, ops.logical_not(solvable))
    bias = ops.cond(ops.all(settled), lambda: bias, lambda: _bracketed_root(summary, target))
    return ops.where(solvable, bias, float("nan"))


def _bracketed_root(summary: Any, target: Any) -> Any:
    """The root of `logit mean σ(l + c) = target` by Newton steps and bisection."""
    centres, moments = centres_and_moments(summary)
    present = moments[0] > 0
    largest = ops.max(ops.where(present, centres, -float("inf")), axis=-1)
    smallest = ops.min(ops.where(present, centres, float("inf")), axis=-1)
    # At the ends every σ(l + c) is on one side of the mean label; the rest is for the offsets.
    low, high = target - largest - 1.0, target - smallest + 1.0

    def improve(bias: Any, low: Any, high: Any, _: Any) -> tuple[Any, Any, Any, Any]:
        value, step = _logit_newton_step(summary, bias, target)
        low, high = ops.where(value < 0, bias, low), ops.where(value > 0, bias, high)
        proposed = bias - step
        # At the root the bias is itself an end of the bracket, and must be let rest there.
        inside = ops.logical_and(proposed >= low, proposed <= high)
        improved = ops.where(inside, proposed, 0.5 * (low + high))
        return improved, low, high, ops.abs(improved - bias)

    start = ops.clip(ops.zeros_like(target), low, high)
    bias, *_ = ops.while_loop(
        # A group without a root is NaN: it neither goes on nor stops the others.
        lambda bias, low, high, moved: ops.any(moved > _TOLERANCE),
        improve,
        (start, low, high, high - low),
        maximum_iterations=_LARGEST_NUM_STEPS,
    )
    return bias


def _logit_newton_step(summary: Any, bias: Any, target: Any) -> tuple[Any, Any]:
    """`logit mean σ(l + c) - target`, and that divided by its derivative in c."""
    centres, moments = centres_and_moments(summary)
    shifted = centres + bias[:, None]
    derivatives = softplus_derivatives(shifted)
    _, zero, _ = _sigmoids(shifted)
    # `Σ w σ(-l - c)` on its own: it may be too small to be a difference.
    of_offsets = taylor_sum(moments, derivatives, order=1, first=1)
    terms = [
        moments[0] * derivatives[1] + of_offsets,
        moments[0] * zero - of_offsets,
        taylor_sum(moments, derivatives, order=2),
    ]
    ones, zeros, slope = ops.unstack(ops.sum(ops.stack(terms), axis=-1), 3)
    value = ops.log(ones) - ops.log(zeros) - target
    # Where the slope is lost to rounding, the step is infinite.
    return value, value / (slope * (1 / ones + 1 / zeros))


def centres_and_moments(summary: Any) -> tuple[Any, list[Any]]:
    """Where the logits of each bin are: a centre m, and the moments of the offsets o from it.

    Args:
        summary: Summaries (g, 128, 8).

    Returns:
        Centres (g, 128), and `Σ w oᵏ`, k = 0 … 5, six tensors (g, 128). The end bins have their
        mean logit for centre, and no moment but the weight.
    """
    weight = summary[..., 0] + summary[..., 1]
    moved = ops.where(_IS_END, ops.divide_no_nan(summary[..., 2], weight), 0.0)
    centres = ops.cast(_CENTRES, summary.dtype) + moved
    # An infinite mean must not pass for a very large logit.
    centres = ops.where(ops.isfinite(centres), centres, float("nan"))
    of_offsets = (summary[..., power + 1] for power in range(1, _LARGEST_POWER + 1))
    moments = [weight, *(ops.where(_IS_END, 0.0, moment) for moment in of_offsets)]
    return centres, moments


def taylor_sum(
    moments: list[Any],
    derivatives: list[Any],
    order: int,
    power: int = 0,
    scale: Any = None,
    first: int = 0,
) -> Any:
    """`Σ w oʳ softplus⁽ʲ⁾(a (m + o) + c)` of the rows of each bin, by Taylor's theorem about m.

    It is `Σ_k (aᵏ / k!) softplus⁽ʲ⁺ᵏ⁾(a m + c) Σ w oʳ⁺ᵏ`, as far as there are derivatives: to
    order 5 in the offset for softplus and σ, to order 4 for the derivative of σ, which only the
    steps towards a root are made of.

    Args:
        moments: `Σ w oᵏ` of the bins, k = 0 … 5, each (g, 128).
        derivatives: `softplus_derivatives` at `a m + c`, each (g, 128).
        order: j, the order of the derivative that is summed.
        power: r, the power of the offset that is summed with it.
        scale: a (g,), or None for 1.
        first: The first k; 1 leaves out what the centres alone give.

    Returns:
        Sums (g, 128).
    """
    total = 0.0
    factor = 1.0
    for number in range(min(_LARGEST_POWER + 1 - power, len(derivatives) - order)):
        if number >= first:
            total = total + factor * moments[power + number] * derivatives[order + number]
        factor = factor / (number + 1) * (1.0 if scale is None else scale[:, None])
    return total


def softplus_derivatives(values: Any) -> list[Any]:
    """The softplus and its first six derivatives: σ, σ (1 - σ), … without cancellation.

    With s = σ (1 - σ) and u = 1 - 2σ, `s' = s u` and `u' = -2 s`.

    Args:
        values: Any real values.

    Returns:
        Seven tensors of the shape of `values`.

    Example:
        >>> [round(float(value), 4) for value in softplus_derivatives(ops.zeros(()))]
        [0.6931, 0.5, 0.25, 0.0, -0.125, -0.0, 0.25]
    """
    one, zero, tail = _sigmoids(values)
    s, u = one * zero, zero - one
    return [
        ops.maximum(values, 0.0) + ops.log1p(tail),
        one,
        s,
        s * u,
        s * (1 - 6 * s),
        s * u * (1 - 12 * s),
        s * (1 - 30 * s + 120 * s * s),
    ]


def _sigmoids(values: Any) -> tuple[Any, Any, Any]:
    """`σ(x)`, `σ(-x)` and `exp(-|x|)`, each to full precision however small, of one exponential."""
    tail = ops.exp(-ops.abs(values))
    commoner = 1 / (1 + tail)
    rarer = tail * commoner
    positive = values > 0
    return ops.where(positive, commoner, rarer), ops.where(positive, rarer, commoner), tail
