"""Many seeds in processes of their own: the engine `"processes"`."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import multiprocessing
import os
import pickle
import shutil
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from keras_calibration.seeds.keras_settings import KerasSettings, leave_gpu_memory, num_cores
from keras_calibration.seeds.seed_futures import train_by_futures
from keras_calibration.seeds.seed_task import SeedTask, fit_seed, map_rows

# The kinds of arrays that NumPy can map into memory.
_PLAIN_KINDS = "biufSU"
_TASK_FILE = "task.pickle"


def train_in_processes(
    task: SeedTask,
    seeds: Sequence[int],
    *,
    num_parallel: int | None,
    on_end: Callable[[int], bool],
) -> None:
    """Trains each seed by `fit` in one of several processes, each with one thread.

    `num_parallel` is the number of processes, `None` for one for each core. The other arguments,
    and the error of a seed that fails too often, are those of `train_by_futures`.
    """
    _check_can_be_sent(task)
    settings = KerasSettings.current()
    with contextlib.ExitStack() as stack:
        name = stack.enter_context(tempfile.TemporaryDirectory(prefix="keras-calibration-rows-"))
        folder = Path(name)
        with (folder / _TASK_FILE).open("wb") as file:
            pickle.dump((_with_mapped_rows(task, folder), settings), file)
        # The processes end when this one closes its end of the pipe: after the last seed, an error
        # or ^C, or because it is killed.
        theirs, ours = multiprocessing.Pipe(duplex=False)
        stack.enter_context(theirs)
        number = min(num_parallel or num_cores(), len(seeds))
        workers = [
            stack.enter_context(_Worker(folder, theirs, settings.environment()))
            for _ in range(number)
        ]
        stack.enter_context(ours)
        train_by_futures([worker.submit for worker in workers], seeds, on_end)


def _check_can_be_sent(task: SeedTask) -> None:
    """Refuses functions that another process cannot import."""
    remedy = "Move them to the top level of a file, or use engine='vectorized'."
    try:
        sent = pickle.dumps((task.build_model, task.callbacks))
    except Exception as error:  # Whatever an object of the user raises.
        raise ValueError(
            "Arguments `build_model` and `callbacks` must be functions of a module with "
            f"engine='processes', which sends them to other processes. Received: {error}. {remedy}"
        ) from error
    # Processes import the program's file; a notebook, a session and `python -c` have none.
    if b"__main__" in sent and not hasattr(sys.modules["__main__"], "__file__"):
        raise ValueError(
            "Arguments `build_model` and `callbacks` must be functions of a module with "
            "engine='processes', which other processes import. Received: functions of a notebook "
            f"or an interactive session. {remedy}"
        )


class _Worker:
    """A process that trains one seed after the other, and another one if it dies.

    It is a pool of its own, because the death of a process ends all others of its pool.
    """

    def __init__(self, folder: Path, pipe: Connection, environment: Mapping[str, str]) -> None:
        self._folder, self._pipe, self._environment = folder, pipe, environment
        self._pool = self._new_pool()

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def _new_pool(self) -> ProcessPoolExecutor:
        # A forked TensorFlow hangs.
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(1, context, _end_with_parent, (self._folder, self._pipe))

    def submit(self, seed: int) -> Future[None]:
        """Starts to train a seed."""
        # A process begins with the first seed of its pool.
        with _environment(self._environment):
            try:
                return self._pool.submit(_train, self._folder, seed)
            except BrokenProcessPool:
                self._pool = self._new_pool()
                return self._pool.submit(_train, self._folder, seed)


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Sets variables of the environment for the processes that begin in the block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _end_with_parent(folder: Path, pipe: Connection) -> None:
    """Ends this process when its parent closes the pipe or is killed.

    It would train on beside the processes of the next call. A parent that was killed cannot
    remove its folder.
    """
    # The parent decides what ^C ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        with contextlib.suppress(EOFError, OSError):
            pipe.recv()
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _train(folder: Path, seed: int) -> None:
    try:
        fit_seed(_task(folder), seed)
    except Exception:  # A user's model may raise anything, also what cannot be sent back.
        raise RuntimeError(traceback.format_exc()) from None


@functools.cache
def _task(folder: Path) -> SeedTask:
    """The task of this process, with its settings made."""
    with (folder / _TASK_FILE).open("rb") as file:
        task, settings = pickle.load(file)
    settings.apply()
    leave_gpu_memory()
    return _with_loaded_rows(task)


def _with_mapped_rows(task: SeedTask, folder: Path) -> SeedTask:
    """Replaces large arrays by paths of files, which all processes map to the same memory."""
    paths: dict[int, Path] = {}

    def store(array: np.ndarray) -> np.ndarray | Path:
        if array.dtype.kind not in _PLAIN_KINDS:
            return array
        path = paths.setdefault(id(array), folder / f"{len(paths)}.npy")
        if not path.exists():
            np.save(path, array)
        return path

    return _map_all(store, task)


def _with_loaded_rows(task: SeedTask) -> SeedTask:
    return _map_all(lambda a: np.load(a, mmap_mode="r") if isinstance(a, Path) else a, task)


def _map_all(function: Callable[[Any], Any], task: SeedTask) -> SeedTask:
    validation = None if task.validation is None else map_rows(function, task.validation)
    return dataclasses.replace(task, rows=map_rows(function, task.rows), validation=validation)
