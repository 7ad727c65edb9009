"""LogitModel: the part of a model before its head."""

from __future__ import annotations

import logging
from typing import Any

import keras

from calibration_records._progress import ProgressBar, is_live
from calibration_records._warn import without_notices
from keras_calibration._rows.inputs import expected_inputs
from keras_calibration._typing import Data, Inputs, Tensor

# Rows in a step of `predict`.
_BATCH_SIZE = 4096


class LogitModel(keras.Model):
    """A Functional model that returns base logits and ignores other inputs."""

    input_spec = None  # `call` checks the inputs itself

    def values(self, inputs: Data, verbose: int | str = 0) -> Any:
        """The outputs for the rows of arrays or of a data set, as arrays."""
        total = getattr(keras.tree.flatten(inputs)[0], "shape", (0,))[0]
        bar = ProgressBar(total, "base logits", bool(verbose and total))
        shown = keras.callbacks.LambdaCallback(
            on_predict_batch_end=lambda batch, logs: bar.show(min(_BATCH_SIZE * (batch + 1), total))
        )
        # Each model is traced once, but TensorFlow would warn of retracing after several models.
        with without_notices("tensorflow", logging.ERROR):
            # Only for a data set, whose length is unknown, use Keras' own bar; and not in a file,
            # where it would write a line for each step.
            verbose = 0 if total or not is_live() else verbose
            return self.predict(inputs, batch_size=_BATCH_SIZE, verbose=verbose, callbacks=[shown])

    def call(
        self, inputs: Inputs, training: bool | None = None, mask: Inputs | None = None
    ) -> Tensor:
        """Base logits (batch, 1)."""
        return super().call(expected_inputs(inputs, self.input), training=training, mask=mask)
