"""The rows of a scored log as one SELECT: checked types, and columns of standard names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from keras_calibration.logs.query import field_column, quoted, text
from keras_calibration.logs.scored_log import ScoredLog
from keras_calibration.ops.losses import LARGEST_PROBABILITY, SMALLEST_PROBABILITY, SUM_TOLERANCE

_NUMBERS = (
    *("BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT"),
    *("UINTEGER", "UBIGINT", "UHUGEINT", "FLOAT", "DOUBLE", "DECIMAL"),
)
_WHOLE = tuple(name for name in _NUMBERS if "INT" in name)
# Instead of a type: a column of CSV files, whose texts are cast where they are used.
CSV_TEXT = "CSV"
# 2026-03-07, 2026-03-07T12:30, 2026-03-07 12:30:00.5+02:00.
_ISO_TIME = r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?( ?(Z|[+-]\d\d(:?\d\d)?))?)?"
# A text of fewer digits may be a date (20260307) or a year.
_SECONDS = r"\d{9,}(\.\d*)?"
_NESTED = ("STRUCT", "MAP", "UNION", "LIST")
# The year 5138, in seconds. Milliseconds are beyond it.
_LARGEST_TIME = 10**11


@dataclass(frozen=True)
class Selection:
    """Which rows of a log are summed, and as what.

    Args:
        period: "hour", "day", "week" or "month" where queries ask for the period of a row.
        ends: First second since 1970 to include and to exclude, or None.
        class_number: For K classes, the class whose rows have the label 1.
        class_names: The names of the classes.

    Example:
        >>> Selection("day", ends=(86400, None)).period  # from the second day of 1970 on
        'day'
    """

    period: str | None = None
    ends: tuple[int | None, int | None] = (None, None)
    class_number: int | None = None
    class_names: tuple[str, ...] = ()


def rows_sql(
    log: ScoredLog,
    types: Mapping[str, str],
    selection: Selection,
    row_number: str,
    file_name: str | None,
    where_columns: Mapping[str, str],
) -> str:
    """A SELECT over the table `log` of the columns that a `Query` uses.

    Args:
        log: The log.
        types: Column → its type in DuckDB.
        selection: Which rows, and as what.
        row_number: Column of the numbers of the rows, for a log that names no key.
        file_name: Column of the paths of the files, if there are files.
        where_columns: Column → expression that it stands for in `where`, if not for itself.

    Raises:
        ValueError: If a column is missing or of another type than required.
    """
    prediction, given = _prediction(log, types, selection.class_number)
    weight = "1.0" if log.sample_weight is None else _number(log.sample_weight, types)
    columns = {
        "y": _label(log, types, selection),
        "given": prediction,
        "given_prediction": given,
        "given_label": column_of(log.label),
        "w": weight,
        "given_weight": "1.0" if log.sample_weight is None else column_of(log.sample_weight),
        "k": quoted(row_number) if log.row_key is None else _key(log.row_key, types),
        "valid_time": "true",
        "adds_up": _adds_up(log, types, selection),
        **{field_column(name): _value(name, types) for name in field_columns(log)},
    }
    if file_name is not None:
        columns["f"] = quoted(file_name)
    if log.logit is None:
        least = f"least({LARGEST_PROBABILITY!r}, {prediction})"
        columns["clipped"] = f"greatest({SMALLEST_PROBABILITY!r}, {least})"
    conditions = []
    if selection.period is not None:
        columns |= _period_columns(log, types, selection.period)
        conditions += _period_conditions(_time(log.timestamp, types), selection.ends)
    rows = f"SELECT {_selected(columns)} FROM ({_rows_of_where(log, types, where_columns)})"
    if conditions:
        rows += f" WHERE {' AND '.join(conditions)}"
    return f"SELECT *, {_selected(_derived_columns(log, types))} FROM ({rows})"


def column_of(name: str) -> str:
    """The column that a log names, in the rows that are left by `where`.

    Example:
        >>> column_of("site")
        '"keras_calibration site"'
    """
    return quoted(f"keras_calibration {name}")


def _rows_of_where(log: ScoredLog, columns: Iterable[str], where_columns: Mapping[str, str]) -> str:
    """The rows of the log that `where` leaves, and a second copy of the columns that it names.

    The numbers of the rows are those before `where`.
    """
    copies = {column_of(name): quoted(name) for name in used_columns(log)}
    if taken := [name for name in columns if quoted(name).casefold() in map(str.casefold, copies)]:
        raise ValueError(f"Columns must not have names of this package. Received: {taken}.")
    casts = {quoted(name): expression for name, expression in where_columns.items()}
    replaced = f" REPLACE ({_selected(casts)})" if casts else ""
    rows = f"SELECT *{replaced}, {_selected(copies)} FROM log"
    # The line break ends a comment.
    return f"SELECT * FROM ({rows}) WHERE ({log.where}\n)" if log.where else rows


def _selected(columns: Mapping[str, str]) -> str:
    return ", ".join(f"{expression} AS {name}" for name, expression in columns.items())


def _period_columns(log: ScoredLog, types: Mapping[str, str], period: str) -> dict[str, str]:
    """The period of each row, as seconds since 1970, and whether its time can be read."""
    time = _time(log.timestamp, types)
    return {
        "given_time": column_of(log.timestamp or ""),
        "t": f"epoch(date_trunc('{period}', {time}))::BIGINT",
        "valid_time": f"(isfinite({time}) AND abs(epoch({time})) <= {_LARGEST_TIME}) IS TRUE",
    }


def _period_conditions(time: str, ends: tuple[int | None, int | None]) -> list[str]:
    # A row whose time cannot be read is kept, and refused. In this form, DuckDB skips the parts of
    # files that hold other times.
    return [
        f"({time} {comparison} make_timestamp({end * 1_000_000}::BIGINT) OR {time} IS NULL)"
        for end, comparison in zip(ends, (">=", "<"), strict=True)
        if end is not None
    ]


def _derived_columns(log: ScoredLog, types: Mapping[str, str]) -> dict[str, str]:
    """Logit, probability, log loss, and whether label, prediction and weight are valid."""
    has_whole_labels = types[log.label] in _WHOLE
    if log.logit is None:
        valid = "isfinite(given) AND given >= 0 AND given <= 1 AND adds_up"
        columns = {
            "l": "ln(clipped / (1 - clipped))",
            "p": "given",
            # One logarithm, of 1 - p or of p, where the label cannot be a share.
            "loss": "-ln(abs(1 - y - clipped))"
            if has_whole_labels
            else "-(1 - y) * ln(1 - clipped) - y * ln(clipped)",
        }
    else:
        valid = "isfinite(given)"
        tail = "exp(-abs(given))"
        columns = {
            "l": "given",
            "p": "1 / (1 + exp(-given))",
            "loss": f"(1 - y) * greatest(given, 0) + y * greatest(-given, 0) + {_log1p(tail)}",
        }
    # The statistics of a Parquet file leave NaN out, and DuckDB believes them: `given <= 1` alone
    # would be true of NaN. Whole numbers have none.
    is_number = "" if has_whole_labels else "isfinite(y) AND "
    return {
        **columns,
        "valid_label": f"({is_number}y >= 0 AND y <= 1) IS TRUE",
        "valid_prediction": f"({valid}) IS TRUE",
        "valid_weight": "true" if log.sample_weight is None else "(isfinite(w) AND w >= 0) IS TRUE",
    }


def field_columns(log: ScoredLog) -> list[str]:
    """The columns of all fields and crosses, each once.

    Example:
        >>> field_columns(ScoredLog(fields=["site", ("site", "device")]))
        ['site', 'device']
    """
    named = [(field,) if isinstance(field, str) else field for field in log.fields]
    return list(dict.fromkeys(column for columns in named for column in columns))


def used_columns(log: ScoredLog) -> list[str]:
    """The columns that a log names, each once; without those in `where`.

    Example:
        >>> used_columns(ScoredLog(fields=["site"], row_key="id"))
        ['label', 'probability', 'id', 'site']
    """
    probabilities = [log.probability] if isinstance(log.probability, str) else log.probability
    named = [log.label, *(probabilities if log.logit is None else [log.logit])]
    named += [c for c in (log.sample_weight, log.timestamp, log.row_key) if c is not None]
    return list(dict.fromkeys([*named, *field_columns(log)]))


def check_columns(log: ScoredLog, types: Mapping[str, str], paths: Sequence[str] = ()) -> None:
    """Raises if the log names columns that are not there."""
    if missing := [name for name in used_columns(log) if name not in types]:
        folders = [name for name in missing if any(f"/{name}=" in f"/{path}" for path in paths)]
        advice = (
            f" Names of folders, such as {folders[0]}=…, are not read as columns: pass "
            "duckdb.sql(\"FROM read_parquet('…/**/*.parquet', hive_partitioning = true)\")."
            if folders
            else ""
        )
        raise ValueError(f"The log has no columns {missing}. Received: columns {[*types]}.{advice}")


def _kind(column: str, types: Mapping[str, str]) -> str:
    return types[column].split("(")[0]


def _number(column: str, types: Mapping[str, str]) -> str:
    """A column as a number; NULL where a text of a CSV file is none."""
    name = column_of(column)
    if types[column] == CSV_TEXT:
        return number_of_text(name)
    if _kind(column, types) not in _NUMBERS:
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


def _label(log: ScoredLog, types: Mapping[str, str], selection: Selection) -> str:
    if selection.class_number is None:
        return _number(log.label, types)
    column = column_of(log.label)
    number = column
    if types[log.label] == CSV_TEXT:
        # Unlike for labels 0 and 1, truth values are no numbers.
        is_truth = f"lower({column}) IN ('true', 'false')"
        number = f"CASE WHEN NOT {is_truth} THEN {number_of_text(column)} END"
    names = selection.class_names
    is_number = f"{number} >= 0 AND {number} < {len(names)} AND floor({number}) = {number}"
    is_class = f"({number} = {selection.class_number})::INT::DOUBLE"
    when_number = f"WHEN {is_number} THEN {is_class}"
    is_class = f"({column}::VARCHAR = {text(names[selection.class_number])})::INT::DOUBLE"
    when_name = f"WHEN {column}::VARCHAR IN ({', '.join(map(text, names))}) THEN {is_class}"
    if types[log.label] == CSV_TEXT:
        return f"CASE {when_name} {when_number} END"
    kind = _kind(log.label, types)
    if kind == "BOOLEAN":
        raise ValueError(
            f"Labels must be class numbers or the names of the classes, {[*names]}. "
            f"Received: the column {log.label!r} of truth values. Check the name of the column."
        )
    return f"CASE {when_number if kind in _NUMBERS else when_name} END"


def _prediction(
    log: ScoredLog, types: Mapping[str, str], class_number: int | None
) -> tuple[str, str]:
    """The prediction as a number, and as it is in the log."""
    column = log.probability if log.logit is None else log.logit
    if not isinstance(column, str):
        if class_number is None:
            raise ValueError(
                "Argument `probability` must name one column, of the probability of the label 1. "
                f"Received: {[*column]}. Logs of classes are for `monitor`."
            )
        numbers = [_number(each, types) for each in column]
        return numbers[class_number], column_of(column[class_number])
    if class_number is None or log.logit is not None:
        return _number(column, types), column_of(column)
    entry = f"{_list(column, types)}[{class_number + 1}]"
    return entry, entry


def _adds_up(log: ScoredLog, types: Mapping[str, str], selection: Selection) -> str:
    """Whether a row has a probability for each class, and they add up to 1."""
    if selection.class_number is None:
        return "true"
    if isinstance(log.probability, str):
        given = _list(log.probability, types)
        has_all = f"len({given}) = {len(selection.class_names)}"
        return f"{has_all} AND abs(list_sum({given}) - 1) <= {SUM_TOLERANCE}"
    total = " + ".join(_number(column, types) for column in log.probability)
    return f"abs({total} - 1) <= {SUM_TOLERANCE}"


def _list(column: str, types: Mapping[str, str]) -> str:
    element = types[column].partition("[")[0].split("(")[0]
    if not types[column].endswith("]") or element not in _NUMBERS:
        raise ValueError(
            f"The column {column!r} must hold lists of numbers, one for each class. Received: "
            f"{types[column]}. Name the column of each class, probability=[…]."
        )
    return f"({column_of(column)}::DOUBLE[])"


def _value(column: str, types: Mapping[str, str]) -> str:
    """A field value, in a type and spelling that do not depend on the source."""
    name, kind = column_of(column), _kind(column, types)
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
    return kind in _WHOLE and "HUGE" not in kind


def _key(column: str, types: Mapping[str, str]) -> str:
    """The number that divides rows into folds: of 5, 5.0 and "5" in any source, it is 5."""
    name, kind = column_of(column), _kind(column, types)
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


def _time(column: str | None, types: Mapping[str, str]) -> str:
    """Expression of a time in UTC, as a TIMESTAMP; NULL where it cannot be read."""
    if column is None:
        raise ValueError("Argument `timestamp` must name the column of the times. Received: None.")
    name, kind = column_of(column), _kind(column, types)
    if kind in _NUMBERS and kind != "BOOLEAN":
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
    is_time = f"abs({seconds}) <= {_LARGEST_TIME}"
    return f"make_timestamp(CASE WHEN {is_time} THEN (floor({seconds}) * 1e6)::BIGINT END)"


def time_of_text(name: str) -> str:
    """Expression of the time in UTC that an ISO 8601 text is, or NULL."""
    iso = f"CASE WHEN regexp_full_match({name}, '{_ISO_TIME}') THEN {name} END"
    return f"try_cast({iso} AS TIMESTAMPTZ)::TIMESTAMP"


def _log1p(x: str) -> str:
    """log(1 + x) without loss of digits where x is small (Kahan)."""
    return f"CASE WHEN 1 + {x} = 1 THEN {x} ELSE ln(1 + {x}) * ({x}) / ((1 + {x}) - 1) END"
