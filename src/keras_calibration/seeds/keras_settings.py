"""The settings of Keras and TensorFlow in processes that train."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import keras

from keras_calibration._keras import is_deterministic

# With more threads, the rounding of sums would depend on the number of other processes.
_THREADS = (
    *("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"),
    *("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"),
)


def worker_environment() -> dict[str, str]:
    """The environment of a new process: the backend, and one thread for each process.

    Libraries read these variables when they are imported, so set them before a module of the user
    is imported. Numbers of threads that the user has set stay.
    """
    return {
        "KERAS_BACKEND": keras.backend.backend(),
        **{name: os.environ.get(name, "1") for name in _THREADS},
    }


def current_settings() -> dict[str, Any]:
    """The settings of this process; a new one would start with the defaults."""
    return {
        "floatx": keras.config.floatx(),
        "epsilon": keras.config.epsilon(),
        "image_data_format": keras.config.image_data_format(),
        "dtype_policy": keras.dtype_policies.serialize(keras.config.dtype_policy()),
        "is_deterministic": keras.backend.backend() == "tensorflow" and is_deterministic(),
    }


def apply_settings(settings: dict[str, Any]) -> None:
    """Applies the settings in this process, after the modules of the user are imported."""
    keras.config.set_floatx(settings["floatx"])
    keras.config.set_epsilon(settings["epsilon"])
    keras.config.set_image_data_format(settings["image_data_format"])
    keras.config.set_dtype_policy(keras.dtype_policies.deserialize(settings["dtype_policy"]))
    if keras.backend.backend() != "tensorflow":
        return
    import tensorflow as tf

    if settings["is_deterministic"]:
        tf.config.experimental.enable_op_determinism()
    for device in tf.config.list_physical_devices("GPU"):
        # Several processes share the GPU, so none may take all of its memory. If TensorFlow has
        # started already, it refuses the setting.
        with contextlib.suppress(RuntimeError):
            tf.config.experimental.set_memory_growth(device, True)
