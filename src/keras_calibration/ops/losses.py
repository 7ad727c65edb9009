"""Log loss from logits, and logits from probabilities, without overflow."""

from __future__ import annotations

import keras
import numpy as np
from keras import ops

from keras_calibration._typing import Tensor

# A float32 sigmoid is exactly 1 from a logit of about 17 on. Such a probability is replaced by the
# largest float32 below 1, and an exact 0 by the smallest normal number.
LARGEST_PROBABILITY = float(np.nextafter(np.float32(1), np.float32(0)))
SMALLEST_PROBABILITY = float(np.finfo(np.float32).tiny)


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

    Probabilities closer to 0 or 1 than any normal float32 are replaced by that float32, also in
    float64, since most of them were once float32. The logit is therefore finite, in [-87.3, 16.6].
    Values outside [0, 1] (most often logits) give NaN, so that everything computed from them is NaN
    instead of a plausible number.

    Args:
        probabilities: Probabilities in [0, 1], any float dtype, any shape.

    Returns:
        Logits of the same shape: float64 for float64 probabilities, else float32.

    Example:
        >>> float(logits_from_probabilities(0.5))
        0.0
    """
    probabilities = ops.convert_to_tensor(probabilities)
    dtype = keras.backend.result_type(probabilities.dtype, "float32")
    probabilities = ops.cast(probabilities, dtype)
    valid = ops.logical_and(probabilities >= 0, probabilities <= 1)
    inside = ops.clip(probabilities, SMALLEST_PROBABILITY, LARGEST_PROBABILITY)
    return ops.where(valid, ops.log(inside / (1 - inside)), float("nan"))
