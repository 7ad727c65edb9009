"""Many seeds on a Ray cluster: the engine `"ray"`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import as_completed
from types import ModuleType
from typing import Any

from joblib import cpu_count

from calibration_records._check import installed
from keras_calibration.seeds.keras_settings import (
    apply_settings,
    current_settings,
    worker_environment,
)
from keras_calibration.seeds.seed_task import SeedTask, fit_seed


def train_on_ray(task: SeedTask, seeds: Sequence[int], on_end: Callable[[], None]) -> None:
    """Trains each seed by `fit` in a task of a Ray cluster, with one core each.

    It uses the cluster of `ray.init` or of the variable `RAY_ADDRESS`. Without one, it starts a
    local cluster and ends it again. A seed that fails, or whose process dies, does not stop the
    others.
    """
    with _connect() as ray:
        train = ray.remote(
            num_cpus=1, max_retries=0, runtime_env={"env_vars": worker_environment()}
        )(_train)
        try:
            shared_task = ray.put(task)
        except Exception as error:  # whatever an object of the user raises
            raise ValueError(
                "Arguments `build_model` and `callbacks` must be functions that can be sent to "
                f"other processes with engine='ray'. Received: {error}. Create locks, open files "
                "and other objects that cannot be sent inside of the function."
            ) from error
        settings = current_settings()
        # All tasks at once: Ray starts one for each free core.
        seed_of = {train.remote(shared_task, settings, seed).future(): seed for seed in seeds}
        errors = {}
        for future in as_completed(seed_of):
            if failure := future.exception():
                errors[seed_of[future]] = failure
            else:
                on_end()
        if errors:
            first = next(iter(errors.values()))
            raise RuntimeError(
                f"The seeds {[*errors]} failed. The first error:\n{first}\nThe others are in the "
                "ledger. Call seeds.train again to train these."
            ) from first


def _train(task: SeedTask, settings: dict[str, Any], seed: int) -> None:
    apply_settings(settings)
    fit_seed(task, seed)


@contextlib.contextmanager
def _connect() -> Iterator[ModuleType]:
    with installed("ray", "engine='ray' needs Ray."):
        import ray
    if ray.is_initialized():
        yield ray
        return
    address = os.environ.get("RAY_ADDRESS")
    own: dict[str, Any] = {"num_cpus": cpu_count(), "include_dashboard": False}
    ray.init(address, log_to_driver=False, **({} if address else own))
    try:
        yield ray
    finally:
        ray.shutdown()
