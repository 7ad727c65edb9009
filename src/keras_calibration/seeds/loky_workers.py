"""Many seeds in processes of joblib's loky: the engine `"processes"`."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import pickle
import shutil
import signal
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
from joblib.externals.loky import ProcessPoolExecutor

from keras_calibration.seeds.keras_settings import KerasSettings, leave_gpu_memory, num_cores
from keras_calibration.seeds.seed_futures import sent_to_processes, train_by_futures
from keras_calibration.seeds.seed_task import SeedTask, fit_seed

_TASK_FILE = "task.pickle"
# Smaller arrays are sent as they are.
_MAPPED_BYTES = 2**16


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

    Raises:
        ValueError: The functions of the user cannot be sent to other processes.
    """
    settings = KerasSettings.current()
    number = min(num_parallel or num_cores(), len(seeds))
    with contextlib.ExitStack() as stack:
        name = stack.enter_context(tempfile.TemporaryDirectory(prefix="keras-calibration-rows-"))
        folder = Path(name)
        _write(folder, (task, settings))
        # The processes end with this one, which closes its end of the pipe even if it is killed.
        theirs, ours = multiprocessing.Pipe(duplex=False)
        stack.enter_context(theirs)
        stack.enter_context(ours)
        workers = [_Worker(folder, theirs, settings.environment()) for _ in range(number)]
        for worker in workers:
            # After the last seed, an error or ^C.
            stack.callback(worker.kill)
        train_by_futures([worker.submit for worker in workers], seeds, on_end)


class _Worker:
    """A process that trains one seed after the other, and another one if it dies.

    It is a pool of its own, because the death of a process ends all others of its pool.
    """

    def __init__(self, folder: Path, pipe: Connection, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._new_pool = functools.partial(
            ProcessPoolExecutor,
            max_workers=1,
            initializer=_end_with_parent,
            initargs=(folder, pipe),
            env=dict(environment),
        )
        self._pool = self._new_pool()

    def submit(self, seed: int) -> Future[None]:
        """Starts to train a seed."""
        try:
            return self._pool.submit(_train, self._folder, seed)
        except BrokenProcessPool:
            self._pool = self._new_pool()
            return self._pool.submit(_train, self._folder, seed)

    def kill(self) -> None:
        """Ends the process, whatever it does: a record is on disk before a seed has ended."""
        self._pool.shutdown(kill_workers=True)


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
    except BaseException:  # A user's model may raise anything, also what cannot be sent back.
        raise RuntimeError(traceback.format_exc()) from None


@functools.cache
def _task(folder: Path) -> SeedTask:
    """The task of this process, with its settings made."""
    with (folder / _TASK_FILE).open("rb") as file:
        task, settings = _Unpickler(file, folder).load()
    settings.apply()
    leave_gpu_memory()
    return task


def _write(folder: Path, content: tuple[SeedTask, KerasSettings]) -> None:
    """Writes functions of any kind, and large arrays as files that all processes map."""
    with sent_to_processes("processes"), (folder / _TASK_FILE).open("wb") as file:
        _Pickler(file, folder).dump(content)


class _Pickler(cloudpickle.Pickler):
    def __init__(self, file: Any, folder: Path) -> None:
        super().__init__(file)
        self._folder = folder
        # The arrays too: another one could get the id of one that is gone.
        self._stored: dict[int, tuple[str, np.ndarray]] = {}

    def persistent_id(self, value: Any) -> str | None:
        """The file of a large array, also of one that a function of the user refers to."""
        if type(value) not in (np.ndarray, np.memmap) or value.dtype.hasobject:
            return None
        if value.nbytes < _MAPPED_BYTES:
            return None
        if id(value) not in self._stored:
            name = f"{len(self._stored)}.npy"
            np.save(self._folder / name, value)
            self._stored[id(value)] = name, value
        return self._stored[id(value)][0]


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: Any, folder: Path) -> None:
        super().__init__(file)
        self._folder = folder

    def persistent_load(self, name: str) -> np.ndarray:
        """An array in memory that all processes share; what one of them writes stays its own."""
        array: np.ndarray = np.load(self._folder / name, mmap_mode="c")
        return array
