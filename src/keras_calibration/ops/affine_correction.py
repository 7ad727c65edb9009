"""Scale and bias of the logit that minimise the log loss, from the one-pass histogram.

The mean log loss of `σ(a l + c)` is `[Σ w softplus(a l + c) - a Σ w y l - c Σ w y] / Σ w`: the
labels enter through two sums whatever a and c are, so that Platt scaling and temperature scaling
need no more than the histogram of logits that the bias alone needs.
"""

from typing import Any

from keras import ops

from keras_calibration.ops.folds import fitting_sums, scored_sums
from keras_calibration.ops.logit_histogram import (
    BIN_WIDTH,
    bias_root,
    logistic_slope,
    softplus_sum,
    weight_mean_variance,
)

CORRECTIONS = ("bias", "temperature", "platt")

_LARGEST_NUM_STEPS = 60
_TOLERANCE = 1e-9


def fit_correction(histogram: Any, label_sums: Any, correction: str) -> tuple[Any, Any]:
    """`argmin` of the log loss of `σ(a l + c)` over what the correction leaves free.

    `"bias"`: c, with a = 1. `"temperature"`: a (the inverse temperature), with c = 0. `"platt"`:
    both. The last two are found by Newton steps, each halved until the loss falls.

    Args:
        histogram: Histograms (g, 2048, 3), as `logit_histogram` gives them.
        label_sums: `Σ w y`, `Σ w (1 - y)`, `Σ w y l` of the same rows (g, 3).
        correction: One of `CORRECTIONS`.

    Returns:
        Scales a (g,) and biases c (g,); NaN where no finite ones exist or can be told: no rows, one
        class only, or labels that a threshold on the logit separates (the steps then do not end).

    Example:
        >>> import numpy as np
        >>> from keras_calibration.ops import logit_histogram
        >>> logits = np.array([-2.0, -2.0, -2.0, 1.0, 1.0])
        >>> histogram = logit_histogram(logits, np.ones(5), np.zeros(5, "int32"), 1)
        >>> label_sums = np.array([[2.0, 3.0, -2.0 + 1.0]])  # clicks: one of three, one of two
        >>> scale, bias = fit_correction(histogram, label_sums, "platt")
        >>> round(float(-2 * scale[0] + bias[0]), 4), round(abs(float(scale[0] + bias[0])), 4)
        (-0.6931, 0.0)

    Reference:
        Fan et al., *Calibration-then-Calculation*, arXiv 2401.16692; Platt (1999), *Probabilistic
        outputs for support vector machines*.
    """
    histogram, label_sums = ops.convert_to_tensor(histogram), ops.convert_to_tensor(label_sums)
    clicks, no_clicks = label_sums[:, 0], label_sums[:, 1]
    if correction == "bias":
        bias = bias_root(histogram, clicks, no_clicks)
        return ops.ones_like(bias), bias
    is_platt = correction == "platt"
    solvable = ops.logical_and(clicks > 0, no_clicks > 0)
    start = bias_root(histogram, clicks, no_clicks) if is_platt else ops.zeros_like(clicks)
    start = ops.where(solvable, start, 0.0)

    def improve(scale: Any, bias: Any, fraction: Any, _: Any) -> tuple[Any, Any, Any, Any]:
        scale_step, bias_step = _newton_step(histogram, label_sums, scale, bias, is_platt)
        new_scale, new_bias = scale - fraction * scale_step, bias - fraction * bias_step
        loss = affine_loss_sum(histogram, label_sums, scale, bias)
        better = affine_loss_sum(histogram, label_sums, new_scale, new_bias) <= loss
        moved = ops.abs(scale_step) + ops.abs(bias_step)
        return (
            ops.where(better, new_scale, scale),
            ops.where(better, new_bias, bias),
            ops.where(better, 1.0, 0.5 * fraction),
            # Where no fraction of a step is better, rounding is all that is left.
            ops.where(fraction < 1e-6, 0.0, moved),
        )

    one = ops.ones_like(start)
    scale, bias, _, moved = ops.while_loop(
        lambda scale, bias, fraction, moved: ops.any(moved > _TOLERANCE),
        improve,
        (one, start, one, one),
        maximum_iterations=_LARGEST_NUM_STEPS,
    )
    is_finite = ops.isfinite(affine_loss_sum(histogram, label_sums, scale, bias))
    found = ops.logical_and(ops.logical_and(solvable, is_finite), moved <= 1e-3)
    return ops.where(found, scale, float("nan")), ops.where(found, bias, float("nan"))


def cross_fitted_loss(
    histogram: Any, label_sums: Any, held_out: bool, correction: str
) -> tuple[Any, Any, Any]:
    """Mean log loss of all scored rows, each part corrected by what was fitted on the others.

    Args:
        histogram: Histograms of the groups of rows (groups, 2048, 3).
        label_sums: `Σ w y`, `Σ w (1 - y)`, `Σ w y l` of the groups (groups, 3).
        held_out: Whether the first group is fitted on and the second scored, as for
            `fitting_sums`; otherwise the groups are folds.
        correction: One of `CORRECTIONS`.

    Returns:
        The loss in nats, a scalar, and the scales and biases (corrections,) that it was taken with.
    """
    scale, bias = fit_correction(
        fitting_sums(histogram, held_out), fitting_sums(label_sums, held_out), correction
    )
    scored = scored_sums(histogram, held_out)
    losses = affine_loss_sum(scored, scored_sums(label_sums, held_out), scale, bias)
    return ops.sum(losses) / ops.sum(scored[..., 0]), scale, bias


def affine_loss_sum(histogram: Any, label_sums: Any, scale: Any, bias: Any) -> Any:
    """`Σ w` log loss of `σ(a l + c)` of each histogram at its own scale and bias.

    Args:
        histogram: Histograms (g, 2048, 3).
        label_sums: `Σ w y`, `Σ w (1 - y)`, `Σ w y l` (g, 3).
        scale: Scales a (g,).
        bias: Biases c (g,).

    Returns:
        Sums of losses in nats (g,).
    """
    labels = scale * label_sums[:, 2] + bias * label_sums[:, 0]
    return softplus_sum(histogram, bias, scale) - labels


def _newton_step(
    histogram: Any, label_sums: Any, scale: Any, bias: Any, is_platt: bool
) -> tuple[Any, Any]:
    """Gradient over Hessian in (a, c), or in a alone."""
    weight, mean, variance = weight_mean_variance(histogram, BIN_WIDTH)
    shifted = scale[:, None] * mean + bias[:, None]
    slope = logistic_slope(shifted)
    # Derivatives of n [softplus(a m + c) + ½ a² v q (1 - q)], what the histogram's loss is made of.
    third = 0.5 * variance * ops.square(scale[:, None]) * slope * ops.tanh(-0.5 * shifted)
    by_shift = weight * (ops.sigmoid(shifted) + third)
    spread = ops.sum(weight * variance * slope, axis=-1)
    scale_gradient = ops.sum(by_shift * mean, axis=-1) + scale * spread - label_sums[:, 2]
    curvature = weight * slope
    second = ops.sum(curvature * ops.square(mean), axis=-1) + spread
    if not is_platt:
        return ops.divide_no_nan(scale_gradient, second), ops.zeros_like(bias)
    bias_gradient = ops.sum(by_shift, axis=-1) - label_sums[:, 0]
    total = ops.sum(curvature, axis=-1)
    # About the centre of the curvature, scale and bias do not act on each other.
    centre = ops.divide_no_nan(ops.sum(curvature * mean, axis=-1), total)
    around = ops.sum(curvature * ops.square(mean - centre[:, None]), axis=-1) + spread
    scale_step = ops.divide_no_nan(scale_gradient - centre * bias_gradient, around)
    bias_step = ops.divide_no_nan(bias_gradient, total) - centre * scale_step
    return scale_step, bias_step
