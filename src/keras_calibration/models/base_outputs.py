"""BaseOutputs: a layer that returns all outputs of a frozen base model, with one as logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from keras_calibration._typing import Inputs, Tensor
from keras_calibration.models.base_logits import BaseLogits, LogitSource
from keras_calibration.models.output_names import symbolic_input, symbolic_output


@keras.saving.register_keras_serializable(package="keras_calibration")
class BaseOutputs(BaseLogits):
    """All outputs of a base model in its own structure, with logits as the calibrated output.

    The other outputs are unchanged. It is a layer of its own, because Keras does not connect the
    calls of a layer that return different numbers of tensors.

    Args:
        *args: As for `BaseLogits`.
        **kwargs: As for `BaseLogits`.

    Example:
        >>> inputs = keras.Input((2,))
        >>> outputs = {name: keras.layers.Dense(1, "sigmoid")(inputs) for name in ("click", "buy")}
        >>> layer = BaseOutputs(keras.Model(inputs, outputs), calibrated_output="buy")
        >>> sorted(layer(keras.ops.ones((3, 2))))
        ['buy', 'click']
    """

    passes_on_outputs = True

    def function_from(self, source: LogitSource) -> Callable[[Inputs], tuple[Tensor, list[Tensor]]]:
        """The function from inputs to logits and the list of the other outputs."""
        others = keras.tree.flatten(symbolic_output(self.base_model))
        others.pop(self.position)
        if not others:
            logits = super().function_from(source)
            return lambda inputs: (logits(inputs), [])
        # What the logits and the others have in common is computed once.
        model = keras.Model(symbolic_input(self.base_model), [source.tensor, *others])
        to_logits = source.to_logits

        def logits_and_others(inputs: Inputs) -> tuple[Tensor, list[Tensor]]:
            start, *rest = model(inputs, training=False)
            return start if to_logits is None else to_logits(start), rest

        return logits_and_others

    def call(self, inputs: Inputs) -> Inputs:
        """The outputs of the base model, with logits (batch, 1) or (batch, K) among them."""
        logits, others = self._function(inputs)
        return self._structured(self.as_logits(logits), others)

    def compute_output_spec(self, inputs: Inputs) -> Inputs:
        """Symbolic tensors in the structure of the outputs."""
        logits = keras.KerasTensor(self.compute_output_shape(()), self.compute_dtype)
        others = keras.tree.flatten(symbolic_output(self.base_model))
        others.pop(self.position)
        specs = [keras.KerasTensor(t.shape, t.dtype, sparse=t.sparse) for t in others]
        return self._structured(logits, specs)

    def _structured(self, logits: Tensor, others: list[Tensor]) -> Inputs:
        outputs: list[Any] = [*others[: self.position], logits, *others[self.position :]]
        return keras.tree.pack_sequence_as(symbolic_output(self.base_model), outputs)
