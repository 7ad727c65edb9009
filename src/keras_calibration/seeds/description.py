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
    return {
        "model": _hash_configuration(model.to_json, model),
        "compile": _hash_configuration(
            lambda: json.dumps(
                {n: c for n, c in (model.get_compile_config() or {}).items() if n not in _SPEED}
            ),
            model,
        ),
    }


def hash_rows(rows: Any) -> str:
    """A hash of the values of a structure of arrays, whatever their layout in memory and dtype.

    Example:
        >>> hash_rows(np.ones((2, 3))) == hash_rows(np.ones((3, 2), int).T)
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
    parts = (array.data, array.indices, array.indptr) if hasattr(array, "tocsr") else [array]
    # A column is (n,) or (n, 1).
    shape = array.shape[:1] if array.shape[1:] == (1,) else array.shape
    # In blocks, because a copy of all values would take memory.
    blocks = [np.array_split(part.reshape(-1), 1 + part.size // 2**20) for part in parts]
    return str(joblib.hash((shape, [[*map(_hash_block, part)] for part in blocks])))


def _hash_block(block: np.ndarray) -> str:
    # Arrays of objects hold pointers: hash what they point to.
    if block.dtype.kind in "OSU":
        return str(joblib.hash(block.tolist()))
    # Numbers as float64, unless it cannot hold large integers.
    is_exact = block.dtype.kind not in "iu" or np.abs(block).max(initial=0) <= 2**53
    return str(joblib.hash(np.ascontiguousarray(block, "float64" if is_exact else None)))
