"""Many seeds in one program: the engine `"vectorized"`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import keras
import numpy as np
from keras import ops

from keras_calibration._keras import build_for_fit
from keras_calibration._ops.compiled import runs_on_gpu
from keras_calibration.seeds.description import differences
from keras_calibration.seeds.keras_settings import num_cores
from keras_calibration.seeds.seed_task import (
    Rows,
    SeedTask,
    Start,
    own_random_numbers,
    take_rows,
    tensors,
)

_BATCH_HOOKS = (
    *("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end"),
    *("on_test_batch_begin", "on_test_batch_end"),
)


class Group(Protocol):
    """Several seeds whose epochs run at once, and a model to look at each of them."""

    def start(self, models: Sequence[keras.Model]) -> None:
        """Begins with the state of new models, one for each seed or fewer."""

    def load(self, number: int) -> keras.Model:
        """A model with the state of a seed, valid until the next call."""

    def store(self, number: int) -> None:
        """Keeps what was changed in the model."""

    def train_epoch(self, orders: Mapping[int, np.ndarray]) -> None:
        """One epoch of each seed, given the order of its rows."""

    def validate(self, numbers: Sequence[int]) -> None:
        """Updates the metrics of the given seeds with the held-out rows."""


def train_together(
    task: SeedTask,
    seeds: Sequence[int],
    *,
    num_parallel: int | None,
    on_end: Callable[[int], bool],
    say: Callable[[str], None],
) -> None:
    """Trains the seeds in groups; each group takes up the program of the first.

    Args:
        task: The training.
        seeds: The seeds.
        num_parallel: Seeds in a group; `None` for what suits the device.
        on_end: Called with each seed that has ended; returns whether to stop after its group.
        say: Called with a line about the groups and their memory.
    """
    model, first = _new_models(task, seeds[:1])[0]
    _check_model(model)
    memory = _num_bytes(model)
    size = min(num_parallel or _default_size(memory), len(seeds))
    say(
        f"{len(seeds)} seeds, {size} at once with {memory / 1e6:.3g} MB of weights and optimizer "
        f"state each, {size * memory / 1e6:.3g} MB together."
    )
    group: Group
    if keras.backend.backend() == "tensorflow":
        from keras_calibration.seeds.tensorflow_lanes import TensorFlowLanes

        lanes = _new_models(task, [seeds[0]] * (size - 1))
        for _, start in lanes:
            _check_same_program(first, start, (seeds[0], seeds[0]))
        group = TensorFlowLanes([model, *(lane for lane, _ in lanes)], task)
    else:
        from keras_calibration.seeds.jax_group import JAXGroup

        group = JAXGroup(model, size, task)
    for begin in range(0, len(seeds), size):
        chunk = seeds[begin : begin + size]
        models = _starting_models(task, chunk)
        for seed, (_, start) in zip(chunk, models, strict=True):
            _check_same_program(first, start, (seeds[0], seed))
        group.start([other for other, _ in models])
        for number, (seed, (other, _)) in enumerate(zip(chunk, models, strict=True)):
            _check_same_outputs(group.load(number), other, task, (seeds[0], seed))
        _train_group(group, task, chunk, [start for _, start in models])
        if any([on_end(seed) for seed in chunk]):
            return


def _new_models(task: SeedTask, seeds: Sequence[int]) -> list[tuple[keras.Model, Start]]:
    """A model of each seed, and what it starts from."""
    with own_random_numbers():
        return [_built_model(task, seed) for seed in seeds]


def _built_model(task: SeedTask, seed: int) -> tuple[keras.Model, Start]:
    """A new model of a seed with all its variables, also those of the optimizer and metrics."""
    model = task.new_model(seed)
    # Before it is built, as in the other engines.
    start = Start.of(model)
    build_for_fit(model, tensors(take_rows(task.rows, slice(task.batch_size))))
    return model, start


def _starting_models(task: SeedTask, seeds: Sequence[int]) -> list[tuple[keras.Model, Start]]:
    """As `_new_models`, for a program that exists: metrics need no variables."""
    with own_random_numbers():
        return [_starting_model(task, seed) for seed in seeds]


def _starting_model(task: SeedTask, seed: int) -> tuple[keras.Model, Start]:
    model = task.new_model(seed)
    if not model.built:
        return _built_model(task, seed)
    # To build the metrics as well takes half of the time of a small training.
    start = Start.of(model)
    model.optimizer.build(model.trainable_variables)
    return model, start


def _check_same_program(first: Start, second: Start, seeds: tuple[int, int]) -> None:
    """Refuses models with other settings than the first.

    All seeds run the program of the first model with the variables of their own.
    """
    if found := differences(_program_of(first), _program_of(second)):
        _refuse_other_program(seeds, "; ".join(found))


def _check_same_outputs(
    program: keras.Model, model: keras.Model, task: SeedTask, seeds: tuple[int, int]
) -> None:
    """Refuses a model that computes something else than the program with the same variables.

    It has drawn something that no configuration has, such as the constants of a function.
    """
    batch = tensors(take_rows(task.rows, slice(task.batch_size)))
    pairs = zip(_outputs_of(program, batch), _outputs_of(model, batch), strict=True)
    for expected, found in pairs:
        if not np.allclose(found, expected, rtol=1e-4, atol=1e-6, equal_nan=True):
            difference = np.max(np.abs(found - expected))
            _refuse_other_program(
                seeds, f"outputs that differ by {difference:.3g}, though their weights are equal"
            )


def _outputs_of(model: keras.Model, batch: Rows) -> list[np.ndarray]:
    """The predictions of a batch and its loss, as float64; nothing where the model has its own."""
    if type(model).call is keras.layers.Layer.call or type(model).call is keras.Model.call:
        return []
    x, y, *weight = batch
    # A layer that draws random numbers goes on from the same state.
    states = [(v, ops.convert_to_numpy(v)) for v in model.non_trainable_variables]
    predictions = model(x, training=False)
    outputs = keras.tree.flatten(predictions)
    if type(model).train_step is keras.Model.train_step and model.loss is not None:
        named = {"x": x, "y": y, "y_pred": predictions, "sample_weight": next(iter(weight), None)}
        outputs.append(model.compute_loss(**named))
    for variable, value in states:
        variable.assign(value)
    return [ops.convert_to_numpy(output).astype("float64") for output in outputs]


def _refuse_other_program(seeds: tuple[int, int], found: str) -> None:
    raise ValueError(
        "Argument `build_model` must return models that differ only in their weights with "
        f"engine='vectorized', which trains the program of the first. Received: seed {seeds[0]} "
        f"and seed {seeds[1]} with {found}. Keep what a seed draws in a weight, "
        "add_weight(trainable=False), or use engine='processes'."
    )


def _program_of(start: Start) -> dict[str, Any]:
    optimizer = start.description["optimizer"]
    if isinstance(optimizer.get("config", {}).get("learning_rate"), float):
        # It is a variable.
        config = {k: v for k, v in optimizer["config"].items() if k != "learning_rate"}
        optimizer = {**optimizer, "config": config}
    return {**start.description, "optimizer": optimizer}


def _num_bytes(model: keras.Model) -> int:
    """The memory of weights and optimizer state."""
    variables = [*model.variables, *model.optimizer.variables]
    return sum(keras.ops.convert_to_numpy(variable).nbytes for variable in variables)


def _train_group(
    group: Group, task: SeedTask, seeds: Sequence[int], starts: Sequence[Start]
) -> None:
    """Trains each seed to its end, with the steps of `fit`."""
    members = [
        _Member(group, number, _callback_list(group.load(number), task, seed, start))
        for number, (seed, start) in enumerate(zip(seeds, starts, strict=True))
    ]
    for member in members:
        member.call("on_train_begin")
    active = members
    for epoch in range(task.epochs):
        for member in active:
            member.begin_epoch(epoch)
        group.train_epoch({m.number: task.row_order(seeds[m.number], epoch) for m in active})
        logs = {member.number: member.results() for member in active}
        if task.validation is not None:
            for member in active:
                member.call("on_test_begin")
            group.validate([member.number for member in active])
            for member in active:
                results = member.results()
                logs[member.number] |= {f"val_{name}": v for name, v in results.items()}
                member.call("on_test_end", results)
        for member in active:
            member.call("on_epoch_end", epoch, logs[member.number])
        stopped = [m for m in active if m.is_stopped or epoch + 1 == task.epochs]
        for member in stopped:
            member.end(logs[member.number])
        active = [member for member in active if member not in stopped]
        if not active:
            return


class _Member:
    """One seed of a group, with its callbacks."""

    def __init__(self, group: Group, number: int, callbacks: keras.callbacks.CallbackList) -> None:
        self._group, self._callbacks = group, callbacks
        self.number, self.is_stopped = number, False

    def call(self, hook: str, *arguments: Any) -> None:
        """Calls a method of the callbacks, which may change weights and stop the training."""
        model = self._group.load(self.number)
        # One model may serve several seeds.
        model.stop_training = self.is_stopped
        getattr(self._callbacks, hook)(*arguments)
        self.is_stopped = bool(model.stop_training)
        self._group.store(self.number)

    def begin_epoch(self, epoch: int) -> None:
        """Calls the callbacks; refuses a stop within the epoch, which is one call of a program."""
        self.call("on_epoch_begin", epoch)
        if self.is_stopped:
            raise ValueError(
                "Argument `callbacks` must return callbacks that stop the training at the end of "
                "an epoch only with engine='vectorized'. Received: one that set "
                f"model.stop_training before epoch {epoch}, so that `fit` ends after one batch. "
                "Use engine='processes'."
            )

    def end(self, logs: dict[str, float]) -> None:
        """The end of `fit`."""
        model = self._group.load(self.number)
        model.optimizer.finalize_variable_values(model.trainable_weights)
        self._group.store(self.number)
        self.call("on_train_end", logs)

    def results(self) -> dict[str, float]:
        """The metrics as in the logs of `fit`."""
        results = self._group.load(self.number).get_metrics_result()
        return {name: float(ops.convert_to_numpy(value)) for name, value in results.items()}


def _callback_list(
    model: keras.Model, task: SeedTask, seed: int, start: Start
) -> keras.callbacks.CallbackList:
    callbacks = task.all_callbacks(seed, start)
    for callback in callbacks:
        for hook in _BATCH_HOOKS:
            # `LambdaCallback` has functions in the place of methods.
            method = getattr(getattr(callback, hook), "__func__", None)
            if method is not getattr(keras.callbacks.Callback, hook):
                raise ValueError(
                    "Argument `callbacks` must return callbacks without methods for each batch "
                    f"with engine='vectorized'. Received: {callback!r}, which has `{hook}`. Use "
                    "engine='processes'."
                )
    return keras.callbacks.CallbackList(
        callbacks,
        model=model,
        epochs=task.epochs,
        steps=task.num_steps,
    )


def _check_model(model: keras.Model) -> None:
    """Refuses models that only their own `fit` can train."""
    reason = None
    if keras.backend.backend() not in ("tensorflow", "jax"):
        reason = f"the backend is {keras.backend.backend()!r}, and not TensorFlow or JAX"
    elif type(model).fit is not keras.Model.fit:
        reason = f"{type(model).__name__} has a `fit` of its own"
    elif model.run_eagerly:
        reason = "it was compiled with run_eagerly=True"
    elif keras.backend.backend() == "tensorflow" and _num_replicas(model) > 1:
        reason = "it was built for several replicas"
    if reason is not None:
        raise ValueError(
            "Argument `build_model` must return a model that can be trained in one program with "
            f"engine='vectorized'. Received: {model.name!r}, but {reason}. Use "
            "engine='processes'."
        )


def _num_replicas(model: keras.Model) -> int:
    num_replicas: int = model.distribute_strategy.num_replicas_in_sync
    return num_replicas


def _default_size(memory: int) -> int:
    """How many seeds to train at once: one for each core, or on a GPU as many as fit on JAX."""
    if not runs_on_gpu():
        return num_cores()
    if keras.backend.backend() == "tensorflow":
        return 1
    import jax

    statistics = jax.devices()[0].memory_stats() or {}
    bound = statistics.get("bytes_limit", 2**33) - statistics.get("bytes_in_use", 0)
    # Old and new state, gradients, and what a batch needs.
    return int(min(max(bound // (8 * memory), 1), 256))
