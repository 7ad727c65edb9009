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


def set_dropout_seed(model: keras.Model, seed: int) -> dict[str, int]:
    """Sets the seeds of all layers that are random in training; returns it for the record."""
    states = [value for value in model.variables if value.name == "seed_generator_state"]
    for number, state in enumerate(states):
        state.assign([(seed + number) % 2**32, 0])
    return {"dropout": seed}
