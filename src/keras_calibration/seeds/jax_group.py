"""Several seeds at once on JAX: their variables are stacked, and `vmap` trains them as one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import keras
import numpy as np
from jax import numpy as jnp

from keras_calibration._typing import Tensor
from keras_calibration.seeds.seed_task import (
    Rows,
    SeedTask,
    map_rows,
    num_rows_of,
    refuse_own_logs,
    take_rows,
)

_State: TypeAlias = tuple[list[Any], ...]
"""Trainable, other and optimizer variables; while it trains, metrics too."""


class JAXGroup:
    """A model whose epoch trains a group of seeds in one program, compiled by XLA.

    Each variable is stacked over the seeds. An epoch is a `scan` over the model's own `train_step`,
    vectorized over the seeds by `vmap`.

    Args:
        model: The model, which the group keeps.
        num_members: Number of seeds.
        task: The training.
    """

    def __init__(self, model: keras.Model, num_members: int, task: SeedTask) -> None:
        self._model, self._task = model, task
        self._members: list[_State] = [_state_of(model)] * num_members
        self._metrics: list[list[Tensor]] = [[]] * num_members
        # The old state makes room for the new.
        self._train = jax.jit(jax.vmap(_training(model, task)), donate_argnums=0)
        if task.validation is not None:
            self._validate = jax.jit(jax.vmap(_validation(model, task.validation, task.batch_size)))

    def start(self, models: Sequence[keras.Model]) -> None:
        """Begins with the state of new models, one for each member or fewer."""
        for number, model in enumerate(models):
            self._members[number] = _state_of(model)

    def load(self, number: int) -> keras.Model:
        """The model, with the state of a member."""
        for variables, values in zip(
            (*_variables_of(self._model), self._model.metrics_variables),
            (*self._members[number], self._metrics[number]),
            strict=True,
        ):
            # Before the first epoch, there are no values of metrics.
            for variable, value in zip(variables, values, strict=False):
                variable.assign(value)
        return self._model

    def store(self, number: int) -> None:
        """Keeps what a callback has changed in the model."""
        self._members[number] = _state_of(self._model)

    def train_epoch(self, orders: Mapping[int, np.ndarray]) -> None:
        """One epoch of each member, given the order of the rows."""
        any_order = next(iter(orders.values()))
        stacked = np.stack([orders.get(n, any_order) for n in range(len(self._members))])
        *state, metrics = self._train(self._stacked(), stacked)
        for number in orders:
            self._members[number] = jax.tree.map(lambda a, n=number: a[n], tuple(state))
            self._metrics[number] = [value[number] for value in metrics]

    def validate(self, numbers: Sequence[int]) -> None:
        """Updates the metrics of the given members with the held-out rows."""
        metrics = self._validate(self._stacked())
        for number in numbers:
            self._metrics[number] = [value[number] for value in metrics]

    def _stacked(self) -> _State:
        stacked: _State = jax.tree.map(lambda *values: jnp.stack(values), *self._members)
        return stacked


def _variables_of(model: keras.Model) -> tuple[list[keras.Variable], ...]:
    return (
        model.trainable_variables,
        model.non_trainable_variables,
        model.optimizer.variables,
    )


def _state_of(model: keras.Model) -> _State:
    # Copies: a program may take over the memory of its arguments.
    return tuple([jnp.array(v.value) for v in variables] for variables in _variables_of(model))


def _training(model: keras.Model, task: SeedTask) -> Callable[[_State, Tensor], _State]:
    """A function of one seed's state and order of rows that trains for one epoch."""
    rows, metrics = map_rows(jnp.asarray, task.rows), _fresh_metrics(model)

    def train(state: _State, order: Tensor) -> _State:
        def step(state: _State, chosen: Tensor) -> _State:
            after: _State
            logs, after = model.train_step(state, take_rows(rows, chosen))
            refuse_own_logs(model, logs)
            return after

        return _for_each_batch(step, (*state, metrics), order, task.batch_size)

    return train


def _validation(
    model: keras.Model, rows: Rows, batch_size: int
) -> Callable[[_State], list[Tensor]]:
    """A function of one seed's state that returns the metrics of the held-out rows."""
    held_out, metrics = map_rows(jnp.asarray, rows), _fresh_metrics(model)

    def validate(state: _State) -> list[Tensor]:
        def step(state: _State, chosen: Tensor) -> _State:
            after: _State
            logs, after = model.test_step(state, take_rows(held_out, chosen))
            refuse_own_logs(model, logs)
            return after

        order = jnp.arange(num_rows_of(rows))
        return _for_each_batch(step, (*state[:2], metrics), order, batch_size)[-1]

    return validate


def _fresh_metrics(model: keras.Model) -> list[Tensor]:
    model.reset_metrics()
    return [jnp.array(v.value) for v in model.metrics_variables]


def _for_each_batch(
    step: Callable[[_State, Tensor], _State], state: _State, order: Tensor, batch_size: int
) -> _State:
    """A scan over full batches, then the rest as a batch of its own."""
    num_full = len(order) // batch_size
    if num_full:
        full = order[: num_full * batch_size].reshape(num_full, batch_size)
        state, _ = jax.lax.scan(lambda state, chosen: (step(state, chosen), None), state, full)
    if len(order) % batch_size:
        state = step(state, order[num_full * batch_size :])
    return state
