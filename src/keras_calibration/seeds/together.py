"""Many seeds in one program of TensorFlow: the engine `"vectorized"`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import keras
import numpy as np
from joblib import cpu_count

from keras_calibration._keras import build_for_fit
from keras_calibration._ops.compiled import runs_on_gpu
from keras_calibration._rows.columns import take
from keras_calibration.seeds.description import describe_model
from keras_calibration.seeds.seed_task import (
    Rows,
    SeedTask,
    new_model,
    own_random_numbers,
    tensors,
)

if TYPE_CHECKING:
    from keras_calibration.seeds.tensorflow_lanes import TensorFlowLanes

_BATCH_HOOKS = (
    *("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end"),
    *("on_test_batch_begin", "on_test_batch_end"),
)


def train_together(task: SeedTask, seeds: Sequence[int], on_end: Callable[[], None]) -> None:
    """Trains seeds in groups, one seed for each core; all groups share one compiled program."""
    with own_random_numbers():
        first = new_model(task.build_model, seeds[0])
        _check_model(first)
        from keras_calibration.seeds.tensorflow_lanes import TensorFlowLanes

        program = describe_model(first)
        size = min(1 if runs_on_gpu() else cpu_count(), len(seeds))
        models = [first, *(_build_model(task, seeds[0], seeds[0], program) for _ in range(1, size))]
        for model in models:
            build_for_fit(model, _take_first_batch(task))
    lanes = TensorFlowLanes(models, task)
    # The lanes keep their graphs. Each group of seeds gives them new initial weights.
    for begin in range(0, len(seeds), size):
        group = seeds[begin : begin + size]
        with own_random_numbers():
            starts = [_build_model(task, seed, seeds[0], program) for seed in group]
        lanes.start(starts)
        for seed, lane, start in zip(group, models, starts, strict=False):
            _check_same_outputs(lane, start, task, (seeds[0], seed))
        _train_group(lanes, task, group)
        for _ in group:
            on_end()


def _take_first_batch(task: SeedTask) -> Rows:
    return tensors(take(task.rows, slice(task.batch_size)))


def _build_model(task: SeedTask, seed: int, first: int, program: dict[str, str]) -> keras.Model:
    """A new model of a seed, built for training; raises if its program is not that of the first."""
    model = new_model(task.build_model, seed)
    described = describe_model(model)
    if other := [name for name in program if described[name] != program[name]]:
        _refuse_other_program((first, seed), f"another configuration of {' and '.join(other)}")
    if not model.built:
        build_for_fit(model, _take_first_batch(task))
    # Build the optimizer alone. Metrics restart anyway, and building them would take half of the
    # time of a small training.
    model.optimizer.build(model.trainable_variables)
    return model


def _check_same_outputs(
    program: keras.Model, model: keras.Model, task: SeedTask, seeds: tuple[int, int]
) -> None:
    """Refuses a model whose outputs differ from the program's with the same variables.

    Such a model draws something that its configuration lacks, such as the constants of a function.
    """
    batch = _take_first_batch(task)
    for expected, outputs in zip(
        _compute_outputs(program, batch), _compute_outputs(model, batch), strict=True
    ):
        if not np.allclose(outputs, expected, rtol=1e-4, atol=1e-6, equal_nan=True):
            _refuse_other_program(
                seeds,
                f"outputs that differ by {np.max(np.abs(outputs - expected)):.3g}, though their "
                "weights are equal",
            )


def _compute_outputs(model: keras.Model, batch: Rows) -> list[np.ndarray]:
    """The predictions and the loss of a batch, float64; empty if the model overrides `call`."""
    if type(model).call is keras.layers.Layer.call or type(model).call is keras.Model.call:
        return []
    x, y, *weight = batch
    # Restore the state of random layers at the end, so that the check changes no training.
    states = [(v, np.asarray(v)) for v in model.non_trainable_variables]
    predictions = model(x, training=False)
    outputs = keras.tree.flatten(predictions)
    if type(model).train_step is keras.Model.train_step and model.loss is not None:
        outputs.append(
            model.compute_loss(x=x, y=y, y_pred=predictions, sample_weight=next(iter(weight), None))
        )
    for variable, value in states:
        variable.assign(value)
    return [np.asarray(output).astype("float64") for output in outputs]


def _refuse_other_program(seeds: tuple[int, int], difference: str) -> None:
    raise ValueError(
        "Argument `build_model` must return models that differ only in their weights with "
        f"engine='vectorized', which trains the program of the first. Received: seed {seeds[0]} "
        f"and seed {seeds[1]} with {difference}. Keep what a seed draws in a weight, "
        "add_weight(trainable=False), or use engine='loop'."
    )


def _train_group(lanes: TensorFlowLanes, task: SeedTask, seeds: Sequence[int]) -> None:
    """Trains each seed to its end, with the steps of `fit`."""
    models = lanes.models[: len(seeds)]
    callbacks = [
        _build_callbacks(model, task, seed) for model, seed in zip(models, seeds, strict=True)
    ]
    active = list(range(len(seeds)))
    for lane in active:
        models[lane].stop_training = False
        callbacks[lane].on_train_begin()
    # The order of calls is that of `fit`: all lanes train an epoch, then validate, then end it. A
    # lane whose callback has stopped it leaves the group.
    for epoch in range(task.epochs):
        for lane in active:
            callbacks[lane].on_epoch_begin(epoch)
            _refuse_stop_within(models[lane], epoch)
        lanes.train_epoch({lane: task.row_order(seeds[lane], epoch) for lane in active})
        logs = {lane: _read_results(models[lane]) for lane in active}
        if task.validation is not None:
            for lane in active:
                callbacks[lane].on_test_begin()
            lanes.validate(active)
            for lane in active:
                held_out = _read_results(models[lane])
                logs[lane] |= {f"val_{name}": value for name, value in held_out.items()}
                callbacks[lane].on_test_end(held_out)
        for lane in active:
            callbacks[lane].on_epoch_end(epoch, logs[lane])
        is_last = epoch + 1 == task.epochs
        for lane in (lane for lane in active if is_last or models[lane].stop_training):
            models[lane].optimizer.finalize_variable_values(models[lane].trainable_weights)
            callbacks[lane].on_train_end(logs[lane])
        active = [lane for lane in active if not models[lane].stop_training]


def _read_results(model: keras.Model) -> dict[str, float]:
    """The metrics as in the logs of `fit`."""
    return {name: float(np.asarray(value)) for name, value in model.get_metrics_result().items()}


def _refuse_stop_within(model: keras.Model, epoch: int) -> None:
    """Refuses a stop within an epoch, because an epoch is one call of a program."""
    if model.stop_training:
        raise ValueError(
            "Argument `callbacks` must return callbacks that stop the training at the end of an "
            "epoch only with engine='vectorized'. Received: one that set model.stop_training "
            f"before epoch {epoch}, so that `fit` ends after one batch. Use engine='loop'."
        )


def _build_callbacks(model: keras.Model, task: SeedTask, seed: int) -> keras.callbacks.CallbackList:
    callbacks = task.all_callbacks(seed)
    for callback in callbacks:
        for hook in _BATCH_HOOKS:
            # `LambdaCallback` has functions in place of methods.
            method = getattr(getattr(callback, hook), "__func__", None)
            if method is not getattr(keras.callbacks.Callback, hook):
                raise ValueError(
                    "Argument `callbacks` must return callbacks without methods for each batch "
                    f"with engine='vectorized'. Received: {callback!r}, which has `{hook}`. Use "
                    "engine='loop'."
                )
    return keras.callbacks.CallbackList(
        callbacks, add_history=True, model=model, epochs=task.epochs, steps=task.num_steps
    )


def _check_model(model: keras.Model) -> None:
    """Refuses models that only `fit` can train."""
    reason = None
    if keras.backend.backend() != "tensorflow":
        reason = f"the backend is {keras.backend.backend()!r}, and not TensorFlow"
    elif type(model).fit is not keras.Model.fit:
        reason = f"{type(model).__name__} overrides `fit`"
    elif model.run_eagerly:
        reason = "it was compiled with run_eagerly=True"
    elif model.distribute_strategy.num_replicas_in_sync > 1:
        reason = "it was built for several replicas"
    if reason is not None:
        raise ValueError(
            "Argument `build_model` must return a model that can be trained in one program with "
            f"engine='vectorized'. Received: {model.name!r}, but {reason}. Use engine='loop'."
        )
