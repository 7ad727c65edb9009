"""The head of an export as a Keras file, which a refresh loads and refits."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import keras

from keras_calibration.export.publish import first_line
from keras_calibration.export.spec import Spec
from keras_calibration.layers.head import Head

HEAD_FILE = "head.keras"


class SavedHead(NamedTuple):
    """A head as a Functional model of the logit and the features, and the head in it."""

    model: keras.Model
    head: Head

    @property
    def inputs(self) -> dict[str, keras.KerasTensor]:
        """The inputs of the model by name, `logit` among them."""
        return {tensor.name: tensor for tensor in self.model.inputs}

    @classmethod
    def read(cls, file: Path) -> SavedHead:
        """Reads a file; raises a `ValueError` for any fault."""
        try:
            return cls._find_in(keras.saving.load_model(file, compile=False))
        except Exception as error:
            raise ValueError(
                f"The head in {os.fspath(file)!r} must be the one that the export wrote. Received: "
                f"a head that cannot be loaded ({first_line(error)}). If the class of the head is "
                "yours, import its module first; or export the model again."
            ) from error

    @classmethod
    def from_spec(cls, spec: Spec) -> SavedHead:
        """The head of a model."""
        inputs = {
            name: keras.Input(tensor.shape[1:], dtype=tensor.dtype.name, name=name)
            for name, tensor in spec.head_inputs.items()
        }
        logit = inputs.pop("logit")
        return cls._find_in(keras.Model([logit, inputs], spec.head(logit, inputs)))

    @classmethod
    def _find_in(cls, model: keras.Model) -> SavedHead:
        # Besides its inputs, the model has one layer.
        return cls(model, next(part for part in model.layers if isinstance(part, Head)))
