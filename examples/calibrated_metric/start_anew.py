"""A compiled model, used for one seed after the other: it is built and traced once."""

import keras


def start_anew(model: keras.Model) -> None:
    """Gives a model new initial weights, from Keras' global seed, and an optimizer without memory.

    Args:
        model: A compiled model, changed in place.
    """
    model.set_weights(keras.models.clone_model(model).get_weights())
    for variable in model.optimizer.variables:
        if variable.name != "learning_rate":
            variable.assign(keras.ops.zeros_like(variable.value))
