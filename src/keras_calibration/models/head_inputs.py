"""base_logits and interval: the logits that a calibration head gets, and its uncertainty."""

from __future__ import annotations

import keras
import numpy as np

from keras_calibration._graph.head_in_model import LOGIT_OUTPUT, find_head
from keras_calibration._rows.reader import is_batches
from keras_calibration._typing import Data


def base_logits(
    model: keras.Model,
    x: Data,
    *,
    calibrated_output: str | int | None = None,
    verbose: int | str = 0,
) -> np.ndarray:
    """Computes the uncalibrated logits that the calibration head of a model gets.

    Args:
        model: A Functional or Sequential model with a head, for example a `CalibratedModel`.
        x: Inputs: arrays, a data frame, or a data set of batches. Columns that are not inputs of
            the model are ignored.
        calibrated_output: Name (or key) of the output with the head, or its index in a list, if
            several have one.
        verbose: 1 or `"auto"` shows the progress over arrays; 0 shows nothing.

    Returns:
        Logits (n, 1), or (n, K) for K classes, in the dtype of the head, usually float32.

    Raises:
        ValueError: If the model has no head, or an input is missing.

    Example:
        >>> from keras_calibration.layers import ILPS
        >>> inputs = keras.Input((1,))
        >>> logit = keras.layers.Rescaling(2.0)(inputs)
        >>> model = keras.Model(inputs, keras.layers.Activation("sigmoid")(ILPS()(logit)))
        >>> print(base_logits(model, np.array([[0.5], [-1.0]])))
        [[ 1.]
         [-2.]]
    """
    match = find_head(model, calibrated_output)
    return match.base_part.values(match.reader.inputs(x), verbose)[LOGIT_OUTPUT]


@np.errstate(under="ignore")
def interval(
    model: keras.Model, x: Data, *, level: float = 0.95, calibrated_output: str | int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Computes an interval of the calibrated probability of each row; see `Head.interval`.

    It shows how well the rows of the fit determine the probability. It is not an interval of the
    label, and covers neither drift nor errors of the base model that the head cannot correct.

    Args:
        model: A Functional or Sequential model with a head, for example a `CalibratedModel`.
        x: Inputs: arrays, or a data frame.
        level: Posterior probability of the interval, in (0, 1).
        calibrated_output: Name (or key) of the output with the head, or its index in a list, if
            several have one.

    Returns:
        Lower and upper probabilities (n, 1), float64.

    Raises:
        ValueError: If the model has no head, the head has no interval, was not fitted by its direct
            fit, or was trained since; if an input is missing, or `level` is out of its range.

    Example:
        >>> from keras_calibration.layers import PlattScaling
        >>> inputs = keras.Input((1,), name="score")
        >>> model = keras.Model(inputs, keras.layers.Activation("sigmoid")(PlattScaling()(inputs)))
        >>> rng = np.random.default_rng(0)
        >>> score = rng.normal(size=(500, 1))
        >>> summary = model.layers[1].fit(score, rng.random(500) < 0.3 + 0.1 * score[:, 0])
        >>> lower, upper = interval(model, np.zeros((1, 1)))
        >>> print(np.concatenate([lower, upper]).ravel().round(2))
        [0.24 0.32]
    """
    if is_batches(x):
        raise ValueError(
            "Argument `x` of `interval` must hold arrays or be a data frame. Received: "
            f"{type(x).__name__}. Call `interval` for each batch."
        )
    match = find_head(model, calibrated_output)
    logits, features = match.reader.values(x)
    return match.head.interval(logits, features, level=level)
