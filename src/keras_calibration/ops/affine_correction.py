"""Scale and bias of the logit that minimise the log loss, from the one-pass summary.

The mean log loss of `σ(a l + c)` is `[Σ w softplus(a l + c) - a Σ w y l - c Σ w y] / Σ w`: the
labels enter through two sums whatever a and c are, so that Platt scaling and temperature scaling
need no more than the summary of logits that the bias alone needs.
"""

from typing import Any

import keras
from keras import ops

from keras_calibration.ops.folds import fitting_sums, scored_sums
from keras_calibration.ops.logit_moments import (
    bias_root,
    centres_and_moments,
    label_sums,
    log_loss_sum,
    softplus_derivatives,
    taylor_sum,
    total_weight,
)

CORRECTIONS = ("bias", "temperature", "platt")

# Beyond it the loss may be off by more than 1e-3 nats a row, at worst.
_LARGEST_SCALE = (1e-3 / 1.4e-9) ** (1 / 6)
_LARGEST_NUM_STEPS = 60
_TOLERANCE = 1e-9
_ROUNDING = {"float32": 1e-5, "float64": 1e-13}


def fit_correction(summary: Any, correction: str) -> tuple[Any, Any]:
    """`argmin` of the log loss of `σ(a l + c)` over what the correction leaves free.

    `"bias"`: c, with a = 1. `"temperature"`: a (the inverse temperature), with c = 0. `"platt"`:
    both. The last two are found by Newton steps, each halved until the loss falls. Their loss is
    right to 1.4e-9 a⁶.

    Args:
        summary: Summaries (g, 128, 8), as `by_group` and `logit_moments` give them.
        correction: One of `CORRECTIONS`.

    Returns:
        Scales a (g,) and biases c (g,); NaN where no finite ones exist or can be told: no rows, one
        class only, labels that a threshold on the logit separates, or a scale beyond 9.4, for which
        the bins are too wide (1e-3 nats a row at worst).

    Example:
        >>> import numpy as np
        >>> from keras_calibration.ops import by_group, logit_moments
        >>> logits = np.array([-2.0, -2.0, -2.0, 1.0, 1.0])
        >>> labels = np.array([1.0, 0.0, 0.0, 1.0, 0.0])  # clicks: one of three, one of two
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
    clicks, no_clicks, _ = label_sums(summary)
    solvable = ops.logical_and(clicks > 0, no_clicks > 0)
    start = bias_root(summary) if is_platt else ops.zeros_like(clicks)
    start = ops.where(solvable, start, 0.0)

    def improve(scale: Any, bias: Any, loss: Any, fraction: Any, _: Any) -> tuple[Any, ...]:
        scale_step, bias_step = _newton_step(summary, scale, bias, is_platt)
        new_scale, new_bias = scale - fraction * scale_step, bias - fraction * bias_step
        new_loss = log_loss_sum(summary, new_bias, new_scale)
        better = new_loss <= loss
        return (
            ops.where(better, new_scale, scale),
            ops.where(better, new_bias, bias),
            ops.where(better, new_loss, loss),
            ops.where(better, 1.0, 0.5 * fraction),
            # Where no fraction of a step is better, rounding is all that is left.
            ops.where(fraction < 1e-6, 0.0, ops.abs(scale_step) + ops.abs(bias_step)),
        )

    one = ops.ones_like(start)
    scale, bias, loss, _, moved = ops.while_loop(
        lambda scale, bias, loss, fraction, moved: ops.any(moved > _TOLERANCE),
        improve,
        (one, start, log_loss_sum(summary, start), one, one),
        maximum_iterations=_LARGEST_NUM_STEPS,
    )
    settled = ops.logical_and(moved <= 1e-3, ops.abs(scale) < _LARGEST_SCALE)
    found = ops.logical_and(ops.logical_and(solvable, ops.isfinite(loss)), settled)
    return ops.where(found, scale, float("nan")), ops.where(found, bias, float("nan"))


def cross_fitted_loss(summary: Any, held_out: bool, correction: str) -> tuple[Any, Any, Any]:
    """Mean log loss of all scored rows, each part corrected by what was fitted on the others.

    Args:
        summary: Summaries of the groups of rows (groups, 128, 8).
        held_out: Whether the first group is fitted on and the second scored, as for
            `fitting_sums`; otherwise the groups are folds.
        correction: One of `CORRECTIONS`.

    Returns:
        The loss in nats, a scalar, and the scales and biases (corrections,) that it was taken with.
    """
    scale, bias = fit_correction(fitting_sums(summary, held_out), correction)
    scored = scored_sums(summary, held_out)
    losses = log_loss_sum(scored, bias, None if correction == "bias" else scale)
    return ops.sum(losses) / ops.sum(total_weight(scored)), scale, bias


def _newton_step(summary: Any, scale: Any, bias: Any, is_platt: bool) -> tuple[Any, Any]:
    """Gradient over Hessian in (a, c), or in a alone, of the summary's own log loss."""
    clicks, _, click_logits = label_sums(summary)
    centres, moments = centres_and_moments(summary)
    derivatives = softplus_derivatives(scale[:, None] * centres + bias[:, None])

    def of_rows(order: int, power: int) -> Any:
        return taylor_sum(moments, derivatives, order, power, scale)

    # A derivative in a brings down a factor l = m + o, m the centre of the bin.
    by_bias, curved, curved_by_offset = of_rows(1, 0), of_rows(2, 0), of_rows(2, 1)
    scale_gradient = ops.sum(centres * by_bias + of_rows(1, 1), axis=-1) - click_logits
    total = ops.sum(curved, axis=-1)
    # About the centre of the curvature, scale and bias do not act on each other.
    middle = ops.zeros_like(total)
    if is_platt:
        middle = ops.divide_no_nan(ops.sum(centres * curved + curved_by_offset, axis=-1), total)
    distance = centres - middle[:, None]
    parts = (ops.square(distance) * curved, 2 * distance * curved_by_offset, of_rows(2, 2))
    second = ops.sum(sum(parts), axis=-1)
    # Where all logits are the same, what is left is rounding: no scale is better than another.
    noise = _ROUNDING[keras.backend.standardize_dtype(summary.dtype)] * ops.sum(
        sum(map(ops.abs, parts)), axis=-1
    )
    second = ops.where(second > noise, second, 0.0)
    if not is_platt:
        return ops.divide_no_nan(scale_gradient, second), ops.zeros_like(bias)
    bias_gradient = ops.sum(by_bias, axis=-1) - clicks
    scale_step = ops.divide_no_nan(scale_gradient - middle * bias_gradient, second)
    bias_step = ops.divide_no_nan(bias_gradient, total) - middle * scale_step
    return scale_step, bias_step
