"""A model with all outputs of a base model, one of them calibrated."""

from __future__ import annotations

import keras

from keras_calibration._compat import source_of
from keras_calibration._typing import Inputs
from keras_calibration.layers.head import Head
from keras_calibration.models.base_logits import BaseLogits, trainable_flags_kept
from keras_calibration.models.base_outputs import BaseOutputs
from keras_calibration.models.model_inputs import inputs_by_name
from keras_calibration.models.output_names import symbolic_output


def all_base_outputs(base: BaseLogits, inputs: Inputs) -> Inputs:
    """The base model's symbolic outputs, with the logits as the calibrated one."""
    arguments = base.base_output, base.calibrated_output
    # Who has unfrozen the base model since then finds it as it was.
    with trainable_flags_kept(base.base_model):
        layer = BaseOutputs(base.base_model, *arguments, dtype=base.dtype, name=base.name)
    return layer(inputs)


def model_with_all_outputs(base: BaseLogits, head: Head, inputs: Inputs) -> keras.Model:
    """A Functional model with the base model's outputs and the calibrated probability among them.

    The last layers are named like the base model's, so that Keras finds the losses and metrics of
    a list of outputs by the same names.

    Args:
        base: The base logits.
        head: The calibration head.
        inputs: Symbolic inputs, in the structure that the base model takes.
    """
    features = inputs_by_name(inputs, inputs)
    if head.feature_names is not None:
        features = {name: features[name] for name in head.feature_names}
    structure = symbolic_output(base.base_model)
    taken = {base.name, head.name, *(tensor.name for tensor in keras.tree.flatten(inputs))}

    def free_name(wanted: str) -> str:
        numbered = (f"{wanted}_{number}" for number in range(1, len(taken) + 2))
        name = wanted if wanted not in taken else next(n for n in numbered if n not in taken)
        taken.add(name)
        return name

    outputs = keras.tree.flatten(all_base_outputs(base, inputs))
    for position, old in enumerate(keras.tree.flatten(structure)):
        name = free_name(source_of(old)[0].name)
        if position != base.position:
            # In a dtype of its own, a layer would convert floats to float32.
            dtype = old.dtype if "float" in old.dtype else None
            outputs[position] = keras.layers.Identity(dtype=dtype, name=name)(outputs[position])
            continue
        logit = head(outputs[position], features)
        activation = "softmax" if logit.shape[1] > 1 else "sigmoid"
        is_column = len(old.shape) == 2
        last = name if is_column else free_name("probability")
        probability = keras.layers.Activation(activation, dtype=head.dtype, name=last)(logit)
        if not is_column:
            probability = keras.layers.Reshape((), dtype=head.dtype, name=name)(probability)
        outputs[position] = probability
    outputs = keras.tree.pack_sequence_as(structure, outputs)
    return keras.Model(inputs, outputs, name=base.base_model.name)
