"""The head of an export as a Keras file, which a refresh loads and fits anew."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import NamedTuple

import keras

from keras_calibration.export.publish import first_line
from keras_calibration.export.spec import Spec
from keras_calibration.layers.head import Head

HEAD_FILE = "head.keras"


class SavedHead(NamedTuple):
    """A head, alone.

    Args:
        model: The head as a Functional model of the logit and the features.
        head: The head in it.
        inputs: The inputs of the model by name, `logit` among them.
    """

    model: keras.Model
    head: Head
    inputs: dict[str, keras.KerasTensor]

    @classmethod
    def read(cls, content: bytes, source: str | os.PathLike[str]) -> SavedHead:
        """Reads what `content` gives; raises `ValueError` whatever is wrong with it.

        Args:
            content: The content of the file.
            source: Where it comes from, for errors.
        """
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, HEAD_FILE)
            file.write_bytes(content)
            try:
                return cls._of(keras.saving.load_model(file, compile=False))
            except Exception as error:
                raise ValueError(
                    f"The head in {os.fspath(source)!r} must be the one that the export wrote. "
                    f"Received: a head that cannot be loaded ({first_line(error)}). Import the "
                    "module of a head of your own first, or export the model again."
                ) from error

    @classmethod
    def of(cls, spec: Spec) -> SavedHead:
        """The head of a model."""
        inputs = {
            name: keras.Input(given.shape[1:], dtype=given.dtype.name, name=name)
            for name, given in spec.head_inputs.items()
        }
        logit = inputs.pop("logit")
        return cls._of(keras.Model([logit, inputs], spec.head(logit, inputs)))

    @classmethod
    def _of(cls, model: keras.Model) -> SavedHead:
        layers = (each for each in model.layers if not isinstance(each, keras.layers.InputLayer))
        return cls(model, next(layers), {tensor.name: tensor for tensor in model.inputs})

    def content(self) -> bytes:
        """The content of a Keras file."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, HEAD_FILE)
            self.model.save(file)
            return file.read_bytes()
