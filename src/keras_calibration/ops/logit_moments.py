"""A fixed-size, mergeable summary of labelled logits: the log loss at any scale and bias.

The mean log loss of `σ(a l + c)` is `[Σ w softplus(a l + c) - a Σ w y l - c Σ w y] / Σ w`. The
label part is two exact sums; only `Σ w softplus` needs the logits, and it needs no labels. The
logits are sorted into 256 bins of width 1/8 on [-16, 16]. With o the offset of a row from the
centre m of its bin, the moments `Σ w oᵏ`, k = 0 … 4, give

    Σ w softplus(a l + c) ≈ Σ_bins Σ_k (aᵏ / k!) softplus⁽ᵏ⁾(a m + c) Σ w oᵏ

by Taylor's theorem: with a = 1, at most `(1/16)⁵ / 5! · max |softplus⁽⁵⁾| = 1.0e-9` off for each
row, with another scale |a|⁵ times that. A width that is a power of two makes bin number, centre and
offset exact in float32. The end bins are open: their rows count by their mean, to first order.

A summary is a tensor (groups, 256, 7). Summaries add up over batches, replicas and shards.
"""

from typing import Any

import numpy as np
from keras import ops

NUM_BINS = 256
BIN_WIDTH = 1 / 8
# Columns: Σ w (1 - y), Σ w y, Σ w o, Σ w o², Σ w o³, Σ w o⁴, Σ w y l.
NUM_COLUMNS = 7
_LARGEST_POWER = 4
_CENTRES = (np.arange(NUM_BINS) - (NUM_BINS - 1) / 2) * BIN_WIDTH
_IS_END = np.isin(np.arange(NUM_BINS), (0, NUM_BINS - 1))

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
        A tensor (num_groups · 256, 7), the groups one below the other: `by_group` gives them
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
        clicks * ops.cast(logits, weights.dtype),
    ]
    cell = ops.convert_to_tensor(group, "int32") * NUM_BINS + bin_number
    # Three times as fast under XLA as stacking them side by side.
    rows = ops.transpose(ops.stack(columns, axis=0))
    return ops.segment_sum(rows, cell, num_segments=num_groups * NUM_BINS)


def by_group(sums: Any) -> Any:
    """Summaries (groups, 256, 7) from sums as `logit_moments` gives them (groups · 256, 7)."""
    return ops.reshape(sums, (-1, NUM_BINS, NUM_COLUMNS))


def label_sums(summary: Any) -> tuple[Any, Any, Any]:
    """`Σ w y`, `Σ w (1 - y)` and `Σ w y l` of each summary.

    The second is no difference of sums, so that it is exactly 0 where every label is 1.

    Args:
        summary: Summaries (g, 256, 7).

    Returns:
        Three tensors (g,).
    """
    sums = ops.sum(summary, axis=-2)
    return sums[..., 1], sums[..., 0], sums[..., 6]


def total_weight(summary: Any) -> Any:
    """`Σ w` of each summary (g,)."""
    return ops.sum(summary[..., 0] + summary[..., 1], axis=-1)


def log_loss_sum(summary: Any, bias: Any, scale: Any = None) -> Any:
    """`Σ w` log loss of `σ(a l + c)` of each summary at its own scale and bias.

    Args:
        summary: Summaries (g, 256, 7).
        bias: Biases c (g,).
        scale: Scales a (g,), or None for 1.

    Returns:
        Sums of losses in nats (g,).
    """
    centres, moments = centres_and_moments(summary)
    shifted = (centres if scale is None else scale[:, None] * centres) + bias[:, None]
    derivatives = softplus_derivatives(shifted, _LARGEST_POWER)
    softplus = taylor_sum(moments, derivatives, order=0, scale=scale)
    clicks, _, click_logits = label_sums(summary)
    if scale is not None:
        click_logits = scale * click_logits
    return ops.sum(softplus, axis=-1) - click_logits - bias * clicks


def bias_root(summary: Any) -> Any:
    """The bias c at which the predictions add up to the labels: `Σ w σ(l + c) = Σ w y`.

    It is `argmin_c` of the log loss of `σ(l + c)`. The equation is solved in logits,
    `logit mean σ(l + c) = logit mean y`, where it is close to linear in c: Newton steps from c = 0,
    with bisection where one leaves the bracket.

    Args:
        summary: Summaries (g, 256, 7).

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
    clicks, no_clicks, _ = label_sums(summary)
    # A sum that is not finite comes from a row that is not; finite ones may be too large to add.
    is_finite = ops.isfinite(ops.sum(0 * summary, axis=(-2, -1)))
    solvable = ops.logical_and(ops.logical_and(clicks > 0, no_clicks > 0), is_finite)
    target = ops.where(solvable, ops.log(clicks) - ops.log(no_clicks), 0.0)
    centres, moments = centres_and_moments(summary)
    present = moments[0] > 0
    largest = ops.max(ops.where(present, centres, -float("inf")), axis=-1)
    smallest = ops.min(ops.where(present, centres, float("inf")), axis=-1)
    # At the ends every σ(l + c) is on one side of the mean label; the rest is for the offsets.
    low, high = target - largest - 1.0, target - smallest + 1.0

    def improve(bias: Any, low: Any, high: Any, _: Any) -> tuple[Any, Any, Any, Any]:
        value, step = _logit_newton_step(centres, moments, bias, target)
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
    return ops.where(solvable, bias, float("nan"))


def _logit_newton_step(centres: Any, moments: Any, bias: Any, target: Any) -> tuple[Any, Any]:
    """`logit mean σ(l + c) - target`, and that divided by its derivative in c."""
    shifted = centres + bias[:, None]
    derivatives = softplus_derivatives(shifted, _LARGEST_POWER + 2)
    _, zero, _ = _sigmoids(shifted)
    # `Σ w σ(-l - c)` on its own: it may be too small to be a difference.
    of_offsets = taylor_sum([ops.zeros_like(zero), *moments[1:]], derivatives, order=1)
    ones = ops.sum(moments[0] * derivatives[1] + of_offsets, axis=-1)
    zeros = ops.sum(moments[0] * zero - of_offsets, axis=-1)
    value = ops.log(ones) - ops.log(zeros) - target
    slope = ops.sum(taylor_sum(moments, derivatives, order=2), axis=-1)
    # Where the slope is lost to rounding, the step is infinite.
    return value, value / (slope * (1 / ones + 1 / zeros))


def centres_and_moments(summary: Any) -> tuple[Any, list[Any]]:
    """Where the logits of each bin are: a centre m, and the moments of the offsets o from it.

    Args:
        summary: Summaries (g, 256, 7).

    Returns:
        Centres (g, 256), and `Σ w oᵏ`, k = 0 … 4, five tensors (g, 256). The end bins have their
        mean logit for centre, and no moment but the weight.
    """
    weight = summary[..., 0] + summary[..., 1]
    moved = ops.where(_IS_END, ops.divide_no_nan(summary[..., 2], weight), 0.0)
    centres = ops.cast(_CENTRES, summary.dtype) + moved
    # An infinite mean must not pass for a very large logit.
    centres = ops.where(ops.isfinite(centres), centres, float("nan"))
    of_offsets = (summary[..., power + 1] for power in range(1, _LARGEST_POWER + 1))
    return centres, [weight, *(ops.where(_IS_END, 0.0, moment) for moment in of_offsets)]


def taylor_sum(
    moments: list[Any], derivatives: list[Any], order: int, power: int = 0, scale: Any = None
) -> Any:
    """`Σ w oʳ softplus⁽ʲ⁾(a (m + o) + c)` of the rows of each bin, by Taylor's theorem about m.

    It is `Σ_k (aᵏ / k!) softplus⁽ʲ⁺ᵏ⁾(a m + c) Σ w oʳ⁺ᵏ`.

    Args:
        moments: `Σ w oᵏ` of the bins, k = 0 … 4, each (g, 256).
        derivatives: softplus and its derivatives at `a m + c`, each (g, 256).
        order: j, the order of the derivative that is summed.
        power: r, the power of the offset that is summed with it.
        scale: a (g,), or None for 1.

    Returns:
        Sums (g, 256).
    """
    total = 0.0
    factor = 1.0
    for number in range(_LARGEST_POWER + 1 - power):
        total = total + factor * moments[power + number] * derivatives[order + number]
        factor = factor / (number + 1) * (1.0 if scale is None else scale[:, None])
    return total


def softplus_derivatives(values: Any, largest_order: int) -> list[Any]:
    """The softplus and its derivatives: σ, σ (1 - σ), … without cancellation.

    With s = σ (1 - σ) and u = 1 - 2σ, `s' = s u` and `u' = -2 s`.

    Args:
        values: Any real values.
        largest_order: Order of the last derivative, 1 to 6.

    Returns:
        `largest_order + 1` tensors of the shape of `values`.

    Example:
        >>> [round(float(value), 4) for value in softplus_derivatives(ops.zeros(()), 6)]
        [0.6931, 0.5, 0.25, 0.0, -0.125, -0.0, 0.25]
    """
    one, zero, tail = _sigmoids(values)
    s, u = one * zero, zero - one
    derivatives = [
        ops.maximum(values, 0.0) + ops.log1p(tail),
        one,
        s,
        s * u,
        s * (1 - 6 * s),
        s * u * (1 - 12 * s),
        s * (1 - 30 * s + 120 * s * s),
    ]
    return derivatives[: largest_order + 1]


def _sigmoids(values: Any) -> tuple[Any, Any, Any]:
    """`σ(x)`, `σ(-x)` and `exp(-|x|)`, each to full precision however small, of one exponential."""
    tail = ops.exp(-ops.abs(values))
    commoner = 1 / (1 + tail)
    rarer = tail * commoner
    positive = values > 0
    return ops.where(positive, commoner, rarer), ops.where(positive, rarer, commoner), tail
