"""The settings of Keras and its backend that decide what a model computes, for other processes."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import keras

from keras_calibration._compat import is_deterministic

# What JAX computes with, where Keras has no setting of its own.
_OF_JAX = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_numpy_dtype_promotion",
    "jax_numpy_rank_promotion",
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
        of_backend: Settings of TensorFlow or JAX, by name.
    """

    backend: str
    floatx: str
    epsilon: float
    image_data_format: str
    dtype_policy: Mapping[str, Any]
    of_backend: Mapping[str, Any]

    @classmethod
    def current(cls) -> KerasSettings:
        """The settings of this process."""
        return cls(
            backend=keras.backend.backend(),
            floatx=keras.config.floatx(),
            epsilon=keras.config.epsilon(),
            image_data_format=keras.config.image_data_format(),
            dtype_policy=keras.dtype_policies.serialize(keras.config.dtype_policy()),
            of_backend=_settings_of_backend(),
        )

    def environment(self) -> dict[str, str]:
        """The variables with which a process starts: the backend, and one thread for each process.

        Threads and backend are fixed when a module of the user is imported, before `apply`.
        """
        variables = {"KERAS_BACKEND": self.backend}
        if self.backend == "tensorflow":
            return {**variables, "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}
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
                self.of_backend["tensor_float_32"]
            )
            if self.of_backend["deterministic"]:
                tf.config.experimental.enable_op_determinism()
        elif self.backend == "jax":
            import jax

            for name, value in self.of_backend.items():
                jax.config.update(name, value)


def _settings_of_backend() -> dict[str, Any]:
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return {
            "tensor_float_32": tf.config.experimental.tensor_float_32_execution_enabled(),
            "deterministic": is_deterministic(),
        }
    if keras.backend.backend() == "jax":
        import jax

        return {name: getattr(jax.config, name) for name in _OF_JAX if hasattr(jax.config, name)}
    return {}
