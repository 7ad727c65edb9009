"""The state that training changes: weights, seed generators, optimizer and metrics of a model."""

from __future__ import annotations

import keras

from keras_calibration._compat import build_for_fit
from keras_calibration.training.seed_task import SeedTask, take_rows, tensors


def built_model(task: SeedTask, seed: int) -> keras.Model:
    """A new model of a seed with all its variables, also those of the optimizer and metrics."""
    model = task.new_model(seed)
    build_for_fit(model, tensors(take_rows(task.rows, slice(task.batch_size))))
    return model


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


def num_bytes(model: keras.Model) -> int:
    """The memory of weights and optimizer state."""
    return sum(keras.ops.convert_to_numpy(variable).nbytes for variable in variables_of(model))
