"""Log loss from logits, logits from probabilities and back, without overflow."""

from __future__ import annotations

import keras
from keras import ops

from calibration_records._limits import SMALLEST_PROBABILITY
from keras_calibration._typing import Tensor


def log_loss_from_logits(labels: Tensor, logits: Tensor) -> Tensor:
    """Log loss of each row: `(1 - y) softplus(l) + y softplus(-l)`.

    It equals `-[y log σ(l) + (1 - y) log(1 - σ(l))]` and is accurate for any finite logit. That
    formula on probabilities fails where the sigmoid rounds to 0 or 1, and `softplus(l) - y l` loses
    the small losses of confident predictions.

    Args:
        labels: Labels y in [0, 1], any shape.
        logits: Logits l, of the same shape and dtype.

    Returns:
        The losses in nats, of the shape of `logits`.

    Example:
        >>> float(log_loss_from_logits(1.0, -20.0))
        20.0
    """
    return (1 - labels) * ops.softplus(logits) + labels * ops.softplus(-logits)


def logits_from_probabilities(probabilities: Tensor) -> Tensor:
    """Logit of a probability: `log(p / (1 - p))`.

    A p or 1 - p below 2⁻⁵³ (1.1e-16) counts as 2⁻⁵³. The logit is therefore in [-36.7, 36.7], and
    the logit of 1 - p is its negative. In float32, the largest logit below 36.7 is 16.6, because
    probabilities nearer to 1 are rounded to 1: pass their logits. Values outside [0, 1] (most often
    logits) give NaN, so that everything computed from them is NaN instead of a plausible number.

    Args:
        probabilities: Probabilities in [0, 1], any float dtype, any shape.

    Returns:
        Logits of the same shape: float64 for float64 probabilities, else float32.

    Example:
        >>> print(logits_from_probabilities(ops.array([0.0, 0.5, 1.0])).numpy().round(2))
        [-36.74   0.    36.74]
    """
    probabilities = _mask_outside_unit_interval(probabilities)
    return ops.log(_keep_above_0(probabilities) / _keep_above_0(1 - probabilities))


def class_logits_from_probabilities(probabilities: Tensor) -> Tensor:
    """Class logits `log p` of class probabilities that add up to 1; their softmax is p.

    A probability below 2⁻⁵³ (1.1e-16) counts as 2⁻⁵³. A value outside [0, 1] gives NaN, as in
    `logits_from_probabilities`.

    Args:
        probabilities: Probabilities (..., K) in [0, 1], any float dtype.

    Returns:
        Logits of the same shape: float64 for float64 probabilities, else float32.

    Example:
        >>> print(class_logits_from_probabilities(ops.array([[0.5, 0.5, 0.0]])).numpy().round(2))
        [[ -0.69  -0.69 -36.74]]
    """
    return ops.log(_keep_above_0(_mask_outside_unit_interval(probabilities)))


def probabilities_from_logits(logits: Tensor) -> Tensor:
    """Probabilities of logits: the sigmoid of a column, the softmax of class logits.

    Args:
        logits: Logits (batch, 1), or class logits (batch, K) with K of at least 2.

    Returns:
        Probabilities of the same shape and dtype.

    Example:
        >>> print(probabilities_from_logits(ops.zeros((1, 1))).numpy())
        [[0.5]]
        >>> print(probabilities_from_logits(ops.zeros((1, 4))).numpy())
        [[0.25 0.25 0.25 0.25]]
    """
    is_of_classes = (logits.shape[1] or 1) > 1
    return ops.softmax(logits) if is_of_classes else ops.sigmoid(logits)


def _mask_outside_unit_interval(probabilities: Tensor) -> Tensor:
    """Probabilities as float32 or float64, with NaN for values outside [0, 1]."""
    probabilities = ops.convert_to_tensor(probabilities)
    probabilities = ops.cast(
        probabilities, keras.backend.result_type(probabilities.dtype, "float32")
    )
    valid = ops.logical_and(probabilities >= 0, probabilities <= 1)
    return ops.where(valid, probabilities, float("nan"))


def _keep_above_0(values: Tensor) -> Tensor:
    # Written so that NaN stays NaN.
    return ops.where(values < SMALLEST_PROBABILITY, SMALLEST_PROBABILITY, values)
