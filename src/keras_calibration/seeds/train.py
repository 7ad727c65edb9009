"""Trains a pipeline under many seeds and records each in a ledger."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import keras

from calibration_records._check import one_of
from calibration_records._progress import ProgressBar
from calibration_records._warn import warn
from calibration_records.comparison.comparison import Comparison
from calibration_records.runs.ledger import Ledger
from calibration_records.runs.run_record import RunRecord
from calibration_records.runs.trainings import read_training
from keras_calibration._typing import Data
from keras_calibration.seeds.description import (
    describe_rows,
    differences,
    names_without_configuration,
)
from keras_calibration.seeds.keras_settings import leave_gpu_memory
from keras_calibration.seeds.loky_workers import train_in_processes
from keras_calibration.seeds.progress import SeedCount
from keras_calibration.seeds.random_seeds import check_seed
from keras_calibration.seeds.ray_cluster import train_on_ray
from keras_calibration.seeds.seed_task import (
    Rows,
    SeedTask,
    Start,
    as_rows,
    new_model,
    own_random_numbers,
)
from keras_calibration.seeds.together import train_together

ENGINES = ("vectorized", "processes", "ray")


def train(
    build_model: Callable[[], keras.Model],
    data: Data,
    *,
    ledger: Ledger | str | os.PathLike[str],
    pipeline: str,
    seeds: Sequence[int],
    epochs: int = 1,
    batch_size: int = 32,
    validation_data: Data | None = None,
    callbacks: Callable[[int], Sequence[keras.callbacks.Callback]] | None = None,
    order: int | None = None,
    engine: str = "vectorized",
    num_parallel: int | None = None,
    until: Callable[[Ledger], Comparison] | None = None,
    verbose: int = 1,
    configuration: Any = None,
    num_rows: int | None = None,
) -> list[RunRecord]:
    """Trains one pipeline under many seeds, and fills the ledger as `SeedVariance` does.

    The run of seed s has the initial weights, dropout and data order of s: it is what this gives,
    up to rounding, if the rows come in the same order:

    ```python
    seeds.set_seeds(initialization=s, order=s)
    model = build_model()
    model.fit(x, y, callbacks=[SeedVariance(ledger, pipeline, s)], …)
    ```

    **Resuming.** Seeds that have ended in the ledger are not trained again. After an interruption
    of any kind, the same call goes on with the others. "The same" is checked: each record refers to
    a description of the model, optimizer, losses, metrics, callbacks, rows, epochs and batch size,
    and a call that differs is an error that says in what. Engine, backend, machine, and settings
    of `compile` that only concern speed may differ.

    The description is what the configurations say (`get_config`), with a hash of every array of
    rows. A callback without one is described by the arguments of its constructor that are numbers
    or functions, or name a metric. A function, and an object whose configuration is not known,
    counts by its name alone: `train` warns of it, and no longer if `configuration` is given, which
    is part of the description. Code, files and what a callback reads are not seen. Initial weights
    of the first seed that have another norm than its record are warned of.

    **Engines.**

    - `"vectorized"` trains in this process, and traces and compiles one program for all seeds. Each
      call of the program is an epoch. On TensorFlow, several such programs run in parallel, one for
      each core. On JAX, the variables are stacked, and `vmap` trains a group of seeds as one.
    - `"processes"` calls `fit` in several processes with one thread each, for models with a `fit`
      of their own, and callbacks that act on batches. Functions and classes of a program or a
      notebook are sent to them, and large arrays are shared. The processes have this one's dtype
      policy, `floatx` and other settings of `keras.config`, and end if this one is killed. A
      variable of the environment, such as `TF_NUM_INTRAOP_THREADS`, gives them more threads.
    - `"ray"` does the same on a Ray cluster, whose machines must share the folder of the ledger.

    Args:
        build_model: Function without arguments that returns a new compiled model. Its seeds are set
            before each call. With `"vectorized"`, the models of two seeds may differ only in
            their weights. On TensorFlow, `"vectorized"` is up to three times as fast if it is
            compiled with `jit_compile=True`.
        data: Training rows: a tuple `(x, y)` or `(x, y, sample_weight)` of arrays, where x may be a
            dictionary or list of arrays. Class weights are given as sample weights. The rows are in
            memory once, and with `"ray"` once for each machine.
        ledger: A `Ledger`, or the path of its folder.
        pipeline: Name of the pipeline.
        seeds: Different ints in [0, 2³²).
        epochs: Number of epochs.
        batch_size: Rows per step, also in validation.
        validation_data: Held-out rows like `data`, evaluated after each epoch.
        callbacks: Function of a seed that returns its callbacks, such as `EarlyStopping`. They are
            called after `SeedVariance`. Those of `"vectorized"` act on epochs and validations only.
        order: Seed of a data order that all seeds share; `None` for an order of its own for each.
        engine: `"vectorized"`, `"processes"` or `"ray"`.
        num_parallel: Seeds trained at once; `None` for one for each core, and on a GPU with JAX as
            many as fit into its memory.
        until: Function of the ledger that returns a `Comparison`, for example of
            `seeds.compare(…, num_looks=None)`. It is called after each seed, and no further seeds
            are trained once the comparison is decided.
        verbose: 1 shows a progress bar, with the mean of the held-out loss, its standard error, and
            the seeds that the comparison of `until` still needs; 0 shows nothing.
        configuration: Any JSON value that tells this training from another one of the same
            description; kept in the records as by `SeedVariance`.
        num_rows: Number of held-out rows, kept in the records.

    Returns:
        The records of the given seeds that have ended, in the order of `seeds`.

    Raises:
        ValueError: An argument is invalid, the runs of `pipeline` in the ledger are of another
            training, or the engine cannot train the model.
        RuntimeError: A seed failed twice, in an engine with other processes. Those that ended are
            recorded.
        ImportError: The engine is `"ray"`, and Ray is not installed.

    Warns:
        UserWarning: Objects of the training have no configuration, and `configuration` is not
            given; `build_model` starts a seed of the ledger from other weights.

    Example:
        >>> import tempfile
        >>> import keras, numpy as np
        >>> def build_model():
        ...     model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        ...     model.compile("sgd", loss="mse")
        ...     return model
        >>> folder = tempfile.TemporaryDirectory()
        >>> x = np.linspace(-1.0, 1.0, 64)[:, None]
        >>> runs = train(build_model, (x, 2.0 * x), ledger=folder.name, pipeline="linear",
        ...              seeds=range(3), epochs=2, verbose=0)
        >>> [run["seed"] for run in runs], len(runs[0]["metrics"]["loss"])
        ([0, 1, 2], 2)
        >>> folder.cleanup()

    Reference:
        Fan, Si, Song, Zhang, *Calibration-then-Calculation*, arXiv 2401.16692, which trains each
        pipeline with many seeds; Bouthillier et al. (2021), arXiv 2103.03098, on data order.
    """
    seeds = list(seeds)
    _check_numbers(epochs=epochs, batch_size=batch_size, num_parallel=num_parallel)
    _check_seeds(seeds, order)
    _check_functions(build_model, callbacks, until)
    one_of("engine", engine, ENGINES)
    ledger = ledger if isinstance(ledger, Ledger) else Ledger(ledger)
    rows, validation = _rows(build_model, seeds[0], data=data, validation_data=validation_data)
    task = SeedTask(
        build_model=build_model,
        rows=rows,
        validation=validation,
        ledger=str(ledger.path.absolute()),
        pipeline=pipeline,
        epochs=epochs,
        batch_size=batch_size,
        order=order,
        callbacks=callbacks,
        record={"configuration": configuration, "num_rows": num_rows},
        data={"data": describe_rows(rows), "validation_data": describe_rows(validation)},
    )
    # Refuses invalid fields of the record before anything is trained.
    task.recorder(seeds[0])
    if engine == "processes":
        # The models of the processes need it.
        leave_gpu_memory()
    ended = _ended(ledger, task, seeds)
    first = next(iter(ended), seeds[0])
    starts = {first: _start_of(task, first)}
    if configuration is None:
        _warn_of_names(starts[first].description)
    _refuse_another_training(ledger, task, ended, starts)
    missing = [seed for seed in seeds if seed not in ended]
    bar = ProgressBar(len(missing), "seeds", verbose)
    count = SeedCount(ledger, pipeline, until, bar)
    if ended:
        bar.say(f"{len(ended)} of {len(seeds)} seeds are in the ledger and have ended.")
    if missing and not (ended and count.is_decided()):
        train_missing = _engine(engine, bar)
        train_missing(task, missing, num_parallel=num_parallel, on_end=count.on_end)
        ended = _ended(ledger, task, seeds)
    return [ended[seed] for seed in seeds if seed in ended]


def _rows(
    build_model: Callable[[], keras.Model], seed: int, **given: Data | None
) -> list[Rows | None]:
    """Rows as the model takes them, or None where there are none."""
    with own_random_numbers():
        model = new_model(build_model, initialization=seed, order=seed)
    return [None if rows is None else as_rows(name, rows, model) for name, rows in given.items()]


def _check_numbers(**numbers: int | None) -> None:
    for name, number in numbers.items():
        if name == "num_parallel" and number is None:
            continue
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise ValueError(
                f"Argument `{name}` must be an int of at least 1. Received: {name}={number!r}."
            )


def _check_seeds(seeds: Sequence[int], order: int | None) -> None:
    for seed in seeds:
        check_seed("seeds", seed)
    if len(set(seeds)) < len(seeds) or not seeds:
        raise ValueError(
            f"Argument `seeds` must contain different ints, at least one. Received: seeds={seeds}."
        )
    if order is not None:
        check_seed("order", order)


def _check_functions(build_model: Any, callbacks: Any, until: Any) -> None:
    for name, function in (("build_model", build_model), ("until", until)):
        if not callable(function) and (function is not None or name == "build_model"):
            raise ValueError(
                f"Argument `{name}` must be a function. Received: {name}={function!r}."
            )
    if callbacks is not None and not callable(callbacks):
        raise ValueError(
            "Argument `callbacks` must be a function of a seed that returns its callbacks, because "
            "callbacks have state that seeds must not share. Received: "
            f"{type(callbacks).__name__}. Pass, for example, lambda seed: [EarlyStopping()]."
        )


def _engine(engine: str, bar: ProgressBar) -> Callable[..., None]:
    if engine == "vectorized":
        return partial(train_together, say=bar.say)
    return train_in_processes if engine == "processes" else train_on_ray


def _ended(ledger: Ledger, task: SeedTask, seeds: Sequence[int]) -> dict[int, RunRecord]:
    """The latest ended run of each seed."""
    return {
        run["seed"]: run
        for run in ledger.runs(task.pipeline, skip_damaged=True)
        if run["status"] != "started" and run["seed"] in seeds
    }


def _start_of(task: SeedTask, seed: int) -> Start:
    """What a seed starts from, with the whole description of its training."""
    with own_random_numbers():
        start = Start.of(task.new_model(seed))
        return Start(task.describe(start, task.user_callbacks(seed)), start.weights_norm)


def _warn_of_names(description: Mapping[str, Any]) -> None:
    if names := names_without_configuration(description):
        warn(
            f"The training has objects without a configuration: {', '.join(names)}. Only their "
            "names tell whether the runs of the ledger are of the same training: a change of what "
            "they do is not noticed. Give a class `get_config`, or pass what may change as "
            "`configuration`, for example configuration={'version': 1}."
        )


def _refuse_another_training(
    ledger: Ledger, task: SeedTask, ended: dict[int, RunRecord], starts: dict[int, Start]
) -> None:
    """Refuses runs of another model, other data or other settings than the task's."""

    def found_in(run: RunRecord, seed: int) -> list[str]:
        """The differences between a run and what the task trains under a seed."""
        given = {**task.record, "seeds": task.seeds_of(run["seed"])}
        found = [f"{k}={run[k]!r}, not {v!r}" for k, v in given.items() if run[k] != v]
        if found:
            return found
        description = read_training(ledger.path, run)
        if description is None and run["training"] is None:
            return ["no description of its training: seeds.train did not record it"]
        if description is None:
            return [f"a description that is missing or damaged: {run['training']['file']}"]
        if seed not in starts:
            starts[seed] = _start_of(task, seed)
        return differences(description, starts[seed].description)

    for seed, run in ended.items():
        # Models are built for one seed, and for others only if these have another architecture.
        found = found_in(run, next(iter(ended))) and found_in(run, seed)
        if found:
            raise ValueError(
                "Argument `pipeline` must be the name of one training. Received: "
                f"pipeline={task.pipeline!r}, whose seed {seed} is in the ledger with "
                f"{'; '.join(found)}. Pass another name for another training."
            )
    for seed, start in starts.items():
        if seed in ended:
            _warn_of_other_weights(ended[seed], start.weights_norm)


def _warn_of_other_weights(run: RunRecord, norm: float | None) -> None:
    before = run["training"]["weights_norm"]
    if before is None or norm is None or run["backend"] != keras.backend.backend():
        return
    # Other machines round otherwise.
    if not math.isclose(before, norm, rel_tol=1e-5):
        warn(
            f"Seed {run['seed']} of the pipeline {run['pipeline']!r} is in the ledger with other "
            f"initial weights: their norm is {before:.6g}, and now {norm:.6g}. If build_model "
            "loads weights that have changed, pass another name as `pipeline`. Otherwise, draw "
            "initial weights with the seeds that are set before build_model is called.",
        )
