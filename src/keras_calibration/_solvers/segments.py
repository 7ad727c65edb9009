"""Segments of rows: the values of a column, the ranges of a numeric one, and their combinations."""

from __future__ import annotations

import itertools
import math
import numbers
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibration_records._columns import is_missing

# Ranges of a numeric column.
_NUM_RANGES = 4
_TEXT = "text"
# How bytes that are no UTF-8 are read: b"\xff" as "\\xff".
_UNREADABLE = "backslashreplace"


@dataclass(frozen=True)
class SegmentColumn:
    """A column cut into segments.

    Args:
        ids: Segment of each row, int64, shape `(n,)`.
        names: Name of each segment, such as "device = phone" or "age ≤ 30".
    """

    ids: np.ndarray
    names: Sequence[str]


def value_segments(
    column: str, values: np.ndarray, min_rows: int, counts: np.ndarray
) -> SegmentColumn:
    """One segment for each value; values with fewer than `min_rows` rows share one."""
    values_names, ids = distinct_values(values)
    # Common values keep their order and get the first numbers; rare ones share the last.
    is_rare = np.bincount(ids, counts, len(values_names)) < min_rows
    names = [
        f"{column} = {name or repr(name)}" for name in itertools.compress(values_names, ~is_rare)
    ]
    if is_rare.any():
        names.append(f"{column} = other values")
    new_ids = np.where(is_rare, len(names) - 1, np.cumsum(~is_rare) - 1)
    return SegmentColumn(new_ids[ids], names)


def range_segments(column: str, values: np.ndarray, counts: np.ndarray) -> SegmentColumn:
    """Ranges between quantiles, or single values if there are no more of them than ranges.

    A range includes its upper end. Missing values (NaN) are a segment of their own.
    """
    values = np.asarray(values, np.float64)
    missing = np.isnan(values)
    present = values[~missing]
    distinct = np.unique(present[:100])  # enough to see that a column is continuous
    distinct = distinct if len(distinct) > _NUM_RANGES else np.unique(present)
    if len(distinct) <= _NUM_RANGES:
        ids = np.searchsorted(distinct, values)
        names = [f"{column} = {value:g}" for value in distinct]
    else:
        counts = counts[~missing]
        # The quartiles of `np.quantile`, a row with a count repeated: interpolate between the
        # values of the rows before and after each quarter.
        places = (counts.sum() - 1) * np.arange(1, _NUM_RANGES) / _NUM_RANGES
        levels = (np.stack([np.floor(places), np.ceil(places)]) + 0.5) / counts.sum()
        low, high = np.quantile(present, levels, method="inverted_cdf", weights=counts)
        with np.errstate(invalid="ignore"):
            edges = np.unique(low + (high - low) * (places % 1))
        # No row lies above the largest value, so it is no edge. A quantile between infinite values
        # is NaN, which this comparison drops too.
        edges = edges[edges < present.max()]
        ids = np.searchsorted(edges, values, side="left")
        names = [f"{column} ≤ {edges[0]:g}"] if len(edges) else [f"{column} not missing"]
        names += [f"{low:g} < {column} ≤ {high:g}" for low, high in itertools.pairwise(edges)]
        names += [f"{column} > {edges[-1]:g}"] if len(edges) else []
    if missing.any():
        ids[missing] = len(names)
        names.append(f"{column} missing")
    return SegmentColumn(ids.astype(np.int64), names)


def combinations(
    columns: Sequence[SegmentColumn], max_depth: int
) -> Iterator[tuple[tuple[SegmentColumn, ...], np.ndarray]]:
    """Combinations of one to `max_depth` columns, with the combined segment of each row."""
    for depth in range(1, max_depth + 1):
        for chosen in itertools.combinations(columns, depth):
            ids = chosen[0].ids
            for number, column in enumerate(chosen[1:], 1):
                if number > 1:  # renumber: products of many columns would overflow
                    ids = np.unique(ids, return_inverse=True)[1].reshape(-1)
                ids = ids * len(column.names) + column.ids
            yield chosen, ids


def distinct_values(values: np.ndarray) -> tuple[list[str], np.ndarray]:
    """Names of the distinct values of a column, sorted, and the number of each row's value.

    Missing values of all kinds are one value, "missing". Python objects that differ but print
    alike, such as 1 and "1", stay different: the name of the text has quotes.

    Example:
        >>> distinct_values(np.array([1, "1", None, 1.0], object))
        (['1', "'1'", 'missing'], array([0, 1, 2, 0]))
    """
    if values.dtype.kind != "O":
        texts = np.char.decode(values, "utf-8", _UNREADABLE) if values.dtype.kind == "S" else values
        distinct, ids = np.unique(texts, return_inverse=True)
        # NaN and NaT differ from themselves.
        names = ["missing" if value != value else str(value) for value in distinct]
        return names, ids.reshape(-1)
    # Objects of mixed types cannot be sorted, but their keys, pairs of text, can.
    keys = [_identify_value(value) for value in values.reshape(-1).tolist()]
    ordered = sorted(set(keys))
    number = {key: place for place, key in enumerate(ordered)}
    times = Counter(text for text, _ in ordered)
    names = [repr(text) if kind == _TEXT and times[text] > 1 else text for text, kind in ordered]
    return names, np.array([number[key] for key in keys], np.int64)


def _identify_value(value: Any) -> tuple[str, str]:
    """How a value is named, and of what kind it is: equal for equal values only."""
    if isinstance(value, bytes):
        return value.decode("utf-8", _UNREADABLE), _TEXT
    if isinstance(value, str):
        return str(value), _TEXT
    if is_missing(value):
        return "missing", "missing"
    if isinstance(value, numbers.Real) and not isinstance(value, bool | np.bool_):
        is_whole = math.isfinite(value) and value == math.floor(value)
        return str(math.floor(value) if is_whole else value), "number"
    return str(value), type(value).__name__
