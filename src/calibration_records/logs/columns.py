"""One column of a log as an expression of a standard type: number, time, field value or key."""

from __future__ import annotations

from collections.abc import Mapping

from calibration_records.logs.query import quoted

NUMBERS = (
    *("BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT"),
    *("UINTEGER", "UBIGINT", "UHUGEINT", "FLOAT", "DOUBLE", "DECIMAL"),
)
WHOLE = tuple(name for name in NUMBERS if "INT" in name)
# Instead of a type: a column of CSV files, whose texts are cast where they are used.
CSV_TEXT = "CSV"
# 2026-03-07, 2026-03-07T12:30, 2026-03-07 12:30:00.5+02:00.
_ISO_TIME = r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?( ?(Z|[+-]\d\d(:?\d\d)?))?)?"
# A text of fewer digits may be a date (20260307) or a year.
_SECONDS = r"\d{9,}(\.\d*)?"
_NESTED = ("STRUCT", "MAP", "UNION", "LIST")
# The year 5138, in seconds. Milliseconds are beyond it.
LARGEST_TIME = 10**11


def column_of(name: str) -> str:
    """The column that a log names, in the rows that are left by `where`.

    Example:
        >>> column_of("site")
        '"keras_calibration site"'
    """
    return quoted(f"keras_calibration {name}")


def kind_of(column: str, types: Mapping[str, str]) -> str:
    """The type of a column without its arguments, such as DECIMAL.

    Example:
        >>> kind_of("price", {"price": "DECIMAL(9,2)"})
        'DECIMAL'
    """
    return types[column].split("(")[0]


def number_of(column: str, types: Mapping[str, str]) -> str:
    """A column as a number; NULL where a text of a CSV file is none."""
    name = column_of(column)
    if types[column] == CSV_TEXT:
        return number_of_text(name)
    if kind_of(column, types) not in NUMBERS:
        raise ValueError(
            f"The column {column!r} must hold numbers. Received: {types[column]}. Check the name "
            "of the column."
        )
    return f"{name}::DOUBLE"


def number_of_text(name: str) -> str:
    """Expression of the number that a text is, or NULL; of true and false, 1 and 0."""
    # DuckDB would take 1_000 too.
    number = f"try_cast(CASE WHEN NOT contains({name}, '_') THEN {name} END AS DOUBLE)"
    return f"coalesce({number}, CASE lower({name}) WHEN 'true' THEN 1.0 WHEN 'false' THEN 0.0 END)"


def csv_casts(name: str) -> list[str]:
    """What the texts of a column may be: truth values, whole numbers, numbers, times, in order."""
    truth = f"CASE lower({name}) WHEN 'true' THEN true WHEN 'false' THEN false END"
    whole = f"CASE WHEN regexp_full_match({name}, '[+-]?[0-9]+') THEN {name} END"
    return [truth, f"try_cast({whole} AS BIGINT)", number_of_text(name), time_of_text(name)]


def list_of(column: str, types: Mapping[str, str]) -> str:
    """A column of lists of numbers."""
    element = types[column].partition("[")[0].split("(")[0]
    if not types[column].endswith("]") or element not in NUMBERS:
        raise ValueError(
            f"The column {column!r} must hold lists of numbers, one for each class. Received: "
            f"{types[column]}. Name the column of each class, probability=[…]."
        )
    return f"({column_of(column)}::DOUBLE[])"


def field_value(column: str, types: Mapping[str, str]) -> str:
    """A field value, in a type and spelling that do not depend on the source."""
    name, kind = column_of(column), kind_of(column, types)
    if types[column].endswith("]") or kind in _NESTED:
        raise ValueError(
            f"The field {column!r} must hold numbers, texts, dates or times. Received: "
            f"{types[column]}."
        )
    if kind in ("VARCHAR", "BOOLEAN", '"NULL"', CSV_TEXT) or _is_whole(kind):
        return name
    if kind == "FLOAT":
        name, kind = f"{name}::VARCHAR::DOUBLE", "DOUBLE"  # 0.1, and not 0.10000000149
    if kind == "DOUBLE":
        # NaN is a missing value, as pandas has it; -0.0 is 0.0.
        return f"CASE WHEN NOT isnan({name}) THEN {name} + 0.0 END"
    return _spelling(name, kind)


def _spelling(name: str, kind: str) -> str:
    """A value as text. Times of all units are written alike, those with a zone in UTC."""
    has_zone = kind in ("TIMESTAMP WITH TIME ZONE", "TIMESTAMPTZ", "TIMESTAMPTZ_NS")
    return f"({name}::VARCHAR || ':00')" if has_zone else f"{name}::VARCHAR"


def _is_whole(kind: str) -> bool:
    return kind in WHOLE and "HUGE" not in kind


def key_of(column: str, types: Mapping[str, str]) -> str:
    """The number that divides rows into folds: of 5, 5.0 and "5" in any source, it is 5."""
    name, kind = column_of(column), kind_of(column, types)
    if _is_whole(kind):
        unsigned = name if kind.startswith("U") else f"({name}::BIGINT & {2**63 - 1})"
        return f"coalesce({unsigned}::UBIGINT, 0::UBIGINT)"
    spelled = _spelling(name, kind)
    if kind == "FLOAT":
        spelled = f"{name}::DOUBLE::VARCHAR"
    digits = f"regexp_extract({spelled}, '^([+-]?[0-9]{{1,20}})([.]0*)?$', 1)"
    number = f"try_cast({digits} AS HUGEINT)"
    return (
        f"CASE WHEN {name} IS NULL THEN 0::UBIGINT "
        f"WHEN {number} BETWEEN {-(2**63)} AND {2**63 - 1} "
        f"THEN ({number}::BIGINT & {2**63 - 1})::UBIGINT "
        f"WHEN {number} BETWEEN 0 AND {2**64 - 1} THEN {number}::UBIGINT "
        f"ELSE hash({spelled}) END"
    )


def time_of(column: str | None, types: Mapping[str, str]) -> str:
    """Expression of a time in UTC, as a TIMESTAMP; NULL where it cannot be read."""
    if column is None:
        raise ValueError("Argument `timestamp` must name the column of the times. Received: None.")
    name, kind = column_of(column), kind_of(column, types)
    if kind in NUMBERS and kind != "BOOLEAN":
        return _time_of_seconds(f"{name}::DOUBLE")
    if kind == "VARCHAR":
        return time_of_text(name)
    if kind == CSV_TEXT:
        is_number = f"regexp_full_match({name}, '{_SECONDS}')"
        seconds = f"CASE WHEN {is_number} THEN try_cast({name} AS DOUBLE) END"
        return f"coalesce({time_of_text(name)}, {_time_of_seconds(seconds)})"
    if kind == "TIMESTAMPTZ_NS":  # DuckDB has no cast of these
        return f"({name} AT TIME ZONE 'UTC')::TIMESTAMP"
    if kind == "DATE" or kind.startswith("TIMESTAMP"):
        return f"{name}::TIMESTAMP"
    raise ValueError(
        f"The timestamp column {column!r} must hold times, dates, ISO 8601 strings or seconds "
        f"since 1970. Received: {types[column]}."
    )


def _time_of_seconds(seconds: str) -> str:
    is_time = f"abs({seconds}) <= {LARGEST_TIME}"
    return f"make_timestamp(CASE WHEN {is_time} THEN (floor({seconds}) * 1e6)::BIGINT END)"


def time_of_text(name: str) -> str:
    """Expression of the time in UTC that an ISO 8601 text is, or NULL."""
    iso = f"CASE WHEN regexp_full_match({name}, '{_ISO_TIME}') THEN {name} END"
    return f"try_cast({iso} AS TIMESTAMPTZ)::TIMESTAMP"
