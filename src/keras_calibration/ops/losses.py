"""Log loss from logits, logits from probabilities and back, without overflow."""

from __future__ import annotations

import keras
from keras import ops

from keras_calibration._limits import SMALLEST_PROBABILITY, largest_probability
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

    A probability below the smallest normal float32 is replaced by it, and 1 by the number below it
    in the dtype of the probabilities, at least float32. The logit is therefore finite, in
    [-87.3, 16.6], or in [-87.3, 36.7] for float64. Values outside [0, 1] (most often logits) give
    NaN, so that everything computed from them is NaN instead of a plausible number.

    Args:
        probabilities: Probabilities in [0, 1], any float dtype, any shape.

    Returns:
        Logits of the same shape: float64 for float64 probabilities, else float32.

    Example:
        >>> float(logits_from_probabilities(0.5))
        0.0
    """
    inside = inside_unit_interval(probabilities)
    return ops.log(inside / (1 - inside))


def class_logits_from_probabilities(probabilities: Tensor) -> Tensor:
    """Class logits `log p` of class probabilities, whose softmax they are if these add up to 1.

    A probability below the smallest normal float32 is replaced by that float32. A value outside
    [0, 1] gives NaN, as in `logits_from_probabilities`.

    Args:
        probabilities: Probabilities (..., K) in [0, 1], any float dtype.

    Returns:
        Logits of the same shape: float64 for float64 probabilities, else float32.

    Example:
        >>> print(class_logits_from_probabilities(ops.array([[0.5, 0.5, 0.0]])).numpy().round(2))
        [[ -0.69  -0.69 -87.34]]
    """
    return ops.log(inside_unit_interval(probabilities, largest=1.0))


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


def inside_unit_interval(probabilities: Tensor, largest: float | None = None) -> Tensor:
    """Probabilities as float32 or float64, no closer to 0 than float32 can be; NaN if invalid.

    They are at most `largest`, by default the number below 1 in their dtype.
    """
    probabilities = ops.convert_to_tensor(probabilities)
    dtype = keras.backend.result_type(probabilities.dtype, "float32")
    probabilities = ops.cast(probabilities, dtype)
    valid = ops.logical_and(probabilities >= 0, probabilities <= 1)
    largest = largest_probability(dtype) if largest is None else largest
    inside = ops.clip(probabilities, SMALLEST_PROBABILITY, largest)
    return ops.where(valid, inside, float("nan"))
