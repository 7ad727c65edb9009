"""Many seeds on a Ray cluster: the engine `"ray"`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from types import ModuleType

from calibration_records._check import installed
from keras_calibration.seeds.keras_settings import KerasSettings, leave_gpu_memory, num_cores
from keras_calibration.seeds.seed_futures import sent_to_processes, train_by_futures
from keras_calibration.seeds.seed_task import SeedTask, fit_seed


def train_on_ray(
    task: SeedTask,
    seeds: Sequence[int],
    *,
    num_parallel: int | None,
    on_end: Callable[[int], bool],
) -> None:
    """Trains each seed by `fit` in a task of a Ray cluster, with one core each.

    A cluster that Ray finds is used: after `ray.init`, or by the variable `RAY_ADDRESS`. Otherwise,
    a local one is started, and ended again. The folder of the ledger must be one that all machines
    of the cluster share.

    `num_parallel` is the number of seeds at once, `None` for as many as the cluster has cores for.
    The other arguments, and the error of a seed that fails too often: see `train_by_futures`.

    Raises:
        ImportError: Ray is not installed.
        ValueError: The functions of the user cannot be sent to other processes.
    """
    settings = KerasSettings.current()
    with _cluster(num_parallel) as ray:
        # Tried again here, and not by Ray, which does not count the deaths of a process alike.
        environment = {"env_vars": settings.environment()}
        train = ray.remote(num_cpus=1, max_retries=0, runtime_env=environment)(_train)
        with sent_to_processes("ray"):
            shared_task = ray.put(task)
        limit = num_parallel or max(int(ray.cluster_resources().get("CPU", 1)), 1)

        def submit(seed: int) -> Future[None]:
            return train.remote(shared_task, settings, seed).future()

        train_by_futures([submit] * min(limit, len(seeds)), seeds, on_end)


def _train(task: SeedTask, settings: KerasSettings, seed: int) -> None:
    settings.apply()
    leave_gpu_memory()
    fit_seed(task, seed)


@contextlib.contextmanager
def _cluster(num_parallel: int | None) -> Iterator[ModuleType]:
    with installed("ray", "engine='ray' needs Ray."):
        import ray
    if ray.is_initialized():
        yield ray
        return
    address = os.environ.get("RAY_ADDRESS")
    num_cpus = None if address else num_parallel or num_cores()
    ray.init(
        address,
        num_cpus=num_cpus,
        log_to_driver=False,
        include_dashboard=None if address else False,
    )
    try:
        yield ray
    finally:
        ray.shutdown()
