"""One column of a log as an expression of a standard type: number, time, field value or key."""

from __future__ import annotations

import time as now
from collections.abc import Iterable, Mapping

from calibration_records.logs.query import quoted

_SIGNED = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT")
_UNSIGNED = ("UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT")
WHOLE = _SIGNED + _UNSIGNED
_NUMBERS = (*WHOLE, "HUGEINT", "UHUGEINT", "FLOAT", "DOUBLE", "DECIMAL")
# 2026-03-07, 2026-03-07T12:30, 2026-03-07 12:30:00.5+02:00.
_ISO_TIME = r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?( ?(Z|[+-]\d\d(:?\d\d)?))?)?"
# The year 5138, in seconds. Milliseconds are beyond it.
_LARGEST_TIME = 10**11
_YEAR = 365 * 86400


def _find_kind(column: str, types: Mapping[str, str]) -> str:
    """The type of a column without its arguments, such as DECIMAL."""
    return types[column].split("(")[0]


def number_of(column: str) -> str:
    """A column as a number, or NULL where it holds something else; later checks refuse NULL."""
    return f"try_cast({quoted(column)} AS DOUBLE)"


def field_value(column: str, types: Mapping[str, str]) -> str:
    """A field value, in a type and spelling that do not depend on the source."""
    name = quoted(column)
    kind = _find_kind(column, types)
    if kind in (*WHOLE, "VARCHAR", "BOOLEAN", '"NULL"'):
        return name
    # Sources differ in types; a value must get one spelling, else it would be several values.
    if kind == "FLOAT":
        name, kind = f"{name}::VARCHAR::DOUBLE", "DOUBLE"  # 0.1, and not 0.10000000149
    if kind == "DOUBLE":
        # NaN is a missing value, as in pandas; -0.0 is 0.0.
        return f"CASE WHEN NOT isnan({name}) THEN {name} + 0.0 END"
    return f"{name}::VARCHAR"


def key_of(column: str, types: Mapping[str, str]) -> str:
    """The number that divides rows into folds: a whole number itself, or the hash of a text.

    Whole numbers that a data frame stores as floats, because one is missing, count as whole.
    """
    name = quoted(column)
    kind = _find_kind(column, types)
    # Without its sign bit, any signed number is an unsigned key.
    key, signed = f"hash({name}::VARCHAR)", f"({name}::BIGINT & {2**63 - 1})::UBIGINT"
    if kind in _SIGNED:
        key = signed
    elif kind in (*_UNSIGNED, "HUGEINT"):
        key = f"coalesce(try_cast({name} AS UBIGINT), {key})"
    elif kind in ("FLOAT", "DOUBLE"):
        key = (
            f"CASE WHEN {name} = floor({name}) AND abs({name}) < 9e18 THEN {signed} ELSE {key} END"
        )
    return f"CASE WHEN {name} IS NULL THEN 0::UBIGINT ELSE {key} END"


def time_of(column: str | None, types: Mapping[str, str]) -> str:
    """A time in UTC, as a TIMESTAMP; NULL where it cannot be read."""
    if column is None:
        raise ValueError("Argument `timestamp` must name the column of the times. Received: None.")
    name = quoted(column)
    kind = _find_kind(column, types)
    # Numbers are seconds; larger ones, most likely milliseconds, become NULL, which is refused.
    if kind in _NUMBERS:
        seconds = f"{name}::DOUBLE"
        return (
            f"make_timestamp(CASE WHEN abs({seconds}) <= {_LARGEST_TIME} "
            f"THEN (floor({seconds}) * 1e6)::BIGINT END)"
        )
    # A text must match ISO 8601: DuckDB would also read forms whose day and month are in doubt.
    if kind in ("VARCHAR", '"NULL"'):
        return (
            f"try_cast(CASE WHEN regexp_full_match({name}, '{_ISO_TIME}') THEN {name} END "
            "AS TIMESTAMPTZ)::TIMESTAMP"
        )
    if kind == "TIMESTAMPTZ_NS":  # DuckDB has no cast of these
        return f"({name} AT TIME ZONE 'UTC')::TIMESTAMP"
    if kind == "DATE" or kind.startswith("TIMESTAMP"):
        return f"{name}::TIMESTAMP"
    raise ValueError(
        f"The timestamp column {column!r} must hold times, dates, ISO 8601 strings or seconds "
        f"since 1970. Received: {types[column]}."
    )


def is_odd_time(time: str) -> str:
    """Whether a time is probably misread or a placeholder: before 1971, or years ahead.

    Days and 20260301, read as seconds, are in 1970, and 2026030112 is in 2034.
    """
    return f"epoch({time}) < {_YEAR} OR epoch({time}) > {int(now.time()) + 2 * _YEAR}"


def are_merged(columns: Iterable[str], types: Mapping[str, str]) -> str:
    """Whether a float id is so large that neighbouring ids are equal."""
    most = {"FLOAT": 2**24, "DOUBLE": 2**53}
    limits = {quoted(name): most[types[name]] for name in columns if types[name] in most}
    tests = [f"(isfinite({name}) AND abs({name}) >= {end})" for name, end in limits.items()]
    return " OR ".join(tests) or "false"


def is_time(time: str) -> str:
    """Whether a time can be read, and lies within 3,168 years of 1970."""
    return f"(isfinite({time}) AND abs(epoch({time})) <= {_LARGEST_TIME}) IS TRUE"
