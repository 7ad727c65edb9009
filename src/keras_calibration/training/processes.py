"""Many seeds in processes of their own: the engine `"processes"`."""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import pickle
import shutil
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_calibration.training.keras_settings import KerasSettings
from keras_calibration.training.seed_queue import SeedQueue
from keras_calibration.training.seed_task import SeedTask, fit_seed, map_rows

# The kinds of arrays that NumPy can map into memory.
_PLAIN_KINDS = "biufSU"
_TASK_FILE = "task.pickle"
_READY = "ready"


def train_in_processes(
    task: SeedTask,
    seeds: Sequence[int],
    *,
    num_parallel: int | None,
    on_end: Callable[[int], bool],
) -> None:
    """Trains each seed by `fit` in one of several processes, each with one thread.

    `num_parallel` is the number of processes, `None` for one for each core. The other arguments,
    and the error of a seed that fails too often, are those of `SeedQueue`.
    """
    queue = SeedQueue(seeds, on_end)
    settings = KerasSettings.current()
    with tempfile.TemporaryDirectory(prefix="keras-calibration-rows-") as name:
        folder = Path(name)
        with (folder / _TASK_FILE).open("wb") as file:
            pickle.dump((_with_mapped_rows(task, folder), settings), file)
        number = min(num_parallel or num_cores(), len(seeds))
        workers: list[_Worker] = []
        try:
            for _ in range(number):
                workers.append(_Worker(folder, settings))
            while queue or any(worker.is_busy for worker in workers):
                for worker in workers:
                    if queue and not worker.is_busy:
                        worker.train(queue.take())
                for seed, error in _answers(workers):
                    queue.ended(seed, error)
        finally:
            for worker in workers:
                worker.end()


def num_cores() -> int:
    """The number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Worker:
    """A process that trains one seed after the other."""

    def __init__(self, folder: Path, settings: KerasSettings) -> None:
        self._folder, self._settings = folder, settings
        self.is_busy = False
        self._begin()

    def _begin(self) -> None:
        # A forked TensorFlow hangs.
        context = multiprocessing.get_context("spawn")
        self.connection, other_end = context.Pipe()
        self._process = context.Process(target=_serve, args=(other_end, self._folder), daemon=True)
        with _environment(self._settings.environment()):
            self._process.start()
        # Now only the process has it, and its death ends the connection.
        other_end.close()
        self._is_ready = False

    def train(self, seed: int) -> None:
        if self._is_ready and not self._process.is_alive():
            # It died after its last answer, and no seed with it.
            self.end()
            self._begin()
        self._seed, self.is_busy = seed, True
        # If it has just died, there is no one to read it, and `answer` tells so.
        with contextlib.suppress(OSError):
            self.connection.send(seed)

    def answer(self) -> tuple[int, str | None] | None:
        """The seed that has ended, with its error or `None`; a dead process is replaced.

        `None` if the process has only begun to train.
        """
        try:
            answer = self.connection.recv()
        except (EOFError, OSError):
            error = self._death()
            self._begin()
            self.is_busy = False
            return self._seed, error
        if answer == _READY:
            self._is_ready = True
            return None
        self.is_busy = False
        return self._seed, answer

    def _death(self) -> str:
        self.end()
        error = f"Its process ended with the exit code {self._process.exitcode}"
        if self._is_ready:
            return f"{error}."
        return (
            f"{error} before it could train; its own error is above. It imports the program that "
            "calls seeds.train: what the program does belongs below `if __name__ == "
            '"__main__":`, or every process does it again.'
        )

    def end(self) -> None:
        self._process.kill()
        self._process.join()
        self.connection.close()


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


def _answers(workers: Sequence[_Worker]) -> list[tuple[int, str | None]]:
    """Waits for the next seeds to end; returns each with its error."""
    answers = []
    for connection in wait([w.connection for w in workers if w.is_busy]):
        worker = next(worker for worker in workers if worker.connection is connection)
        answers.append(worker.answer())
    return [answer for answer in answers if answer is not None]


def _serve(connection: Connection, folder: Path) -> None:
    """Trains the seeds that arrive, and answers each with its error or `None`."""
    _end_with_parent(folder)
    unable = None
    try:
        with (folder / _TASK_FILE).open("rb") as file:
            task, settings = pickle.load(file)
        settings.apply()
        task = _with_loaded_rows(task)
        leave_gpu_memory()
    except Exception:  # A module of the user may raise anything.
        unable = traceback.format_exc()
    connection.send(_READY)
    while True:
        try:
            seed = connection.recv()
        except (EOFError, KeyboardInterrupt):
            return
        try:
            if unable is None:
                fit_seed(task, seed)
        except Exception:  # A user's model may raise anything.
            connection.send(traceback.format_exc())
        else:
            connection.send(unable)


def _end_with_parent(folder: Path) -> None:
    """Ends this process when its parent is killed, which may otherwise train on beside the next.

    The parent can then not remove its folder.
    """
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            shutil.rmtree(folder, ignore_errors=True)
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def leave_gpu_memory() -> None:
    """Makes TensorFlow take only the GPU memory that it needs, unless it has started already."""
    if keras.backend.backend() != "tensorflow":
        return
    import tensorflow as tf

    for device in tf.config.list_physical_devices("GPU"):
        with contextlib.suppress(RuntimeError):
            tf.config.experimental.set_memory_growth(device, True)


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
