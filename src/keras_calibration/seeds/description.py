"""What a pipeline trains, by the configurations of its parts: the same in every process."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import joblib
import keras
import numpy as np

from keras_calibration._keras import compile_arguments, flatten_layers
from keras_calibration._rows.columns import as_array

# The settings of `compile` that change neither the program nor its result, but for rounding.
_SPEED = ("run_eagerly", "steps_per_execution", "jit_compile")
# Callbacks that look at a run and do not change it.
_OBSERVERS = (
    keras.callbacks.BackupAndRestore,
    keras.callbacks.CSVLogger,
    keras.callbacks.ProgbarLogger,
    keras.callbacks.RemoteMonitor,
    keras.callbacks.TensorBoard,
)
# Arguments of callbacks that do not change a run.
_SILENT = ("self", "seed", "verbose")
# What Keras writes besides the settings: where a class lives, and what `build` will create.
_DROPPED = {"module", "registered_name", "shared_object_id", "build_config", "build_input_shape"}
# What is known by its name: it changes with a version only.
_LIBRARIES = ("keras", "tensorflow", "jax", "numpy", "keras_calibration")
# The key of an object of which only the name is known.
_ONLY_NAME = "only_name"
# Longer sequences of numbers and strings are hashed.
_MAX_LENGTH = 32
# In one line of an error.
_MAX_SHOWN = 4


def describe_model(model: keras.Model) -> dict[str, Any]:
    """The configurations of a new compiled model, its optimizer, its losses and metrics."""
    name, config = type(model).__name__, _config_of(model)
    described = {"class_name": name, "config": _plain(config or {})}
    if "layers" not in described["config"]:
        # A class of the user, or a model of Keras with a layer that has no configuration.
        described["layers"] = [_plain(layer) for layer in flatten_layers(model)[1:]]
    if config is None:
        described[_ONLY_NAME] = name
    # No configuration has what a layer was adapted to.
    words = {
        layer.name: hash_array(layer.get_vocabulary())
        for layer in flatten_layers(model)
        if hasattr(layer, "get_vocabulary")
    }
    arguments = {
        name: value
        for name, value in compile_arguments(model).items()
        if name not in (*_SPEED, "optimizer")
    }
    return {
        "model": described,
        **({"vocabularies": words} if words else {}),
        "optimizer": _plain(model.optimizer),
        "compile": _plain(arguments),
    }


def describe_rows(rows: Sequence[Any] | None) -> dict[str, Any] | None:
    """Number of rows, dtype and a hash of each array."""
    if rows is None:
        return None
    parts = zip(("x", "y", "sample_weight"), rows, strict=False)
    return {name: _describe_arrays(part) for name, part in parts}


def describe_callbacks(callbacks: Sequence[keras.callbacks.Callback]) -> list[dict[str, Any]]:
    """The classes of callbacks and their configurations; loggers of Keras are left out.

    Without a `get_config`, the configuration is the arguments of the constructor that are numbers
    or functions, or name a metric. Texts are mostly names of files, which do not change a run.
    """
    return [_plain_callback(c) for c in callbacks if type(c) not in _OBSERVERS]


def names_without_configuration(description: Any) -> list[str]:
    """The objects in a description of which only the name is known, each once.

    Example:
        >>> names_without_configuration({"compile": {"loss": {"only_name": "<lambda>"}}})
        ['<lambda>']
    """
    return list(dict.fromkeys(_only_names(description)))


def weights_norm(model: keras.Model) -> float | None:
    """The Euclidean norm of all weights, or `None` if there are none yet."""
    weights = [np.asarray(weight, np.float64) for weight in model.get_weights() if weight.size]
    norm = math.sqrt(sum(float(np.vdot(weight, weight)) for weight in weights))
    return norm if weights and math.isfinite(norm) else None


def hash_array(values: Any) -> str:
    """A hash of the values of an array, also of strings, and not of its memory layout.

    Example:
        >>> hash_array(np.ones((2, 3))) == hash_array(np.ones((3, 2)).T)
        True
    """
    array = np.asarray(values)
    is_text = array.dtype.kind in "OSU"
    flat = array.tolist() if is_text else np.ascontiguousarray(array).reshape(-1)
    return str(joblib.hash((array.shape, flat), hash_name="sha1"))


def differences(old: Any, new: Any) -> list[str]:
    """What differs in two descriptions, for example "optimizer.learning_rate=0.01, not 0.001".

    Example:
        >>> differences({"epochs": 2, "batch_size": 32}, {"epochs": 3, "batch_size": 32})
        ['epochs=2, not 3']
    """
    found = list(_compare(old, new, ""))
    if len(found) > _MAX_SHOWN:
        found[_MAX_SHOWN:] = [f"{len(found) - _MAX_SHOWN} more"]
    return found


def _plain(value: Any) -> Any:
    """A value as JSON: settings as they are, arrays as hashes, other objects by configuration.

    Settings that are `None` are left out: newer versions of Keras add some.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float | np.number):
        number = value.item() if isinstance(value, np.number) else value
        return number if math.isfinite(number) else str(number)
    if isinstance(value, Mapping):
        return _plain_mapping(value)
    if isinstance(value, list | tuple):
        return _plain_sequence(value)
    if isinstance(value, np.ndarray | keras.Variable) or keras.ops.is_tensor(value):
        array = keras.ops.convert_to_numpy(value)
        return {"dtype": str(array.dtype), "shape": list(array.shape), "values": hash_array(array)}
    config = _config_of(value)
    if config is not None:
        return {"class_name": type(value).__name__, "config": _plain(config)}
    if hasattr(value, "__qualname__") and _is_library(value):
        return value.__qualname__
    return {_ONLY_NAME: getattr(value, "__qualname__", type(value).__qualname__)}


def _config_of(value: Any) -> Mapping[str, Any] | None:
    if isinstance(value, type):
        return None
    # Keras' own raises an error where a class of the user needs another one, and so may the user's.
    try:
        config: Mapping[str, Any] = value.get_config()
    except Exception:
        return None
    return config


def _plain_mapping(value: Mapping[Any, Any]) -> Any:
    if value.get("class_name") == "__lambda__":
        # Keras writes bytecode, with the name of the file and numbers of lines.
        return {_ONLY_NAME: "<lambda>"}
    if value.get("class_name") == "function":
        return {_ONLY_NAME: value.get("config")}
    items = sorted((str(name), item) for name, item in value.items() if item is not None)
    is_keras = "class_name" in value
    return {name: _plain(item) for name, item in items if not (is_keras and name in _DROPPED)}


def _plain_sequence(value: Sequence[Any]) -> Any:
    items = [_plain(item) for item in value]
    if len(items) > _MAX_LENGTH and not any(isinstance(item, dict | list) for item in items):
        return {"length": len(items), "values": str(joblib.hash(items))}
    return items


def _plain_callback(callback: keras.callbacks.Callback) -> dict[str, Any]:
    name = type(callback).__name__
    config = _config_of(callback)
    if config is not None:
        return {"class_name": name, "config": _plain(config)}
    arguments = {
        argument: vars(callback).get(argument, vars(callback).get(f"_{argument}"))
        for argument in inspect.signature(type(callback).__init__).parameters
        if argument not in _SILENT
    }
    seen = {
        argument: value
        for argument, value in arguments.items()
        if isinstance(value, int | float | np.number)
        or callable(value)
        or argument in ("monitor", "mode")
    }
    described = {"class_name": name, "config": _plain(seen)}
    unseen = any(value is not None for argument, value in arguments.items() if argument not in seen)
    return (
        {**described, _ONLY_NAME: name} if unseen and not _is_library(type(callback)) else described
    )


def _is_library(of: Any) -> bool:
    return (getattr(of, "__module__", None) or "").partition(".")[0] in _LIBRARIES


def _describe_arrays(part: Any) -> Any:
    if isinstance(part, Mapping):
        return {str(name): _describe_arrays(part[name]) for name in sorted(part, key=str)}
    if isinstance(part, list | tuple):
        return [_describe_arrays(array) for array in part]
    kind = "string" if part.dtype.kind in "OSU" else str(part.dtype)
    part = as_array(part)
    return {"rows": len(part), "dtype": kind, "values": hash_array(part)}


def _only_names(node: Any) -> Iterator[str]:
    if isinstance(node, Mapping):
        if _ONLY_NAME in node:
            yield node[_ONLY_NAME]
        node = node.values()
    elif not isinstance(node, list | tuple):
        return
    for child in node:
        yield from _only_names(child)


def _compare(old: Any, new: Any, path: str) -> Iterator[str]:
    """A line for each difference of two descriptions."""
    if isinstance(old, dict) and isinstance(new, dict):
        if old.get("class_name") == new.get("class_name"):
            for key in dict.fromkeys([*new, *old]):
                # The settings of an object are named like those of a function.
                inner = path if key == "config" else f"{path}.{key}".lstrip(".")
                yield from _compare(old.get(key), new.get(key), inner)
            return
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from _compare(before, after, f"{path}.{_name_of(after, number)}")
        return
    if old == new:
        return
    if path.endswith(".values") and isinstance(old, str) and isinstance(new, str):
        yield f"other values of {path.rpartition('.')[0]}"
    else:
        yield f"{path}={_shown(old)}, not {_shown(new)}"


def _name_of(child: Any, number: int) -> str:
    """How an item of a list is called: by the name that it gives itself, or its position."""
    if isinstance(child, dict):
        config = child.get("config")
        name = config.get("name") if isinstance(config, dict) else None
        return str(name or child.get("class_name") or number)
    return str(number)


def _shown(value: Any) -> str:
    if isinstance(value, float):
        # A learning rate of 0.01 is 0.009999999776 in float32.
        return f"{value:.6g}"
    if isinstance(value, dict):
        named = value.get("class_name") or value.get(_ONLY_NAME)
        return str(named or f"{{{', '.join(value)}}}")
    if isinstance(value, list):
        return f"[{', '.join(map(_shown, value))}]"
    return repr(value)
