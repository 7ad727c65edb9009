"""seeds.train: many runs of one pipeline that differ in their seed, each in a ledger."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import numpy as np

from calibration_records._check import integer, one_of, refused
from calibration_records._progress import ProgressBar
from calibration_records.runs.ledger import Ledger
from calibration_records.runs.run_record import RunRecord, validate_record
from keras_calibration._typing import Data
from keras_calibration.seeds.description import describe_model, hash_rows
from keras_calibration.seeds.progress import seed_figures
from keras_calibration.seeds.random_seeds import plain_seed
from keras_calibration.seeds.ray_cluster import train_on_ray
from keras_calibration.seeds.seed_task import (
    SeedTask,
    as_rows,
    new_model,
    num_rows_of,
    own_random_numbers,
    train_one_by_one,
)
from keras_calibration.seeds.together import train_together

_ENGINES = {"vectorized": train_together, "loop": train_one_by_one, "ray": train_on_ray}


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
    engine: str = "vectorized",
    configuration: Any = None,
    verbose: int = 1,
) -> list[RunRecord]:
    """Trains one pipeline under many seeds, and fills the ledger as `SeedVariance` does.

    Seed s decides on the initial weights, dropout and data order of its run. Up to rounding, and if
    the rows come in the same order, the run equals::

        seeds.set_seeds(initialization=s, order=s)
        model = build_model()
        model.fit(x, y, callbacks=[SeedVariance(ledger, pipeline, s)], …)

    **Resuming.** Seeds whose run has ended in the ledger are not trained again: after an
    interruption, repeat the call to train the others. Each record has hashes of the configuration
    of the model, the arguments of `compile` and the values of the rows, and the numbers of epochs
    and rows a batch. If the call differs in any of these, an error names it. The dtype of the rows
    does not matter. Callbacks, code, files and pretrained weights are not compared: describe them
    in `configuration`.

    **Until it is decided.** Since ended runs are kept, a loop trains no more seeds than needed::

        for number in range(6, 31, 4):
            seeds.train(build_model, data, ledger=ledger, pipeline="new", seeds=range(number))
            if seeds.compare(ledger, "old", "new", num_looks=None).verdict.decided:
                break

    **Engines.**

    - `"vectorized"` trains in this process, and compiles one program of TensorFlow for all seeds.
      Each call of the program is an epoch. One such program runs on each core. It is up to three
      times as fast if the model is compiled with `jit_compile=True`.
    - `"loop"` calls `fit` for one seed after the other. Use it for models that override `fit`,
      callbacks that act on batches, and other backends.
    - `"ray"` calls `fit` on the cores of a Ray cluster, or of this machine, each with one thread.
      The machines must share the folder of the ledger. Processes get this one's dtype policy,
      `floatx` and other settings of `keras.config`. For more threads, set an environment variable
      such as `TF_NUM_INTRAOP_THREADS`.

    All engines record the figures of `fit`; each record names its engine. On TensorFlow, the losses
    of single outputs are means of batches: the rows of a smaller last batch count more. The total
    loss and metrics are means of rows, so compare these.

    Args:
        build_model: Function without arguments that returns a new compiled model. The seeds are set
            before each call. With `"vectorized"`, the models of two seeds may differ only in
            their weights.
        data: Training rows: a tuple `(x, y)` or `(x, y, sample_weight)`, with x as for `fit`, or a
            data frame. Pass class weights as sample weights.
        ledger: A `Ledger`, or the path of its folder.
        pipeline: Name of the pipeline.
        seeds: Different ints in [0, 2³²).
        epochs: Number of epochs.
        batch_size: Rows per step, also in validation.
        validation_data: Held-out rows like `data`, evaluated after each epoch.
        callbacks: Function of a seed that returns a list of new callbacks, such as `EarlyStopping`.
            They are called after `SeedVariance`. With `"vectorized"`, they may act on epochs and
            validations only.
        engine: `"vectorized"`, `"loop"` or `"ray"`.
        configuration: Any JSON value that describes what the hashes do not cover; it is kept in the
            records, as by `SeedVariance`.
        verbose: 1 shows a progress bar, with the mean of the held-out loss and its standard error;
            0 shows nothing.

    Returns:
        The records of these seeds whose run has ended, in the order of `seeds`.

    Raises:
        ValueError: An argument is invalid, the runs of `pipeline` in the ledger are from another
            training, or the engine cannot train the model.
        RuntimeError: A seed failed with `"ray"`. The others have been trained, and are recorded.
        ImportError: The engine is `"ray"`, and Ray is not installed.

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
    epochs = integer("epochs", epochs, 1)
    batch_size = integer("batch_size", batch_size, 1)
    one_of("engine", engine, tuple(_ENGINES))
    seeds = _read_seeds(seeds)
    _check_functions(build_model, callbacks)
    ledger = ledger if isinstance(ledger, Ledger) else Ledger(ledger)
    with own_random_numbers():
        model = new_model(build_model, seeds[0])
    rows = as_rows("data", data, model)
    held_out = (
        None if validation_data is None else as_rows("validation_data", validation_data, model)
    )
    training = {
        **describe_model(model),
        "data": hash_rows(rows),
        "validation_data": None if held_out is None else hash_rows(held_out),
        "epochs": epochs,
        "batch_size": batch_size,
    }
    task = SeedTask(
        build_model=build_model,
        rows=rows,
        validation=held_out,
        ledger=str(ledger.path),
        pipeline=pipeline,
        epochs=epochs,
        batch_size=batch_size,
        callbacks=callbacks,
        record={
            "configuration": configuration,
            "num_rows": None if held_out is None else num_rows_of(held_out),
            "training": {**training, "engine": engine},
        },
    )
    # Raises for invalid fields of the record before anything is trained.
    record = validate_record(
        {"pipeline": pipeline, "seed": seeds[0], "status": "started", **task.record}
    )
    # The ledger is the state of an interrupted call: train only what it lacks.
    ended = _find_ended_runs(ledger, pipeline, seeds)
    _refuse_another_training(ended.values(), {**training, "configuration": record["configuration"]})
    missing = [seed for seed in seeds if seed not in ended]
    bar = ProgressBar(len(missing), "seeds", verbose)
    if ended:
        bar.say(f"{len(ended)} of {len(seeds)} seeds are in the ledger and have ended.")

    def on_end() -> None:
        bar.add(seed_figures(ledger, pipeline) if bar.is_shown else "")

    if missing:
        _ENGINES[engine](task, missing, on_end)
        ended = _find_ended_runs(ledger, pipeline, seeds)
    return [ended[seed] for seed in seeds if seed in ended]


def _read_seeds(seeds: Any) -> list[int]:
    plain = [plain_seed("seeds", seed) for seed in seeds] if np.iterable(seeds) else []
    if len(set(plain)) < len(plain) or not plain:
        raise refused("seeds", "different ints, at least one", plain or seeds)
    return plain


def _check_functions(build_model: Any, callbacks: Any) -> None:
    # A model can be called too.
    if not callable(build_model) or isinstance(build_model, keras.Model):
        raise refused("build_model", "a function that returns a new compiled model", build_model)
    if callbacks is not None and not callable(callbacks):
        raise refused(
            "callbacks",
            "a function of a seed that returns new callbacks, because callbacks have state",
            callbacks,
            "Pass, for example, lambda seed: [EarlyStopping()].",
        )


def _find_ended_runs(ledger: Ledger, pipeline: str, seeds: Sequence[int]) -> dict[int, RunRecord]:
    """The latest ended run of each seed."""
    return {
        run["seed"]: run
        for run in ledger.runs(pipeline, skip_damaged=True)
        if run["status"] != "started" and run["seed"] in seeds
    }


def _refuse_another_training(runs: Iterable[RunRecord], training: dict[str, Any]) -> None:
    """Refuses runs of another model, other rows or other settings."""
    for run in runs:
        before = {**(run["training"] or {}), "configuration": run["configuration"]}
        other = [name for name, value in training.items() if before.get(name) != value]
        if other:
            raise ValueError(
                "Argument `pipeline` must be the name of one training. Received: "
                f"pipeline={run['pipeline']!r}, whose seed {run['seed']} is in the ledger with "
                f"another {', '.join(other)}. Pass another name for another training."
            )
