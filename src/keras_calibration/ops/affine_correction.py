"""Scale and bias of the logit that minimise the log loss, from the one-pass summary."""

from typing import Any

import keras
from keras import ops

from keras_calibration.ops.folds import fitting_sums, scored_sums
from keras_calibration.ops.logit_moments import (
    LOGITS,
    bias_root,
    label_sums,
    log_loss_and_weight,
    sums,
    terms,
    terms_at,
    with_bias,
)

CORRECTIONS = ("bias", "temperature", "platt")

# The bins are too wide for scales a tenth as large.
_LARGEST_SCALE = 64.0
_LARGEST_NUM_STEPS = 80
_SMALLEST_FRACTION = 1e-6
# Shares of the loss: what Newton's step may still gain, at the last step and in the result.
_LAST_GAIN, _LARGEST_GAIN = 1e-9, 1e-7
# Shares of the loss that rounding makes up, and of the curvature that it and the bins make up.
_ROUNDING = {"float32": 1e-6, "float64": 1e-14}
_NOISE = {"float32": 1e-5, "float64": 1e-6}


def fit_correction(summary: Any, correction: str) -> tuple[Any, Any]:
    """`argmin` of the log loss of `σ(a l + c)` over what the correction leaves free.

    `"bias"`: c, with a = 1. `"temperature"`: a (the inverse temperature), with c = 0. `"platt"`:
    both. The last two are found by Newton steps, each halved until the loss falls.

    Args:
        summary: Summaries (g, 418, 8), as `by_group` and `logit_moments` give them.
        correction: One of `CORRECTIONS`.

    Returns:
        Scales a (g,) and biases c (g,); NaN where no finite ones exist or can be told: no rows, one
        class only, labels that a threshold on the logit separates, or a scale too large for the
        bins (beyond 4 to 5; see `logit_moments`).

    Example:
        >>> import numpy as np
        >>> from keras_calibration.ops import by_group, logit_moments
        >>> logits = np.array([-2.0, -2.0, -2.0, 1.0, 1.0])
        >>> labels = np.array([1.0, 0.0, 0.0, 1.0, 0.0])  # positive: one of three, one of two
        >>> summary = by_group(logit_moments(labels, logits, np.ones(5), np.zeros(5, "int32"), 1))
        >>> scale, bias = fit_correction(summary, "platt")
        >>> round(float(-2 * scale[0] + bias[0]), 4), round(abs(float(scale[0] + bias[0])), 4)
        (-0.6931, 0.0)

    Reference:
        Fan et al., *Calibration-then-Calculation*, arXiv 2401.16692; Platt (1999), *Probabilistic
        outputs for support vector machines*.
    """
    summary = ops.convert_to_tensor(summary)
    if correction == "bias":
        bias = bias_root(summary)
        return ops.ones_like(bias), bias
    is_platt = correction == "platt"
    weights = terms(summary)
    positives, negatives, _ = label_sums(summary)
    solvable = ops.logical_and(positives > 0, negatives > 0)
    start = bias_root(summary) if is_platt else ops.zeros_like(positives)
    solvable = ops.logical_and(solvable, ops.isfinite(start))
    start = ops.where(solvable, start, 0.0)
    rounding = _ROUNDING[keras.backend.standardize_dtype(summary.dtype)]

    def improve(
        scale: Any, bias: Any, loss: Any, scale_step: Any, bias_step: Any, fraction: Any, gain: Any
    ) -> tuple[Any, ...]:
        new_scale = ops.clip(scale - fraction * scale_step, -_LARGEST_SCALE, _LARGEST_SCALE)
        new_bias = bias - fraction * bias_step
        new_loss, *steps, new_gain = _newton_step(*weights, new_scale, new_bias, is_platt)
        better = new_loss <= loss + rounding * ops.abs(loss)
        new = (new_scale, new_bias, new_loss, *steps, ops.ones_like(fraction), new_gain)
        old = (scale, bias, loss, scale_step, bias_step, 0.5 * fraction, gain)
        return tuple(ops.where(better, ours, theirs) for ours, theirs in zip(new, old, strict=True))

    def goes_on(scale: Any, bias: Any, loss: Any, _: Any, __: Any, fraction: Any, gain: Any) -> Any:
        unfinished = ops.logical_and(gain > _LAST_GAIN * loss, fraction > _SMALLEST_FRACTION)
        return ops.any(ops.logical_and(unfinished, solvable))

    one, zero = ops.ones_like(start), ops.zeros_like(start)
    # The first step, of length 0, takes the loss where it starts. No loss is as large as this one.
    largest = one * 3e38
    scale, bias, loss, scale_step, bias_step, _, gain = ops.while_loop(
        goes_on,
        improve,
        (one, start, largest, zero, zero, one, ops.full_like(one, float("inf"))),
        maximum_iterations=_LARGEST_NUM_STEPS,
    )
    found = ops.logical_and(solvable, gain <= _LARGEST_GAIN * loss)
    # What the last step gains is too little to be compared, but brings digits.
    return (
        ops.where(found, scale - scale_step, float("nan")),
        ops.where(found, bias - bias_step, float("nan")),
    )


def cross_fitted_loss(summary: Any, held_out: bool, correction: str) -> tuple[Any, Any, Any]:
    """Mean log loss of all scored rows, each part corrected by what was fitted on the others.

    Args:
        summary: Summaries of the groups of rows (groups, 418, 8).
        held_out: Whether the first group is fitted on and the second scored, as for
            `fitting_sums`; otherwise the groups are folds.
        correction: One of `CORRECTIONS`.

    Returns:
        The loss in nats, a scalar, and the scales and biases (corrections,) that it was taken with.
    """
    scale, bias = fit_correction(fitting_sums(summary, held_out), correction)
    scored = scored_sums(summary, held_out)
    losses, weights = log_loss_and_weight(scored, bias, None if correction == "bias" else scale)
    return ops.sum(losses) / ops.sum(weights), scale, bias


def _newton_step(
    of_0: Any, of_1: Any, scale: Any, bias: Any, is_platt: bool
) -> tuple[Any, Any, Any, Any]:
    """The loss, Newton's step in scale and bias (or in the scale alone), and what it may gain."""
    at = terms_at(of_0, of_1, bias, scale)
    logits = ops.cast(LOGITS, of_0.dtype)
    slope, curved = at.weight * at.slope, at.weight * at.curvature
    loss, by_scale, by_bias, total, first = sums(
        [at.weight * at.loss, slope * logits, with_bias(slope), curved, curved * logits]
    )
    # About the centre of the curvature, scale and bias do not act on each other.
    middle = ops.divide_no_nan(first, total) if is_platt else ops.zeros_like(total)
    second = ops.sum(ops.square(logits - middle[:, None]) * curved, axis=-1)
    # Where all logits are the same, what is left is rounding: no scale is better than another.
    noise = _NOISE[keras.backend.standardize_dtype(of_0.dtype)] * total / 16
    second = ops.where(second > noise, second, 0.0)
    gradient = by_scale - middle * by_bias if is_platt else by_scale
    scale_step = ops.divide_no_nan(gradient, second)
    bias_step = ops.zeros_like(bias)
    gain = ops.abs(gradient * scale_step)
    if is_platt:
        bias_step = ops.divide_no_nan(by_bias, total) - middle * scale_step
        gain = gain + ops.abs(by_bias * ops.divide_no_nan(by_bias, total))
    # Where the curvature is next to nothing, the step would be past all bounds.
    reach = ops.maximum(ops.abs(scale), 1.0)
    shortened = reach / ops.maximum(ops.abs(scale_step), reach)
    return loss, shortened * scale_step, shortened * bias_step, gain
