"""The settings of Keras and its backend for processes that train: this one and others."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import keras

from keras_calibration._keras import is_deterministic

# What JAX computes with, where Keras has no setting of its own.
_JAX_OPTIONS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_numpy_dtype_promotion",
    "jax_numpy_rank_promotion",
)
# With more threads, sums would be rounded by the number of processes beside this one.
_THREADS = (
    *("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"),
    *("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"),
)


@dataclasses.dataclass(frozen=True)
class KerasSettings:
    """Settings that a program makes in its process; a new process would start with the defaults.

    Args:
        backend: Name of the backend.
        floatx: Default dtype.
        epsilon: Fuzz factor.
        image_data_format: `"channels_last"` or `"channels_first"`.
        dtype_policy: Configuration of the global dtype policy.
        backend_settings: Settings of TensorFlow or JAX, by name.
    """

    backend: str
    floatx: str
    epsilon: float
    image_data_format: str
    dtype_policy: Mapping[str, Any]
    backend_settings: Mapping[str, Any]

    @classmethod
    def current(cls) -> KerasSettings:
        """The settings of this process."""
        return cls(
            backend=keras.backend.backend(),
            floatx=keras.config.floatx(),
            epsilon=keras.config.epsilon(),
            image_data_format=keras.config.image_data_format(),
            dtype_policy=keras.dtype_policies.serialize(keras.config.dtype_policy()),
            backend_settings=_backend_settings(),
        )

    def environment(self) -> dict[str, str]:
        """The variables with which a process starts: the backend, and one thread for each process.

        Threads and backend are fixed when a module of the user is imported, before `apply`. A
        number of threads that the user has set stays.
        """
        threads = {name: os.environ.get(name, "1") for name in _THREADS}
        variables = {"KERAS_BACKEND": self.backend, **threads}
        if self.backend == "tensorflow":
            return variables
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false"
        return {**variables, "XLA_FLAGS": flags.strip()}

    def apply(self) -> None:
        """Makes the settings in this process, after the modules of the user are imported."""
        keras.config.set_floatx(self.floatx)
        keras.config.set_epsilon(self.epsilon)
        keras.config.set_image_data_format(self.image_data_format)
        keras.config.set_dtype_policy(keras.dtype_policies.deserialize(dict(self.dtype_policy)))
        if self.backend == "tensorflow":
            import tensorflow as tf

            tf.config.experimental.enable_tensor_float_32_execution(
                self.backend_settings["tensor_float_32"]
            )
            if self.backend_settings["deterministic"]:
                tf.config.experimental.enable_op_determinism()
        elif self.backend == "jax":
            import jax

            for name, value in self.backend_settings.items():
                jax.config.update(name, value)


def _backend_settings() -> dict[str, Any]:
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return {
            "tensor_float_32": tf.config.experimental.tensor_float_32_execution_enabled(),
            "deterministic": is_deterministic(),
        }
    if keras.backend.backend() == "jax":
        import jax

        return {
            name: getattr(jax.config, name) for name in _JAX_OPTIONS if hasattr(jax.config, name)
        }
    return {}


def leave_gpu_memory() -> None:
    """Makes TensorFlow take only the GPU memory that it needs, unless it has started already."""
    if keras.backend.backend() != "tensorflow":
        return
    import tensorflow as tf

    for device in tf.config.list_physical_devices("GPU"):
        with contextlib.suppress(RuntimeError):
            tf.config.experimental.set_memory_growth(device, True)


def num_cores() -> int:
    """The number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
