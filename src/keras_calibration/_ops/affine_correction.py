"""Scale and bias of the logit that minimise the log loss, fitted to a summary of the logits."""

from __future__ import annotations

from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from calibration_records._logit_moments import LOGITS
from keras_calibration._ops.folds import fitting_sums, scored_sums
from keras_calibration._ops.logit_moments import (
    bias_root,
    label_sums,
    log_loss_and_weight,
    sums,
    terms,
    terms_at,
    with_bias,
)
from keras_calibration._typing import Tensor

CORRECTIONS = ("bias", "temperature", "platt")

# The bins are already too wide for scales of a tenth of this.
_LARGEST_SCALE = 64.0
_LARGEST_NUM_STEPS = 80
_SMALLEST_FRACTION = 1e-6
# As shares of the loss: the gain at which Newton's steps end, and the largest gain of a result.
_LAST_GAIN, _LARGEST_GAIN = 1e-9, 1e-7
# As a share of the loss: its largest slope by log scale that counts as rounding.
_LARGEST_SLOPE = 1e-3
# Relative error of the loss from rounding, and of the curvature from rounding and the bins.
_ROUNDING = {"float32": 1e-6, "float64": 1e-14}
_NOISE = {"float32": 1e-5, "float64": 1e-6}


def fit_correction(summary: Tensor, correction: str) -> tuple[Tensor, Tensor]:
    """Scale a and bias c of each summary that minimise the log loss of `σ(a l + c)`.

    `"bias"` fits c with a = 1, `"temperature"` fits a (the inverse temperature) with c = 0,
    `"platt"` fits both. The last two use Newton steps, halved until the loss falls. The result is
    NaN where the minimum does not exist or cannot be found: no rows, labels of one class only,
    labels separated by a threshold on the logit, or a scale too large for the bins (see
    `logit_moments`).

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

    def improve(state: Tensor) -> tuple[Tensor]:
        return (_improved(weights, is_platt, _unstacked(state)),)

    def goes_on(state: Tensor) -> Tensor:
        search = _unstacked(state)
        # A NaN compares as False: a hopeless group neither continues nor stops the others.
        gains = search.gain > _LAST_GAIN * search.loss
        return ops.any(ops.logical_and(gains, search.fraction > _SMALLEST_FRACTION))

    (state,) = ops.while_loop(goes_on, improve, (start,), maximum_iterations=_LARGEST_NUM_STEPS)
    # The last step gains too little to be compared by its loss, but it adds digits.
    end = _unstacked(state)
    found = end.gain <= _LARGEST_GAIN * end.loss
    scale, bias = end.scale - end.scale_step, end.bias - end.bias_step
    return ops.where(found, scale, float("nan")), ops.where(found, bias, float("nan"))


class _Search(NamedTuple):
    """The state of the search for the scale and bias of each summary, all of shape (g,).

    `scale_step` and `bias_step` are Newton's step, `fraction` is the part of it to try next, `gain`
    what it is expected to lower the loss by, and `centre` the centre of the curvature.
    """

    scale: Tensor
    bias: Tensor
    loss: Tensor
    scale_step: Tensor
    bias_step: Tensor
    fraction: Tensor
    gain: Tensor
    centre: Tensor


def _unstacked(state: Tensor) -> _Search:
    return _Search(*ops.unstack(state, len(_Search._fields)))


# The first step has length 0 and computes the loss at the start. No loss is as large as 3e38.
_START = np.array([1, 0, 3e38, 0, 0, 1, np.inf, 0])[:, None]


def _start(summary: Tensor, is_platt: bool) -> Tensor:
    """The initial state of the search for scale and bias, shape (8, g); NaN where there is none."""
    positives, negatives, _ = label_sums(summary)
    bias = ops.where(ops.logical_and(positives > 0, negatives > 0), 0.0, float("nan"))
    bias = ops.cast(bias, summary.dtype)
    if is_platt:
        # A bias that is not determined at scale 1 may be at another.
        root = bias_root(summary)
        bias = ops.where(ops.isnan(root), bias, root)
    is_bias = ops.cast(np.eye(len(_START))[:, 1:2], bias.dtype)
    return ops.cast(_START, bias.dtype) + is_bias * bias


def _improved(weights: tuple[Tensor, Tensor], is_platt: bool, search: _Search) -> Tensor:
    """The next state: Newton's step where it lowers the loss, else half of it to try next."""
    rounding = _ROUNDING[keras.backend.standardize_dtype(search.loss.dtype)]
    scale = search.scale - search.fraction * search.scale_step
    scale = ops.clip(scale, -_LARGEST_SCALE, _LARGEST_SCALE)
    bias = search.bias - search.fraction * search.bias_step
    new = _newton_step(*weights, scale, bias, search.centre, is_platt)
    better = new.loss <= search.loss + rounding * ops.abs(search.loss)
    old = search._replace(fraction=0.5 * search.fraction)
    return ops.where(better, ops.stack(new, axis=0), ops.stack(old, axis=0))


def _newton_step(
    of_0: Tensor, of_1: Tensor, scale: Tensor, bias: Tensor, centre: Tensor, is_platt: bool
) -> _Search:
    """The state at a scale and bias, with Newton's next step in the scale or in both."""
    at = terms_at(of_0, of_1, bias, scale)
    logits = ops.cast(LOGITS, of_0.dtype) - centre[:, None]
    slope, curved = at.weight * with_bias(at.slope), at.weight * at.curvature
    # Offsets are not centred.
    by_logit = at.weight * at.slope * ops.cast(LOGITS, of_0.dtype)
    first = curved * logits
    loss, by_scale, by_bias, total, first, second = sums(
        [at.weight * at.loss, by_logit, slope, curved, first, first * logits]
    )
    if is_platt:
        # About the centre of the curvature, scale and bias do not interact. The centre of the last
        # step is close to it.
        shift = ops.divide_no_nan(first, total)
        second, centre = second - shift * first, centre + shift
        by_scale = by_scale - centre * by_bias
    # Where all logits are equal, only rounding is left: no scale is better than another.
    noise = _NOISE[keras.backend.standardize_dtype(of_0.dtype)] * total / 16
    second = ops.where(second > noise, second, 0.0)
    scale_step = ops.divide_no_nan(by_scale, second)
    gain = ops.abs(by_scale * scale_step)
    # Beyond all bins there is no curvature: where the loss still falls, its minimum is unknown.
    falls = ops.abs(scale * by_scale) > _LARGEST_SLOPE * loss
    gain = ops.where(ops.logical_and(second <= 0, falls), float("nan"), gain)
    bias_step = ops.zeros_like(bias)
    if is_platt:
        own_step = ops.divide_no_nan(by_bias, total)
        bias_step, gain = own_step - centre * scale_step, gain + ops.abs(by_bias * own_step)
    # Where the curvature is almost 0, the step would be far too large.
    reach = ops.maximum(ops.abs(scale), 1.0)
    shortened = reach / ops.maximum(ops.abs(scale_step), reach)
    scale_step, bias_step = shortened * scale_step, shortened * bias_step
    return _Search(scale, bias, loss, scale_step, bias_step, ops.ones_like(scale), gain, centre)


def cross_fitted_loss(
    summary: Tensor, held_out: bool, correction: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean log loss of the scored rows, with the scales and biases fitted on other rows."""
    scale, bias = fit_correction(fitting_sums(summary, held_out), correction)
    scored = scored_sums(summary, held_out)
    losses, weights = log_loss_and_weight(scored, bias, None if correction == "bias" else scale)
    # Where the loss is NaN, so are scale and bias.
    spoilt = ops.where(ops.isnan(losses), float("nan"), 0.0)
    scale, bias = (values + ops.cast(spoilt, values.dtype) for values in (scale, bias))
    return ops.sum(losses) / ops.sum(weights), scale, bias
