"""What a pipeline trains, as JSON: two trainings with the same description give the same runs."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from keras_calibration._keras import compile_arguments, flatten_layers
from keras_calibration.seeds.plain_values import (
    attributes,
    code_of_class,
    hash_array,
    plain,
    plain_object,
)

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
# In one line of an error.
_MAX_SHOWN = 4


def describe_model(model: keras.Model) -> dict[str, Any]:
    """The architecture of a new compiled model, its optimizer, its losses and metrics.

    Generated names are numbered anew. Not seen: weights, and objects in the layers of a user that
    are neither numbers, strings, arrays nor functions.
    """
    description = {
        "model": _settings(model),
        "layers": [more for layer in flatten_layers(model) if (more := _more_of_layer(layer))],
        "optimizer": plain_object(model.optimizer),
        "compile": plain(
            {k: v for k, v in compile_arguments(model).items() if k not in (*_SPEED, "optimizer")}
        ),
    }
    renamed: dict[str, Any] = _rename(description, _generated_names(description))
    return renamed


def describe_rows(rows: Sequence[Any] | None) -> dict[str, Any] | None:
    """Number of rows, dtype and a hash of each array."""
    if rows is None:
        return None
    parts = zip(("x", "y", "sample_weight"), rows, strict=False)
    return {name: _describe_arrays(part) for name, part in parts}


def describe_callbacks(callbacks: Sequence[keras.callbacks.Callback]) -> list[dict[str, Any]]:
    """The classes of callbacks, and the numbers and functions among their arguments.

    Other attributes tell of the run, such as folders and what a callback remembers. Loggers of
    Keras are left out.
    """
    return [_describe_callback(c) for c in callbacks if type(c) not in _OBSERVERS]


def weights_norm(model: keras.Model) -> float | None:
    """The Euclidean norm of all weights, or `None` if there are none yet."""
    weights = [np.asarray(weight, np.float64) for weight in model.get_weights() if weight.size]
    norm = math.sqrt(sum(float(np.vdot(weight, weight)) for weight in weights))
    return norm if weights and math.isfinite(norm) else None


def differences(old: Any, new: Any) -> list[str]:
    """What differs in two descriptions, for example "optimizer.learning_rate=0.01, not 0.001".

    The code of functions is compared within one version of Python only.

    Example:
        >>> differences({"epochs": 2, "batch_size": 32}, {"epochs": 3, "batch_size": 32})
        ['epochs=2, not 3']
    """
    found = list(_compare(old, new, ""))
    if len(found) > _MAX_SHOWN:
        found[_MAX_SHOWN:] = [f"{len(found) - _MAX_SHOWN} more"]
    return found


def _settings(model: keras.Model) -> dict[str, Any]:
    described = plain_object(model)
    if "layers" not in described.get("config", {}):
        # A class of the user, whose configuration says little of its layers.
        described["layers"] = [plain_object(layer) for layer in flatten_layers(model)[1:]]
    return described


def _more_of_layer(layer: keras.layers.Layer) -> dict[str, Any]:
    """What a layer computes with besides its configuration: functions, arrays, vocabularies."""
    code = code_of_class(type(layer))
    more = attributes(layer).get("attributes", {})
    if not code:
        # Numbers and strings of a layer of Keras are in its configuration, or follow from it.
        more = {k: v for k, v in more.items() if isinstance(v, dict) and not k.startswith("_")}
    if hasattr(layer, "get_vocabulary"):
        more["vocabulary"] = plain(list(layer.get_vocabulary()))
    if not more and not code:
        return {}
    class_name = type(layer).__name__
    return {"class_name": class_name, "config": {"name": layer.name}, **more, **code}


def _describe_arrays(part: Any) -> Any:
    if isinstance(part, Mapping):
        return {str(name): _describe_arrays(part[name]) for name in sorted(part, key=str)}
    if isinstance(part, list | tuple):
        return [_describe_arrays(array) for array in part]
    kind = "string" if part.dtype.kind in "OSU" else str(part.dtype)
    return {"rows": len(part), "dtype": kind, "values": hash_array(part)}


def _describe_callback(callback: keras.callbacks.Callback) -> dict[str, Any]:
    settings = {}
    for name in inspect.signature(type(callback).__init__).parameters:
        value = vars(callback).get(name, vars(callback).get(f"_{name}"))
        is_setting = isinstance(value, int | float | np.number) and name not in ("verbose", "seed")
        if is_setting or name in ("monitor", "mode") or inspect.isroutine(value):
            settings[name] = plain(value)
    class_name = type(callback).__name__
    return {"class_name": class_name, **plain(settings), **code_of_class(type(callback))}


def _generated_names(description: dict[str, Any]) -> dict[str, str]:
    """Names that Keras has numbered, as they are numbered in a process without other models."""
    counts: dict[str, int] = {}
    names: dict[str, str] = {}

    def visit(node: Any) -> None:
        if isinstance(node, dict):
            # The config of a function is its name.
            config = node.get("config") if "class_name" in node else None
            name = config.get("name") if isinstance(config, dict) else None
            if isinstance(name, str) and name not in names:
                base = _snake_case(node["class_name"])
                if re.fullmatch(rf"{re.escape(base)}(_\d+)?", name):
                    number = counts[base] = counts.get(base, -1) + 1
                    names[name] = f"{base}_{number}" if number else base
        for child in node.values() if isinstance(node, dict) else node:
            if isinstance(child, dict | list):
                visit(child)

    visit(description)
    return names


def _snake_case(name: str) -> str:
    name = re.sub(r"\W+", "", name)
    name = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub("([a-z])([A-Z])", r"\1_\2", name).lower()


def _rename(node: Any, names: Mapping[str, str]) -> Any:
    if isinstance(node, dict):
        return {names.get(key, key): _rename(value, names) for key, value in node.items()}
    if isinstance(node, list):
        return [_rename(value, names) for value in node]
    return names.get(node, node) if isinstance(node, str) else node


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
    kind = path.rpartition(".")[2]
    if old == new or (kind == "code" and old and new and not _same_python(old, new)):
        return
    if kind in ("code", "values") and isinstance(old, str) and isinstance(new, str):
        yield f"other {kind} of {path.rpartition('.')[0]}"
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
        return str(value.get("class_name") or value.get("function") or f"{{{', '.join(value)}}}")
    if isinstance(value, list):
        return f"[{', '.join(map(_shown, value))}]"
    return repr(value)


def _same_python(before: str, after: str) -> bool:
    return before.partition(":")[0] == after.partition(":")[0]
