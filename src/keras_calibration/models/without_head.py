"""Takes the calibration head out of a model, so that another can replace it."""

from __future__ import annotations

import keras

from keras_calibration.models.calibrated_model import CalibratedModel
from keras_calibration.models.head_in_model import LOGIT_OUTPUT, find_heads
from keras_calibration.models.output_names import (
    output_position,
    symbolic_input,
    symbolic_output,
)


def without_head(
    model: keras.Model, base_output: str, calibrated_output: str | int | None
) -> tuple[keras.Model, str, str | int | None, str | None]:
    """A model whose calibrated output is the logit before its head, if it has one.

    Returns:
        The model, what its output is, which output it is, and the name of the head or None.
    """
    if isinstance(model, CalibratedModel):
        base = model.base
        return base.base_model, base.base_output, base.calibrated_output, model.head.name
    position = output_position(model, calibrated_output)
    found = next((each for each in find_heads(model) if each.position == position), None)
    if found is None:
        return model, base_output, calibrated_output, None
    outputs = keras.tree.flatten(symbolic_output(model))
    outputs[position] = found.base_outputs[LOGIT_OUTPUT]
    outputs = keras.tree.pack_sequence_as(symbolic_output(model), outputs)
    base_model = keras.Model(symbolic_input(model), outputs, name=model.name)
    is_list = isinstance(symbolic_output(model), list | tuple)
    return base_model, "logit", position if is_list else calibrated_output, found.head.name
