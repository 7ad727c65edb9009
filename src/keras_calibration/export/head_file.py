"""The head of an exported model as a Keras file beside it, for a refresh to fit it again."""

from pathlib import Path
from typing import Any

import keras

from keras_calibration.export.model_rows import head_inputs, input_specs
from keras_calibration.models.calibrated_model import CalibratedModel

_FILE_NAME = "head.keras"


def write_head(model: CalibratedModel, extra: Path) -> None:
    """Writes `head.keras`: the head as a Functional model of the logit and the features.

    Args:
        model: The calibrated model.
        extra: The folder `assets.extra` of a SavedModel.
    """
    specs = input_specs(model)
    features = {
        name: keras.Input(specs[name].shape[1:], dtype=specs[name].dtype.name, name=name)
        for name in head_inputs(model)
    }
    logit = keras.Input((1,), dtype=model.base.compute_dtype, name="logit")
    wrapped = keras.Model([logit, features], model.head(logit, features))
    save_head(wrapped, extra)


def read_head(extra: Path) -> Any:
    """The model that `write_head` wrote.

    Args:
        extra: The folder `assets.extra` of a SavedModel.

    Returns:
        A Functional model of one layer, the head.

    Raises:
        ValueError: If there is no such file, or it does not load.
    """
    path = extra / _FILE_NAME
    if not path.is_file():
        raise ValueError(
            f"Expected the head in {str(path)!r}. Received: a SavedModel without it, which this "
            "version of `export_savedmodel` did not write. Export the model again."
        )
    return keras.saving.load_model(path, compile=False)


def save_head(wrapped: Any, extra: Path) -> None:
    """Writes the model that `read_head` has read, over the old one.

    Args:
        wrapped: The Functional model of the head.
        extra: The folder `assets.extra` of a SavedModel.
    """
    wrapped.save(extra / _FILE_NAME)


def head_of(wrapped: Any) -> Any:
    """The head itself.

    Args:
        wrapped: The Functional model of the head.

    Returns:
        The layer.
    """
    return next(layer for layer in wrapped.layers if not isinstance(layer, keras.layers.InputLayer))


def head_features(wrapped: Any) -> dict[str, Any]:
    """The features that the head reads.

    Args:
        wrapped: The Functional model of the head.

    Returns:
        Name → symbolic input.
    """
    return {tensor.name: tensor for tensor in wrapped.inputs if tensor.name != "logit"}
