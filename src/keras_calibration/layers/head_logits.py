"""Calibrated logits of many rows, part by part, as float64."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from keras import ops

_ROWS_TOGETHER = 1 << 16


def head_logits(head: Any, logits: np.ndarray, features: Mapping[str, Any]) -> np.ndarray:
    """What a head makes of logits and features, `_ROWS_TOGETHER` rows at a time.

    Args:
        head: A layer, called as `head(logits, features)`.
        logits: Uncalibrated logits (n,).
        features: Feature name → array or tensor with n rows.

    Returns:
        Calibrated logits (n,), float64.

    Example:
        >>> from keras_calibration.layers import BiasCorrection, NeuralCalibration
        >>> head_logits(NeuralCalibration(BiasCorrection()), np.array([0.5, -1.0]), {})
        array([ 0.5, -1. ])
    """
    calibrated = np.empty(len(logits))
    for start in range(0, len(logits), _ROWS_TOGETHER):
        part = slice(start, start + _ROWS_TOGETHER)
        outputs = head(logits[part], {name: column[part] for name, column in features.items()})
        calibrated[part] = ops.convert_to_numpy(outputs).reshape(-1)
    return calibrated
