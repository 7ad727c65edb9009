"""What every export asks of a model before it writes anything."""

import warnings
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from keras_calibration.export.model_rows import MAX_RANDOM_IDS, restructured
from keras_calibration.models.calibrated_model import CalibratedModel


def check_model(model: Any) -> None:
    """Refuses what no export can take.

    Args:
        model: What an export was given.

    Raises:
        ValueError: If Keras does not run on TensorFlow, or it is no `CalibratedModel`.
    """
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            "A model is exported by the TensorFlow backend. Received: "
            f"{keras.backend.backend()!r}. Save to .keras, set KERAS_BACKEND=tensorflow, load and "
            "export."
        )
    if not isinstance(model, CalibratedModel):
        raise ValueError(
            f"Expected a CalibratedModel. Received: {type(model).__name__}. Other Keras models "
            "export with model.export(path)."
        )


def outputs_on(model: CalibratedModel, rows: Mapping[str, Any], is_random: bool) -> tuple[Any, Any]:
    """What the Keras model gives for the rows that an export is compared on.

    Args:
        model: The calibrated model.
        rows: Name → tensor.
        is_random: Whether nobody has given the rows.

    Returns:
        Logits and calibrated probabilities (rows, 1).

    Raises:
        ValueError: If the model cannot take the rows.
    """
    import tensorflow as tf

    both = keras.Model(model.input, [model.base.output, model.output])
    try:
        # Where the export is run too: a GPU multiplies matrices less exactly.
        with tf.device("CPU:0"):
            logit, probability = both(restructured(model, rows), training=False)
    except (tf.errors.OpError, ValueError) as error:
        kind = f"random rows (ids below {MAX_RANDOM_IDS})" if is_random else "sample"
        raise ValueError(
            f"The model cannot take the {kind} that the export is compared on: "
            f"{str(error).splitlines()[0]} Pass `sample`, some input rows that it can take."
        ) from error
    return logit, probability


def warn_if_unfitted(model: CalibratedModel, probability: Any, uncalibrated: Any) -> None:
    """Warns of a head that changes no probability, unless a fit or `calibrate` has made it so.

    Args:
        model: The calibrated model.
        probability: Its calibrated probabilities of some rows.
        uncalibrated: The base model's probabilities of these rows.
    """
    is_same = np.array_equal(probability, uncalibrated, equal_nan=True)
    if is_same and model.report is None and model.fitted_at is None:
        warnings.warn(
            f"The head ({model.head.name!r}) changes no probability: it looks as if it had never "
            "been fitted, and the exported model serves uncalibrated probabilities. Fit it before "
            "the export: kc.calibrate, CalibratedModel.fit, or the head's own fit.",
            stacklevel=3,
        )
