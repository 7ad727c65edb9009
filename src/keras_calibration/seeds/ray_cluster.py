"""Many seeds on a Ray cluster: the engine `"ray"`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from types import ModuleType
from typing import Any

from calibration_records._check import installed
from keras_calibration.seeds.keras_settings import (
    apply_settings,
    current_settings,
    num_cores,
    worker_environment,
)
from keras_calibration.seeds.seed_futures import train_by_futures
from keras_calibration.seeds.seed_task import SeedTask, fit_seed


def train_on_ray(task: SeedTask, seeds: Sequence[int], on_end: Callable[[], None]) -> None:
    """Trains each seed by `fit` in a task of a Ray cluster, with one core each.

    A cluster that Ray finds is used: after `ray.init`, or by the variable `RAY_ADDRESS`. Otherwise,
    a local one is started, and ended again.
    """
    with _cluster() as ray:
        # Tried again here, and not by Ray, which does not count the deaths of a process alike.
        environment = {"env_vars": worker_environment()}
        train = ray.remote(num_cpus=1, max_retries=0, runtime_env=environment)(_train)
        try:
            shared_task = ray.put(task)
        except Exception as error:  # Whatever an object of the user raises.
            raise ValueError(
                "Arguments `build_model` and `callbacks` must be functions that can be sent to "
                f"other processes with engine='ray'. Received: {error}. Create what cannot be "
                "sent, such as a lock or an open file, inside of the function."
            ) from error
        settings = current_settings()

        def submit(seed: int) -> Future[None]:
            future: Future[None] = train.remote(shared_task, settings, seed).future()
            return future

        num_parallel = max(int(ray.cluster_resources().get("CPU", 1)), 1)
        train_by_futures(submit, seeds, num_parallel, on_end)


def _train(task: SeedTask, settings: dict[str, Any], seed: int) -> None:
    apply_settings(settings)
    fit_seed(task, seed)


@contextlib.contextmanager
def _cluster() -> Iterator[ModuleType]:
    with installed("ray", "engine='ray' needs Ray."):
        import ray
    if ray.is_initialized():
        yield ray
        return
    address = os.environ.get("RAY_ADDRESS")
    options: dict[str, Any] = {}
    if not address:
        options = {"num_cpus": num_cores(), "include_dashboard": False}
    ray.init(address, log_to_driver=False, **options)
    try:
        yield ray
    finally:
        ray.shutdown()
