"""Predictions as arrays: probabilities, or logits with `from_logits=True`."""

from __future__ import annotations

import numpy as np
import scipy.special
from numpy.typing import NDArray

from calibration_records._check import truth
from calibration_records._warn import warn

_HANDFUL = 10


def probabilities_of(
    predictions: NDArray[np.float64], from_logits: bool, argument: str = "predictions"
) -> NDArray[np.float64]:
    """The probabilities of predictions, after checks; warns of logits in [0, 1].

    Example:
        >>> probabilities_of(np.array([-np.inf, 0.0]), from_logits=True)
        array([0. , 0.5])
    """
    if not truth("from_logits", from_logits):
        check_probabilities(predictions, argument)
        return predictions
    _refuse_nan(predictions, argument)
    if ((predictions >= 0) & (predictions <= 1)).all() and len(np.unique(predictions)) > _HANDFUL:
        warn(
            f"Argument `{argument}` looks like probabilities, although from_logits=True. Received: "
            f"values from {predictions.min():g} to {predictions.max():g}."
        )
    return np.asarray(scipy.special.expit(predictions))


def check_probabilities(values: np.ndarray, argument: str) -> None:
    """Raises unless all values are in [0, 1]."""
    _refuse_nan(values, argument)
    if not ((values >= 0) & (values <= 1)).all():
        raise ValueError(
            f"Argument `{argument}` must hold probabilities in [0, 1]. Received: values from "
            f"{values.min():g} to {values.max():g}. For logits, pass from_logits=True."
        )


def _refuse_nan(values: np.ndarray, argument: str) -> None:
    if np.isnan(values).any():
        raise ValueError(f"Argument `{argument}` must not hold NaN. Received: NaN in some rows.")
