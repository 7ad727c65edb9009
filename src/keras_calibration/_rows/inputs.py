"""Columns of data as the inputs of a model: selected by name, converted to its dtype exactly."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Collection, Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from calibration_records._check import known
from calibration_records._columns import (
    by_name,
    column_of,
    exact_ids,
    holds,
    is_table,
    numbers_or_strings,
    refuse_repeated,
    refuse_rows,
)
from keras_calibration._rows.columns import (
    as_csr,
    column_or_tensor,
    is_sparse,
    is_symbolic,
    numbers_in_float32,
)
from keras_calibration._rows.weights import ALL, Counted
from keras_calibration._typing import Inputs, Tensor


def inputs_of(
    x: Any,
    expected: Any,
    ids: Collection[str] = (),
    counted: Counted = ALL,
    numeric: Collection[str] = (),
    apart: Collection[str] = (),
) -> Any:
    """Arrays and tables in the form that a model expects, without columns that it does not read.

    `ids` are the names of inputs that hold ids, `numeric` the names of numeric inputs, whose digits
    float32 must not lose, `apart` those of columns of a table that are something else, such as
    labels. The result leaves out rows that do not count, which may hold anything.

    Example:
        >>> site = keras.Input((), dtype="int64", name="site")
        >>> inputs_of({"site": [3.0, 1.0], "at": [[], []]}, {"site": site})
        {'site': array([3, 1])}
    """
    if is_table(x):
        x, counted = _arrange_table(x, expected, counted, apart)
    if isinstance(expected, Mapping) and len(expected) == 1 and not isinstance(x, Mapping):
        # As in Keras, one input needs no name.
        x = {name: x for name in expected}
    # Match by name if one side has names; the other side then has to provide them.
    if isinstance(x, Mapping) or isinstance(expected, Mapping):
        named = expected if isinstance(expected, Mapping) else input_names(expected)
        what = "The input must be a dictionary with all features of the model"
        if not isinstance(x, Mapping):
            raise ValueError(f"{what}, {sorted(named)}. Received: {type(x).__name__}.")
        known(what, named, x, missing=True)
        return {n: _enter_part(x[n], part, n, ids, counted, numeric) for n, part in named.items()}
    return _enter_part(x, expected, "x", ids, counted, numeric)


def named_inputs(tensors: Inputs) -> Inputs:
    """New symbolic inputs like the inputs of a model; `"inputs"` replaces generated names."""
    inputs = [
        keras.Input(batch_shape=tensor.shape, dtype=tensor.dtype, name=name)
        for name, tensor in zip(layer_names(tensors), keras.tree.flatten(tensors), strict=True)
    ]
    return keras.tree.pack_sequence_as(tensors, inputs)


def layer_names(tensors: Inputs) -> list[str]:
    """The names of symbolic inputs as Keras accepts them: all different, and without a slash."""
    names: list[str] = []
    for name in clean_names(tensors):
        names.append(free_name(name.replace("/", "_") or "inputs", names))
    return names


def free_name(preferred: str, taken: Collection[str]) -> str:
    """A unique name for a layer, with a number appended if it is taken.

    Example:
        >>> free_name("base", ["site"]), free_name("base", ["base", "base_1"])
        ('base', 'base_2')
    """
    numbered = (f"{preferred}_{number}" for number in itertools.count(1))
    return next(name for name in itertools.chain([preferred], numbered) if name not in taken)


def clean_names(tensors: Inputs) -> list[str]:
    """The names of symbolic inputs, flat; generated names are replaced by `"inputs"`.

    Example:
        >>> clean_names(keras.Input((2,)))
        ['inputs']
    """
    names = [tensor.name for tensor in keras.tree.flatten(tensors)]
    if isinstance(tensors, Mapping):
        paths = [list(map(str, path)) for path, _ in keras.tree.flatten_with_path(tensors)]
        names = [path[-1] for path in paths]
        # Positions in two tuples are not unique.
        names = names if len({*names}) == len(names) else ["_".join(path) for path in paths]
    # Keras numbers its own names through the process, so they would differ from run to run.
    made_up = re.compile(r"(keras_tensor|input_layer)(_\d+)?")
    plain = [f"inputs_{number}" for number in range(len(names))] if len(names) > 1 else ["inputs"]
    return [a if made_up.fullmatch(name) else name for name, a in zip(names, plain, strict=True)]


def inputs_by_name(inputs: Inputs, named: Inputs) -> dict[str, Tensor]:
    """Inputs as a dictionary, by their keys or else by the names of the Input tensors."""
    if isinstance(inputs, Mapping):
        return dict(inputs)
    return dict(zip(input_names(named), keras.tree.flatten(inputs), strict=True))


def expected_inputs(inputs: Inputs, expected: Inputs, ids: Collection[str] = ()) -> Inputs:
    """Selects the inputs that a model expects, with the rank and dtype that it expects.

    Other entries of a dictionary are ignored. If the model expects a tensor or a list, entries are
    selected by the names of the Input tensors. As in Keras, a column may have shape (n,) or (n, 1).
    `ids` are the names of inputs that hold ids, which must be exact.

    Example:
        >>> price = keras.Input((1,), name="price")
        >>> x = {"price": ops.zeros((3,)), "row": ops.arange(3)}
        >>> expected_inputs(x, {"price": price})["price"].shape
        TensorShape([3, 1])
        >>> expected_inputs(x, price).shape
        TensorShape([3, 1])
    """
    return structured(inputs_of(by_name(inputs), expected, ids), expected)


def structured(inputs: Inputs, expected: Inputs) -> Inputs:
    """The result of `inputs_of` in the structure and with the ranks that a model expects."""
    symbolic = keras.tree.flatten(expected)
    if isinstance(inputs, Mapping) and isinstance(expected, Mapping):
        # Entries beyond the expected ones pass unchanged.
        more = {name: inputs[name] for name in inputs if name not in expected}
        if more and len(inputs) == len(more) + len(expected):
            return structured({name: inputs[name] for name in expected}, expected) | more
    elif isinstance(inputs, Mapping) and len(inputs) == len(symbolic):
        inputs = keras.tree.pack_sequence_as(expected, list(inputs.values()))
    columns = keras.tree.flatten(inputs)
    if len(columns) != len(symbolic):
        return inputs  # Keras reports the error.
    return keras.tree.pack_sequence_as(expected, list(map(_match_rank, symbolic, columns)))


def _match_rank(expected: keras.KerasTensor, values: Tensor) -> Tensor:
    """A column as (n, 1) or (n,), as the model expects; other shapes are unchanged."""
    # Only columns come in two ranks, (n,) and (n, 1).
    shape = getattr(values, "shape", None)
    columns = (-1, *expected.shape[1:])
    if shape is None or columns not in ((-1,), (-1, 1)):
        return values
    # Once Keras has seen inputs of both ranks, it traces tensors of unknown rank.
    rank = shape.rank if hasattr(shape, "rank") else len(shape)
    is_column = rank in (None, 1) or (rank == 2 and shape[1] == 1)
    if rank == len(expected.shape) or not is_column:
        return values
    return ops.reshape(values, columns) if ops.is_tensor(values) else values.reshape(columns)


def input_names(named: Any) -> dict[str, keras.KerasTensor]:
    """Symbolic inputs by the names of their tensors."""
    return {tensor.name: tensor for tensor in keras.tree.flatten(named)}


def _enter_part(
    x: Any,
    expected: Any,
    name: str,
    ids: Collection[str],
    counted: Counted,
    numeric: Collection[str],
) -> Any:
    """`inputs_of` for a part of the inputs: a column, or a structure of columns."""
    # Walk through data and expected structure together, down to single columns.
    entered = functools.partial(_enter_part, ids=ids, counted=counted, numeric=numeric)
    if isinstance(expected, Mapping):
        columns = by_name(x)
        if not isinstance(columns, Mapping) or any(key not in columns for key in expected):
            return x  # Keras reports the error.
        return {key: entered(columns[key], part, key) for key, part in expected.items()}
    # Keras takes a list of one input as that input, and the reverse.
    is_list = isinstance(x, list | tuple)
    if isinstance(expected, list | tuple):
        if len(expected) == 1 and not is_list:
            return entered(x, expected[0], name)
        if not is_list or len(x) != len(expected):
            return x  # Keras reports the error.
        pairs = enumerate(zip(x, expected, strict=True))
        parts = [entered(part, tensor, f"{name}[{n}]") for n, (part, tensor) in pairs]
        return parts if isinstance(x, list) else tuple(parts)
    if is_list and len(x) == 1 and len(getattr(x[0], "shape", ())):
        return [entered(x[0], expected, name)]
    if is_sparse(x) and counted.numbers is not None:
        return as_csr(x)[counted.of(np.arange(x.shape[0]), repr(name))]
    if x is None or is_sparse(x):
        return x  # an optional input, or one that Keras casts itself
    column = counted.of(x, repr(name))
    if {name, expected.name}.intersection(numeric):
        numbers_in_float32(column, name)
    return entering(column, repr(name), expected, name in ids or expected.name in ids)


def _arrange_table(
    table: Any, expected: Any, counted: Counted, apart: Collection[str]
) -> tuple[Any, Counted]:
    """The columns of a table by name, or as one matrix if that is what the model expects.

    The matrix has only the rows that count, and no columns `apart`. The second result says which
    rows of the first one count.
    """
    columns = by_name(table)
    flat = keras.tree.flatten(expected)
    # A model with one input of k features takes a table as a matrix; a model with one named column
    # takes that column.
    is_one = len(flat) == 1 and not isinstance(expected, Mapping)
    if not is_one or (flat[0].name in columns and tuple(flat[0].shape[1:]) in ((), (1,))):
        return columns, counted
    refuse_repeated("The input must have one column of each name", columns)
    named = ((repr(name), column) for name, column in columns.items() if name not in apart)
    arrays = [column_of(counted.of(column, name), name) for name, column in named]
    return np.stack(arrays, axis=1), ALL


def entering(values: Any, name: str, expected: keras.KerasTensor, is_id: bool = False) -> Tensor:
    """A column in the dtype of the model's input; raises if a value would change.

    Like Keras, the function rounds numbers that are not ids. A float input, even in float64, takes
    ids only up to the limit of float32, because Keras passes floats on in float32.

    Example:
        >>> site = keras.Input((), dtype="int32", name="site")
        >>> entering([2.0, 7.0], "'site'", site)
        array([2, 7], dtype=int32)
    """
    dtype = keras.backend.standardize_dtype(expected.dtype)
    # A tensor of the right dtype passes unread; reading it would copy it from a GPU.
    is_same = ops.is_tensor(values) and keras.backend.standardize_dtype(values.dtype) == dtype
    if is_same and not (is_id and "float" in dtype):
        return values
    column = column_or_tensor(values, name)
    if is_symbolic(column):
        return _assert_exact(column, name, dtype, is_id)
    array = column if isinstance(column, np.ndarray) else np.asarray(column)
    # Here, because Keras' error does not name the input.
    sizes = list(zip(array.shape, expected.shape, strict=False))[1:]
    if array.ndim == len(expected.shape) and any(
        fixed not in (None, size) for size, fixed in sizes
    ):
        raise ValueError(
            f"Input {name} of the model must have shape {expected.shape}. Received: shape "
            f"{array.shape}."
        )
    # A column of strings without any value arrives as floats, all NaN.
    if array.dtype.kind == "f" and dtype == "string" and np.isnan(array).all():
        missing = np.full(array.shape, None, object)
        column = array = numbers_or_strings(missing, name, as_strings=True)
    is_text = array.dtype.kind in "OSU"
    if is_text != (dtype == "string"):
        kind = "strings" if dtype == "string" else f"numbers ({dtype})"
        raise ValueError(
            f"Input {name} of the model must hold {kind}. Received: a column of "
            f"{'strings' if is_text else array.dtype}."
        )
    if is_text:
        return column
    if is_id or "int" in dtype:
        array = exact_ids(array, name, f"integers ({dtype})" if "int" in dtype else "ids")
        # Ids must survive the dtype exactly: beyond this range, two ids would become one.
        low, high = _find_exact_range(dtype)
        refuse_rows(
            ((array < low) | (array > high)).reshape(-1),
            array.reshape(-1),
            f"Input {name} of the model must hold integers from {low} to {high}: Keras rounds "
            f"others in {dtype}.",
            f'Declare it as keras.Input((), dtype="int64", name={name}), or renumber the ids.',
        )
    if dtype == "bool" or array.dtype.name == dtype:
        return array
    with np.errstate(over="ignore"):
        # NumPy has no bfloat16; Keras rounds to it.
        return array.astype("float32" if dtype == "bfloat16" else dtype)


def _assert_exact(values: Tensor, name: str, dtype: str, is_id: bool) -> Tensor:
    """A tensor of a graph that raises when it is computed if a value would change."""
    source = keras.backend.standardize_dtype(getattr(values, "dtype", "string"))
    is_read = source == "string" or isinstance(values, keras.KerasTensor)
    if is_read or keras.backend.backend() != "tensorflow" or not (is_id or "int" in dtype):
        return values  # only TensorFlow can raise in a graph
    import tensorflow as tf

    low, high = _find_exact_range(dtype)
    # A float at the limit may be a rounded id, so the limit itself is out.
    if "float" in source:
        low = max(low, 1 - holds(source))
        high = min(high, holds(source) - 1)
    # In a graph, only an assertion can refuse. In float64, fractions and NaN of any source show.
    wide = tf.cast(values, tf.float64)
    is_exact = (wide == tf.floor(wide)) & (wide >= low) & (wide <= high)
    message = (
        f"The input {name} of the model must hold whole numbers from {low} to {high}, without "
        f"missing values, because {source} or {dtype} holds no others exactly. Received:"
    )
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(is_exact), [message, values])]):
        return tf.identity(values)


def _find_exact_range(dtype: str) -> tuple[int, int]:
    """The range of whole numbers that an input holds exactly; Keras passes floats in float32."""
    if "float" in dtype:
        most = min(holds(dtype), holds("float32"))
        return -most, most
    # By default, JAX computes in int32.
    limits = np.iinfo(keras.backend.standardize_dtype(ops.zeros((0,), dtype).dtype))
    return int(limits.min), int(limits.max)
