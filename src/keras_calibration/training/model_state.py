"""The state that training changes: weights, seed generators, optimizer and metrics of a model."""

from __future__ import annotations

from typing import Any

import keras

from keras_calibration._compat import build_for_fit
from keras_calibration.training.description import differences
from keras_calibration.training.seed_task import SeedTask, Start, take_rows, tensors


def built_model(task: SeedTask, seed: int) -> tuple[keras.Model, Start]:
    """A new model of a seed with all its variables, also those of the optimizer and metrics."""
    model = task.new_model(seed)
    # Before it is built, as in the other engines.
    start = Start.of(model)
    build_for_fit(model, tensors(take_rows(task.rows, slice(task.batch_size))))
    return model, start


def variables_of(model: keras.Model) -> list[keras.Variable]:
    """The variables that decide how training goes on; metrics restart with every epoch."""
    return [*model.variables, *model.optimizer.variables]


def copy_state(source: keras.Model, target: keras.Model) -> None:
    """Gives a model the state of another one."""
    for old, new in zip(variables_of(target), variables_of(source), strict=True):
        old.assign(new)


def check_alike(first: keras.Model, second: keras.Model) -> None:
    """Refuses models with other variables than the first."""
    shapes, others = (
        [(tuple(v.shape), v.dtype) for v in variables_of(model)] for model in (first, second)
    )
    if shapes != others:
        raise ValueError(
            "Argument `build_model` must return the same architecture for every seed with "
            "engine='vectorized'. Received: models with variables of different shapes. Use "
            "engine='processes'."
        )


def check_same_program(first: Start, second: Start, seeds: tuple[int, int]) -> None:
    """Refuses models that compute with other constants or settings than the first.

    All seeds run the program of the first model with the variables of their own.
    """
    if found := differences(_program_of(first), _program_of(second)):
        raise ValueError(
            "Argument `build_model` must return models that differ only in their weights with "
            "engine='vectorized', which trains the program of the first. Received: seed "
            f"{seeds[0]} and seed {seeds[1]} with {'; '.join(found)}. Keep what a seed draws in a "
            "weight, add_weight(trainable=False), or use engine='processes'."
        )


def _program_of(start: Start) -> dict[str, Any]:
    optimizer = start.description["optimizer"]
    config = optimizer.get("config", {})
    if isinstance(config.get("learning_rate"), float):
        # It is a variable.
        config = {name: value for name, value in config.items() if name != "learning_rate"}
    return {**start.description, "optimizer": {**optimizer, "config": config}}


def num_bytes(model: keras.Model) -> int:
    """The memory of weights and optimizer state."""
    return sum(keras.ops.convert_to_numpy(variable).nbytes for variable in variables_of(model))
