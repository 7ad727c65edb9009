"""The chief: the one of several worker processes that writes files."""

import json
import os

import keras


def is_chief() -> bool:
    """Whether this process is the chief of its cluster, or has no cluster.

    In `TF_CONFIG`, the chief is the task `chief`, or else worker 0. On JAX, it is process 0.
    """
    if keras.backend.backend() == "jax":
        import jax

        return bool(jax.process_index() == 0)
    config = json.loads(os.environ.get("TF_CONFIG") or "{}")
    cluster = config.get("cluster") or {}
    task = config.get("task") or {}
    if not cluster or task.get("type") in ("chief", "master"):
        return True
    # Worker 0 is the chief only of a cluster without a task of that name.
    first_worker = task.get("type") == "worker" and int(task.get("index", 0)) == 0
    return first_worker and not {"chief", "master"} & set(cluster)
