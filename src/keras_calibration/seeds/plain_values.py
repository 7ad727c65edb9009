"""Settings, arrays and functions as JSON values that are the same in every process."""

from __future__ import annotations

import dis
import functools
import hashlib
import inspect
import math
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import keras
import numpy as np

# Longer sequences of numbers and strings are hashed.
_MAX_LENGTH = 32
_OWN = ("keras_calibration", "calibration_records")
_LIBRARIES = ("builtins", "keras", "tensorflow", "jax", "numpy", *_OWN)
# What Keras writes besides the settings: where a class lives, and what `build` will create.
_DROPPED = {"module", "registered_name", "shared_object_id", "build_config", "build_input_shape"}


def hash_array(values: Any) -> str:
    """A hash of the values of an array, also of strings; not of its dtype or memory layout.

    Example:
        >>> hash_array(np.ones((2, 3))) == hash_array(np.ones((3, 2)).T)
        True
    """
    array = np.asarray(values)
    digest = hashlib.blake2b(repr(array.shape).encode(), digest_size=16)
    if array.dtype.kind in "OSU":
        for value in array.flat:
            text = value if isinstance(value, bytes) else str(value).encode()
            # With lengths, so that ("ab", "c") and ("a", "bc") differ.
            digest.update(b"%d:%s" % (len(text), text))
    else:
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def plain(value: Any, seen: tuple[int, ...] = ()) -> Any:
    """A value as JSON: settings as they are, arrays and code as hashes, other objects by class.

    Settings that are `None` are left out: newer versions of Keras add some.

    Args:
        value: Anything.
        seen: Ids of the objects around it, which end a circle.
    """
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        number = float(value)
        return number if math.isfinite(number) else str(number)
    if isinstance(value, bytes):
        return {"values": hash_array(np.frombuffer(value, np.uint8))}
    if isinstance(value, type):
        return {"class_name": value.__name__, **code_of_class(value, seen)}
    if id(value) in seen or len(seen) > 40:
        return "…"
    seen = (*seen, id(value))
    if isinstance(value, Mapping):
        return _plain_mapping(value, seen)
    if isinstance(value, list | tuple):
        return _plain_sequence(value, seen)
    if isinstance(value, set | frozenset):
        return sorted((plain(item, seen) for item in value), key=repr)
    if isinstance(value, keras.Variable):
        return {"class_name": "Variable", "shape": list(value.shape)}
    if isinstance(value, np.ndarray | np.generic) or keras.ops.is_tensor(value):
        return _plain_array(value)
    if callable(value) and not hasattr(value, "get_config"):
        return _plain_function(value, seen)
    return plain_object(value, seen)


def plain_object(value: Any, seen: tuple[int, ...] = ()) -> dict[str, Any]:
    """An object by its class, its `get_config`, and the code of a class of the user."""
    config = None
    if hasattr(value, "get_config"):
        # A class of the user may not have written it.
        try:
            config = plain(value.get_config(), seen)
        except Exception:
            config = None
    # A wrapped loss has only the name of its function in the configuration.
    own = attributes(value, seen, only_code=config is not None)
    name = type(value).__name__
    return {"class_name": name, **_given(config=config), **own, **code_of_class(type(value), seen)}


def attributes(value: Any, seen: tuple[int, ...] = (), only_code: bool = False) -> dict[str, Any]:
    """Numbers, strings and arrays among the attributes of an object; functions of the user too.

    `only_code` leaves out all but the functions, for objects with a configuration.
    """
    found = {}
    ignored = _attributes_of_keras() if isinstance(value, keras.layers.Layer) else ()
    for name, attribute in getattr(value, "__dict__", {}).items():
        if name in ignored or attribute is None or isinstance(attribute, keras.Variable):
            continue
        is_own = not isinstance(attribute, type) and not _is_library(type(attribute))
        if isinstance(attribute, types.FunctionType | functools.partial):
            is_seen = not _is_library(getattr(attribute, "func", attribute))
        elif only_code:
            is_seen = False
        elif name == "name" or (name.startswith("_") and _is_library(type(value))):
            # The state of an object of Keras; its name may be a number.
            is_seen = is_own
        else:
            is_seen = is_own or _is_data(attribute)
        if is_seen:
            found[name] = plain(attribute, seen)
    return {"attributes": dict(sorted(found.items()))} if found else {}


@functools.cache
def _attributes_of_keras() -> frozenset[str]:
    """The attributes that every layer and every compiled model has."""
    model = keras.Model()
    model.compile("sgd", "mse")
    return frozenset({*vars(keras.layers.Layer()), *vars(model)})


def code_of_class(kind: type, seen: tuple[int, ...] = ()) -> dict[str, Any]:
    """A hash of the methods of a class of the user, and of the user's classes above it."""
    methods: dict[str, Any] = {}
    for owner in kind.__mro__:
        if _is_library(owner) or id(owner) in seen:
            continue
        for name, member in sorted(vars(owner).items()):
            function = inspect.unwrap(
                getattr(member, "fget", None) or getattr(member, "__func__", None) or member
            )
            if isinstance(function, types.FunctionType):
                found = _plain_function(function, (*seen, id(owner)))
                methods[f"{owner.__name__}.{name}"] = found
            elif _is_data(function) and not name.startswith("__"):
                methods[f"{owner.__name__}.{name}"] = plain(function, seen)
    return {"methods": methods} if methods else {}


def _plain_mapping(value: Mapping[Any, Any], seen: tuple[int, ...]) -> Any:
    if value.get("class_name") == "__lambda__":
        # Bytecode with the file's name and line numbers; the function itself is looked at.
        return "<lambda>"
    if value.get("class_name") == "__numpy__":
        return _plain_array(np.asarray(value["config"]["value"], value["config"]["dtype"]))
    items = sorted((str(name), item) for name, item in value.items() if item is not None)
    is_keras = "class_name" in value
    return {name: plain(item, seen) for name, item in items if not (is_keras and name in _DROPPED)}


def _plain_sequence(value: Sequence[Any], seen: tuple[int, ...]) -> Any:
    items = [plain(item, seen) for item in value]
    if len(items) > _MAX_LENGTH and not any(isinstance(item, dict | list) for item in items):
        return {"length": len(items), "values": hash_array(np.array(items, object))}
    return items


def _plain_array(value: Any) -> dict[str, Any]:
    try:
        array = keras.ops.convert_to_numpy(value)
    except Exception:
        # A symbolic tensor, or one with no dense values.
        return {"class_name": type(value).__name__}
    return {"dtype": str(array.dtype), "shape": list(array.shape), "values": hash_array(array)}


def _plain_function(value: Callable[..., Any], seen: tuple[int, ...]) -> Any:
    if isinstance(value, functools.partial):
        parts = {"function": value.func, "args": value.args, "keywords": value.keywords}
        return plain(parts, seen)
    if isinstance(value, types.MethodType):
        owner = value.__self__
        return {"method": _plain_function(value.__func__, seen), "of": plain(owner, seen)}
    # What `tf.function` and `functools.wraps` have put around it.
    value = inspect.unwrap(getattr(value, "python_function", value))
    name = getattr(value, "__name__", type(value).__name__)
    if not isinstance(value, types.FunctionType):
        own = attributes(value, seen, only_code=_is_library(type(value)))
        return {"function": name, **own, **code_of_class(type(value), seen)}
    if _is_library(value):
        return name
    values = {name: plain(item, seen) for name, item in _surroundings(value)}
    return {"function": name, "code": _hash_code(value), **_given(reads=values or None)}


def _surroundings(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function of the user reads from outside of it: defaults, closure and globals."""
    for number, default in enumerate(function.__defaults__ or ()):
        yield f"default {number}", default
    yield from sorted((function.__kwdefaults__ or {}).items())
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            content = cell.cell_contents
        except ValueError:  # Not assigned yet.
            continue
        # `super()` closes over the class itself.
        if name != "__class__":
            yield name, content
    for name in sorted(_global_names(function.__code__)):
        content = function.__globals__.get(name)
        if _is_data(content) or (
            isinstance(content, types.FunctionType) and not _is_library(content)
        ):
            yield name, content


def _global_names(code: types.CodeType) -> set[str]:
    names = {i.argval for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL"}
    inner = (_global_names(c) for c in code.co_consts if isinstance(c, types.CodeType))
    return names.union(*inner)


def _hash_code(function: types.FunctionType) -> str:
    """A hash of the bytecode, with the version of Python that it is made for."""
    digest = hashlib.blake2b(digest_size=16)

    def add(code: types.CodeType, doc: str | None) -> None:
        digest.update(code.co_code)
        digest.update(repr((code.co_names, code.co_varnames, code.co_freevars)).encode())
        for number, constant in enumerate(code.co_consts):
            if isinstance(constant, types.CodeType):
                add(constant, None)
            elif isinstance(constant, frozenset):
                digest.update(repr(sorted(constant, key=repr)).encode())
            elif not (number == 0 and doc is not None and constant == doc):
                digest.update(repr(constant).encode())

    add(function.__code__, function.__doc__)
    return f"{sys.version_info.major}.{sys.version_info.minor}:{digest.hexdigest()}"


def _is_data(value: object) -> bool:
    """Whether a value holds nothing but numbers, strings and arrays."""
    if isinstance(value, list | tuple):
        return all(map(_is_data, value))
    if isinstance(value, Mapping):
        return all(map(_is_data, [*value.keys(), *value.values()]))
    if isinstance(value, bool | str | Real | np.ndarray | np.generic):
        return True
    return keras.ops.is_tensor(value)


def _is_library(thing: Any) -> bool:
    """Whether a class or function comes from Python or an installed package."""
    return _is_library_module(getattr(thing, "__module__", None) or "builtins")


@functools.lru_cache(maxsize=4096)
def _is_library_module(module: str) -> bool:
    if module.partition(".")[0] in _LIBRARIES:
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        return module in sys.builtin_module_names
    folders = {sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}
    return any(Path(folder) in Path(file).parents for folder in folders)


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
