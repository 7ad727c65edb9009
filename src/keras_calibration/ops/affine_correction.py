"""Scale and bias of the logit that minimise the log loss, from the one-pass summary."""

from typing import Any

import keras
import numpy as np
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
        >>> from keras_calibration.ops.logit_moments import by_group, logit_moments
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
    start = _start(summary, is_platt)

    def improve(state: Any) -> tuple[Any]:
        old = ops.unstack(state, _NUM_STATES)
        return (_improved(weights, is_platt, *old),)

    def goes_on(state: Any) -> Any:
        loss, fraction, gain = state[2], state[5], state[6]
        # NaN where nothing can be found: that neither goes on nor stops the others.
        return ops.any(
            ops.logical_and(gain > _LAST_GAIN * loss, fraction > _SMALLEST_FRACTION),
        )

    (state,) = ops.while_loop(goes_on, improve, (start,), maximum_iterations=_LARGEST_NUM_STEPS)
    # What the last step gains is too little to be compared, but brings digits.
    found = state[6] <= _LARGEST_GAIN * state[2]
    scale, bias = state[0] - state[3], state[1] - state[4]
    return ops.where(found, scale, float("nan")), ops.where(found, bias, float("nan"))


# What the search carries: scale, bias, loss, Newton's step in scale and bias, the fraction of it to
# try next, what it may gain, and the centre of the curvature.
_NUM_STATES = 8
# The first step, of length 0, takes the loss where it starts. No loss is as large as this one.
_START = np.array([1, 0, 3e38, 0, 0, 1, np.inf, 0])[:, None]


def _start(summary: Any, is_platt: bool) -> Any:
    """What the search for scale and bias starts from (8, g); NaN where there is none."""
    if is_platt:
        bias = bias_root(summary)
    else:
        positives, negatives, _ = label_sums(summary)
        bias = ops.where(ops.logical_and(positives > 0, negatives > 0), 0.0, float("nan"))
        bias = ops.cast(bias, summary.dtype)
    is_bias = ops.cast(np.eye(_NUM_STATES)[:, 1:2], bias.dtype)
    return ops.cast(_START, bias.dtype) + is_bias * bias


def _improved(
    weights: tuple[Any, Any],
    is_platt: bool,
    scale: Any,
    bias: Any,
    loss: Any,
    scale_step: Any,
    bias_step: Any,
    fraction: Any,
    gain: Any,
    centre: Any,
) -> Any:
    """The next state: Newton's step where it lowers the loss, else half of it to try next."""
    rounding = _ROUNDING[keras.backend.standardize_dtype(loss.dtype)]
    new_scale = ops.clip(scale - fraction * scale_step, -_LARGEST_SCALE, _LARGEST_SCALE)
    new_bias = bias - fraction * bias_step
    new = _newton_step(*weights, new_scale, new_bias, centre, is_platt)
    better = new[2] <= loss + rounding * ops.abs(loss)
    old = [scale, bias, loss, scale_step, bias_step, 0.5 * fraction, gain, centre]
    return ops.where(better, ops.stack(new, axis=0), ops.stack(old, axis=0))


def _newton_step(
    of_0: Any, of_1: Any, scale: Any, bias: Any, centre: Any, is_platt: bool
) -> list[Any]:
    """The state at a scale and bias, with Newton's step from there, in both or in the scale."""
    at = terms_at(of_0, of_1, bias, scale)
    logits = ops.cast(LOGITS, of_0.dtype) - centre[:, None]
    slope, curved = at.weight * with_bias(at.slope), at.weight * at.curvature
    # The slope of an offset has no centre.
    by_logit = at.weight * at.slope * ops.cast(LOGITS, of_0.dtype)
    first = curved * logits
    loss, by_scale, by_bias, total, first, second = sums(
        [at.weight * at.loss, by_logit, slope, curved, first, first * logits]
    )
    if is_platt:
        # About the centre of the curvature, scale and bias do not act on each other; the one of
        # the last step is close to it.
        shift = ops.divide_no_nan(first, total)
        second, centre = second - shift * first, centre + shift
        by_scale = by_scale - centre * by_bias
    # Where all logits are the same, what is left is rounding: no scale is better than another.
    noise = _NOISE[keras.backend.standardize_dtype(of_0.dtype)] * total / 16
    second = ops.where(second > noise, second, 0.0)
    scale_step = ops.divide_no_nan(by_scale, second)
    gain = ops.abs(by_scale * scale_step)
    bias_step = ops.zeros_like(bias)
    if is_platt:
        own_step = ops.divide_no_nan(by_bias, total)
        bias_step, gain = own_step - centre * scale_step, gain + ops.abs(by_bias * own_step)
    # Where the curvature is next to nothing, the step would be past all bounds.
    reach = ops.maximum(ops.abs(scale), 1.0)
    shortened = reach / ops.maximum(ops.abs(scale_step), reach)
    steps = [shortened * scale_step, shortened * bias_step]
    return [scale, bias, loss, *steps, ops.ones_like(scale), gain, centre]


def cross_fitted_loss(summary: Any, held_out: bool, correction: str) -> tuple[Any, Any, Any]:
    """Mean log loss of all scored rows, each part corrected by what was fitted on the others.

    Args:
        summary: Summaries of the groups of rows (groups, 418, 8).
        held_out: Whether the first group is fitted on and the second scored, as for
            `fitting_sums`; otherwise the groups are folds.
        correction: One of `CORRECTIONS`.

    Returns:
        The loss in nats, a scalar, and the scales and biases (corrections,) that it was taken with,
        NaN where the loss of their part is.
    """
    scale, bias = fit_correction(fitting_sums(summary, held_out), correction)
    scored = scored_sums(summary, held_out)
    losses, weights = log_loss_and_weight(scored, bias, None if correction == "bias" else scale)
    # A correction whose loss cannot be told is none to go by.
    spoilt = ops.where(ops.isnan(losses), float("nan"), 0.0)
    scale, bias = (values + ops.cast(spoilt, values.dtype) for values in (scale, bias))
    return ops.sum(losses) / ops.sum(weights), scale, bias
