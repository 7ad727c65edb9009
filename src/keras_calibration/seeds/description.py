"""Hashes that identify a training: of its model, of the arguments of `compile`, of its rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import joblib
import keras
import numpy as np

# The settings of `compile` that change neither the program nor, except for rounding, its result.
_SPEED = ("run_eagerly", "steps_per_execution", "jit_compile")


def describe_model(model: keras.Model) -> dict[str, str]:
    """Hashes of the configuration of a new compiled model, and of the arguments of `compile`."""

    def compiled() -> str:
        config = model.get_compile_config() or {}
        return json.dumps({name: config[name] for name in config if name not in _SPEED})

    return {
        "model": _hash_configuration(model.to_json, model),
        "compile": _hash_configuration(compiled, model),
    }


def hash_rows(rows: Any) -> str:
    """A hash of the values of a structure of arrays, whatever their layout in memory.

    Example:
        >>> hash_rows(np.ones((2, 3))) == hash_rows(np.ones((3, 2)).T)
        True
    """
    named = keras.tree.flatten_with_path(rows)
    return str(joblib.hash([(path, _hash_array(array)) for path, array in named]))


def _hash_configuration(configuration: Callable[[], str], model: keras.Model) -> str:
    """A hash of the JSON, or of the model's class if a user's object has no configuration."""
    try:
        text = configuration()
    except Exception:  # whatever a `get_config` raises
        text = json.dumps(type(model).__qualname__)
    return str(joblib.hash(json.loads(text, object_hook=_drop_compile_and_code)))


def _drop_compile_and_code(config: dict[str, Any]) -> Any:
    """A part of a configuration, without the arguments of `compile` and without code."""
    config.pop("compile_config", None)
    # Keras writes the bytecode of a lambda, with file name and line numbers: an edit elsewhere in
    # the file would make it another model.
    return "lambda" if config.get("class_name") == "__lambda__" else config


def _hash_array(array: Any) -> str:
    if hasattr(array, "tocsr"):
        return str(joblib.hash((array.shape, array.data, array.indices, array.indptr)))
    # Values in the order of the rows, because joblib also hashes the layout in memory. Arrays of
    # objects hold pointers: hash what they point to.
    flat = array.tolist() if array.dtype.kind in "OSU" else np.ascontiguousarray(array).reshape(-1)
    return str(joblib.hash((array.shape, flat)))
