"""Many seeds in processes of their own: the engine `"processes"`."""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_calibration.training.seed_queue import SeedQueue
from keras_calibration.training.seed_task import SeedTask, fit_seed, map_rows

# The kinds of arrays that NumPy can map into memory.
_PLAIN_KINDS = "biufSU"


def train_in_processes(
    task: SeedTask,
    seeds: Sequence[int],
    *,
    num_parallel: int | None,
    num_retries: int,
    on_end: Callable[[int], bool],
) -> None:
    """Trains each seed by `fit` in one of several processes, each with one thread.

    `num_parallel` is the number of processes, `None` for one for each core. The other arguments,
    and the error of a seed that fails too often, are those of `SeedQueue`.
    """
    queue = SeedQueue(seeds, num_retries, on_end)
    with tempfile.TemporaryDirectory(prefix="keras-calibration-rows-") as folder:
        task = _with_mapped_rows(task, Path(folder))
        workers = [_Worker(task) for _ in range(min(num_parallel or num_cores(), len(seeds)))]
        try:
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

    def __init__(self, task: SeedTask) -> None:
        self._task = task
        self.is_busy = False
        self._begin()

    def _begin(self) -> None:
        # A forked TensorFlow hangs.
        context = multiprocessing.get_context("spawn")
        self.connection, other_end = context.Pipe()
        self._process = context.Process(target=_serve, args=(other_end, self._task), daemon=True)
        self._process.start()
        # Now only the process has it, and its death ends the connection.
        other_end.close()

    def train(self, seed: int) -> None:
        self._seed, self.is_busy = seed, True
        self.connection.send(seed)

    def answer(self) -> tuple[int, str | None]:
        """The seed that has ended, with its error or `None`; a dead process is replaced."""
        self.is_busy = False
        try:
            return self._seed, self.connection.recv()
        except (EOFError, OSError):
            self.end()
            error = f"Its process ended with the exit code {self._process.exitcode}."
            self._begin()
            return self._seed, error

    def end(self) -> None:
        self._process.kill()
        self._process.join()
        self.connection.close()


def _answers(workers: Sequence[_Worker]) -> list[tuple[int, str | None]]:
    """Waits for the next seeds to end; returns each with its error."""
    answers = []
    for connection in wait([w.connection for w in workers if w.is_busy]):
        worker = next(worker for worker in workers if worker.connection is connection)
        answers.append(worker.answer())
    return answers


def _serve(connection: Connection, task: SeedTask) -> None:
    """Trains the seeds that arrive, and answers each with its error or `None`."""
    use_one_thread()
    task = _with_loaded_rows(task)
    while True:
        try:
            seed = connection.recv()
        except (EOFError, KeyboardInterrupt):
            return
        try:
            fit_seed(task, seed)
        except Exception:  # A user's model may raise anything.
            connection.send(traceback.format_exc())
        else:
            connection.send(None)


def use_one_thread() -> None:
    """One thread for this process, which shares the machine with the others."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
        leave_gpu_memory()
    else:
        flags = os.environ.get("XLA_FLAGS", "")
        os.environ["XLA_FLAGS"] = f"{flags} --xla_cpu_multi_thread_eigen=false"


def leave_gpu_memory() -> None:
    """Makes TensorFlow take only the GPU memory that it needs, unless it has started already."""
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
