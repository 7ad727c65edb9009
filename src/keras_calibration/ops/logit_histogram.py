"""A fixed-size, mergeable summary of logits that gives the log loss at any bias.

The mean log loss of `σ(l + c)` is `[Σ w softplus(l + c) - Σ w y l - c Σ w y] / Σ w`. The label part
is two exact sums; only `Σ w softplus(l + c)` needs the logits, and it needs no labels. It is summed
over 2048 bins of width 1/64 on [-16, 16], each with its weight and the first two moments about its
centre. A power of two makes bin number, centre and offset exact in float32. With a bin's mean m and
variance v, `Σ softplus ≈ n [softplus(m + c) + ½ v q (1 - q)]`, q = σ(m + c): at most 8e-9 off for
each row. The end bins are open: their rows count by their mean (first order).

A histogram is a tensor (..., 2048, 3); histograms add up over batches, replicas and shards.
"""

from typing import Any

import keras
import numpy as np
from keras import ops

NUM_BINS = 2048
BIN_WIDTH = 1 / 64
LARGEST_CENTRE = (NUM_BINS - 1) / 2 * BIN_WIDTH

# For the bias, 16 bins are first taken together: the search is then as cheap as a few products.
_BINS_TOGETHER = 16
_LARGEST_NUM_COARSE_STEPS = 150  # bisection from the largest float32 logits takes 140
_COARSE_TOLERANCE = 1e-3
_NUM_FINE_STEPS = 2


def logit_histogram(logits: Any, weights: Any, group: Any, num_groups: int) -> Any:
    """Weight and first two moments of the logits of each group, bin by bin.

    Args:
        logits: Logits (n,), float. One that is not finite makes everything computed from its group
            NaN.
        weights: Weights (n,), of the same dtype, not negative.
        group: The group of each row (n,), int32 in [0, num_groups).
        num_groups: Number of groups.

    Returns:
        A tensor (num_groups, 2048, 3) of the dtype of `logits`: `Σ w`, `Σ w (l - centre)`,
        `Σ w (l - centre)²`.

    Example:
        >>> histogram = logit_histogram(ops.array([0.0, 1.0]), ops.ones(2), [0, 0], 1)
        >>> histogram.shape[1:], float(ops.sum(histogram[..., 0]))
        (TensorShape([2048, 3]), 2.0)
    """
    bin_number, *powers = _binned(logits)
    moments = ops.stack([weights, *(weights * power for power in powers)], axis=1)
    return _sums_by_bin(moments, bin_number, group, num_groups)


def labelled_histogram(
    labels: Any, logits: Any, weights: Any, group: Any, num_groups: int
) -> tuple[Any, Any]:
    """The histogram of each group and its label sums, in one pass over the rows.

    Args:
        labels: Labels y in [0, 1] (n,), of the dtype of the logits.
        logits: Logits (n,), as for `logit_histogram`.
        weights: Weights (n,), as for `logit_histogram`.
        group: The group of each row (n,), int32 in [0, num_groups).
        num_groups: Number of groups.

    Returns:
        What `logit_histogram` returns, and `Σ w y`, `Σ w (1 - y)`, `Σ w y l` (num_groups, 3).

    Example:
        >>> rows = ops.array([1.0, 0.0]), ops.array([2.0, -3.0]), ops.ones(2)
        >>> histogram, label_sums = labelled_histogram(*rows, [0, 0], 1)
        >>> print(label_sums.numpy())
        [[1. 1. 2.]]
    """
    bin_number, *powers = _binned(logits)
    moments = [weights, *(weights * power for power in powers)]
    clicks = weights * labels
    # One sum by segments of six columns costs little more than one of three.
    columns = ops.stack([*moments, clicks, weights * (1 - labels), clicks * logits], axis=1)
    sums = _sums_by_bin(columns, bin_number, group, num_groups)
    return sums[..., :3], ops.sum(sums[..., 3:], axis=1)


def _binned(logits: Any) -> tuple[Any, Any, Any]:
    """Bin number of each logit, its offset from the centre, and the square of that."""
    logits = ops.convert_to_tensor(logits)
    position = ops.floor(logits / BIN_WIDTH) + NUM_BINS // 2
    # NaN has no bin number; its moments make the result NaN from whichever bin.
    bin_number = ops.where(ops.isnan(position), 0.0, ops.clip(position, 0, NUM_BINS - 1))
    offset = logits - (bin_number * BIN_WIDTH - LARGEST_CENTRE)
    offset = ops.where(ops.isfinite(logits), offset, float("nan"))
    # The square of a huge logit would overflow; the open end bins need none.
    square = ops.square(ops.clip(offset, -BIN_WIDTH, BIN_WIDTH))
    return ops.cast(bin_number, "int32"), offset, square


def _sums_by_bin(columns: Any, bin_number: Any, group: Any, num_groups: int) -> Any:
    cell = ops.convert_to_tensor(group, "int32") * NUM_BINS + bin_number
    sums = ops.segment_sum(columns, cell, num_segments=num_groups * NUM_BINS)
    return ops.reshape(sums, (num_groups, NUM_BINS, -1))


def softplus_sum(histogram: Any, bias: Any, scale: Any = None) -> Any:
    """`Σ w softplus(a l + c)` of each histogram at its own scale and bias.

    Args:
        histogram: Histograms (g, 2048, 3).
        bias: Biases c (g,).
        scale: Scales a (g,), or None for 1.

    Returns:
        Sums (g,).
    """
    weight, mean, variance = weight_mean_variance(histogram, BIN_WIDTH)
    if scale is not None:
        mean, variance = scale[:, None] * mean, ops.square(scale[:, None]) * variance
    shifted = mean + bias[:, None]
    # One exponential for both the softplus and its second derivative.
    tail = ops.exp(-ops.abs(shifted))
    softplus = ops.maximum(shifted, 0.0) + ops.log1p(tail)
    second_order = 0.5 * variance * tail / ops.square(1 + tail)
    return ops.sum(weight * (softplus + second_order), axis=-1)


def bias_root(histogram: Any, clicks: Any, no_clicks: Any) -> Any:
    """The bias c at which the predictions add up to the labels: `Σ w σ(l + c) = Σ w y`.

    It is `argmin_c` of the log loss of `σ(l + c)`. The equation is solved in logits,
    `logit mean σ(l + c) = logit mean y`, where it is close to linear in c: safeguarded Newton steps
    (bisection where one leaves the bracket) on bins of 1/4, four as a rule, then two on bins of
    1/64. Logits beyond ±340 (±43 in float32) count as these.

    Args:
        histogram: Histograms (g, 2048, 3).
        clicks: `Σ w y` of the same rows (g,).
        no_clicks: `Σ w (1 - y)` of the same rows (g,). It is no difference of sums, so that it is
            exactly 0 where every label is 1.

    Returns:
        Biases (g,); NaN where there is no row, or where all labels are 0 or all are 1, for then no
        finite bias exists.

    Example:
        >>> histogram = logit_histogram(ops.zeros(4), ops.ones(4), [0, 0, 0, 0], 1)
        >>> bias = bias_root(histogram, clicks=ops.array([1.0]), no_clicks=ops.array([3.0]))
        >>> round(float(bias[0]), 4)  # the logit of 1/4
        -1.0986

    Reference:
        Fan et al., *Calibration-then-Calculation*, arXiv 2401.16692 (their bias is -c).
    """
    solvable = ops.logical_and(clicks > 0, no_clicks > 0)
    target = ops.where(solvable, ops.log(clicks) - ops.log(no_clicks), 0.0)

    weight, mean, variance = weight_mean_variance(
        _take_together(histogram), _BINS_TOGETHER * BIN_WIDTH
    )
    mean = _within_exponent_range(mean)
    coarse = (weight, ops.exp(-mean), variance)
    largest = ops.max(ops.where(weight > 0, mean, -float("inf")), axis=-1)
    smallest = ops.min(ops.where(weight > 0, mean, float("inf")), axis=-1)
    # At the ends every σ(l + c) is on one side of the mean label; the rest is for the variances.
    low, high = target - largest - 1.0, target - smallest + 1.0

    def improve(bias: Any, low: Any, high: Any, _: Any) -> tuple[Any, Any, Any, Any]:
        value, step = _newton_step(coarse, bias, target)
        low, high = ops.where(value < 0, bias, low), ops.where(value > 0, bias, high)
        proposed = bias - step
        inside = ops.logical_and(proposed > low, proposed < high)
        improved = ops.where(inside, proposed, 0.5 * (low + high))
        return improved, low, high, ops.abs(improved - bias)

    start = target - ops.divide_no_nan(ops.sum(weight * mean, axis=-1), ops.sum(weight, axis=-1))
    bias, *_ = ops.while_loop(
        # A group without a root is NaN: it neither goes on nor stops the others.
        lambda bias, low, high, moved: ops.any(moved > _COARSE_TOLERANCE),
        improve,
        (start, low, high, high - low),
        maximum_iterations=_LARGEST_NUM_COARSE_STEPS,
    )
    weight, mean, variance = weight_mean_variance(histogram, BIN_WIDTH)
    fine = (weight, ops.exp(-_within_exponent_range(mean)), variance)
    for _ in range(_NUM_FINE_STEPS):
        _, step = _newton_step(fine, bias, target)
        # The coarse root is close; a long step means that any bias nearby does as well.
        bias = bias - ops.clip(step, -0.1, 0.1)
    return ops.where(solvable, bias, float("nan"))


def _newton_step(summary: tuple[Any, Any, Any], bias: Any, target: Any) -> tuple[Any, Any]:
    """`logit mean σ(l + c) - target`, and that divided by its derivative in c.

    The summary holds `exp(-mean)`: `σ(m + c) = 1 / (1 + exp(-m) exp(-c))`, so that a step takes no
    exponential but that of the bias.
    """
    weight, exponential, variance = summary
    odds_against = exponential * ops.exp(-_within_exponent_range(bias))[:, None]
    one = 1 / (1 + odds_against)
    zero = odds_against * one
    slope = one * zero
    correction = 0.5 * variance * slope * (zero - one)
    ones = ops.sum(weight * (one + correction), axis=-1)
    zeros = ops.sum(weight * (zero - correction), axis=-1)
    value = ops.log(ones) - ops.log(zeros) - target
    derivative = ops.sum(weight * slope, axis=-1) * (1 / ones + 1 / zeros)
    return value, ops.divide_no_nan(value, derivative)


def _within_exponent_range(values: Any) -> Any:
    """Logits or biases of which the product of two exponentials is finite; NaN stays."""
    limit = 340.0 if keras.backend.standardize_dtype(values.dtype) == "float64" else 43.0
    # The comparison keeps NaN, which a clip may turn into an end of the range.
    return ops.where(ops.isnan(values), values, ops.clip(values, -limit, limit))


def logistic_slope(logits: Any) -> Any:
    """`σ(l) (1 - σ(l))`, without cancellation.

    Args:
        logits: Logits, any shape.

    Returns:
        The derivative of the sigmoid, of the same shape.
    """
    return ops.sigmoid(logits) * ops.sigmoid(-logits)


def weight_mean_variance(histogram: Any, width: float) -> tuple[Any, Any, Any]:
    """Weight, mean logit and variance of each bin.

    Args:
        histogram: Histograms (…, bins, 3) on bins of this width about 0.
        width: Width of the bins.

    Returns:
        Three tensors (…, bins). The mean of an empty bin is its centre.
    """
    num_bins = histogram.shape[-2]
    centres = (np.arange(num_bins) - (num_bins - 1) / 2) * width
    weight, first, second = (histogram[..., moment] for moment in range(3))
    offset = ops.divide_no_nan(first, weight)
    variance = ops.divide_no_nan(second, weight) - ops.square(offset)
    # No closed bin has more; the open end bins count to first order.
    variance = ops.clip(variance, 0.0, (width / 2) ** 2)
    return weight, ops.cast(centres, histogram.dtype) + offset, variance


def _take_together(histogram: Any) -> Any:
    """The same summary on bins `_BINS_TOGETHER` times as wide: moments move to the new centres."""
    shape = (-1, NUM_BINS // _BINS_TOGETHER, _BINS_TOGETHER)
    weight, first, second = (ops.reshape(histogram[..., moment], shape) for moment in range(3))
    move = (np.arange(_BINS_TOGETHER) - (_BINS_TOGETHER - 1) / 2) * BIN_WIDTH
    move = ops.cast(move, histogram.dtype)
    moved_first = first + weight * move
    moved_second = second + first * (2 * move) + weight * ops.square(move)
    moments = [ops.sum(moment, axis=-1) for moment in (weight, moved_first, moved_second)]
    return ops.stack(moments, axis=-1)
