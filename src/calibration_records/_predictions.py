"""Predictions given as whole arrays: probabilities, or logits with `from_logits=True`."""

from __future__ import annotations

import numpy as np
import scipy.special
from numpy.typing import NDArray

from calibration_records._warn import warn

_HANDFUL = 10


def probabilities_of(
    predictions: NDArray[np.float64], from_logits: bool, argument: str = "predictions"
) -> NDArray[np.float64]:
    """The probabilities of predictions; raises for others, and warns of logits that look like them.

    Example:
        >>> probabilities_of(np.array([-np.inf, 0.0]), from_logits=True)
        array([0. , 0.5])
    """
    if from_logits:
        _refuse_nan(predictions, argument)
        _warn_of_probabilities(predictions, argument)
        return np.asarray(scipy.special.expit(predictions))
    check_probabilities(predictions, argument)
    return predictions


def check_probabilities(
    values: np.ndarray, argument: str, remedy: str = "For logits, pass from_logits=True."
) -> None:
    """Raises unless all values are in [0, 1]."""
    _refuse_nan(values, argument)
    if not ((values >= 0) & (values <= 1)).all():
        raise ValueError(
            f"Argument `{argument}` must hold probabilities in [0, 1]. Received: values from "
            f"{values.min():g} to {values.max():g}. {remedy}"
        )


def _refuse_nan(values: np.ndarray, argument: str) -> None:
    if np.isnan(values).any():
        raise ValueError(f"Argument `{argument}` must not hold NaN. Received: NaN in some rows.")


def _warn_of_probabilities(values: NDArray[np.float64], argument: str) -> None:
    are_within = ((values >= 0) & (values <= 1)).all()
    if are_within and len(distinct := np.unique(values)) > _HANDFUL:
        warn(
            f"Argument `{argument}` looks like probabilities, although from_logits=True. Received: "
            f"{len(distinct):,} values from {distinct[0]:g} to {distinct[-1]:g}. For "
            "probabilities, leave out from_logits."
        )
