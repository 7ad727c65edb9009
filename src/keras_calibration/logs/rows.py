"""The rows of a scored log as one SELECT: checked types, and columns of standard names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from keras_calibration.logs.query import field_column, quoted, text
from keras_calibration.logs.scored_log import ScoredLog
from keras_calibration.ops.losses import LARGEST_PROBABILITY, SMALLEST_PROBABILITY, SUM_TOLERANCE

_NUMBERS = (
    *("BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT"),
    *("UINTEGER", "UBIGINT", "UHUGEINT", "FLOAT", "DOUBLE", "DECIMAL"),
)
_WHOLE = tuple(name for name in _NUMBERS if "INT" in name)
# In seconds: the year 5138. Milliseconds are beyond it.
_LARGEST_TIME = 10**11


def rows_sql(
    log: ScoredLog,
    types: Mapping[str, str],
    row_number: str,
    period: str | None = None,
    ends: tuple[int | None, int | None] = (None, None),
    class_number: int | None = None,
    class_names: Sequence[str] = (),
) -> str:
    """A SELECT over the table `log` of the columns that a `Query` uses.

    Args:
        log: The log.
        types: Column → its type in DuckDB.
        row_number: Expression of the number of a row, where the log names no key.
        period: "hour", "day", "week" or "month": the period of each row is computed too.
        ends: First second since 1970 to include and to exclude.
        class_number: For K classes, the class whose rows have the label 1.
        class_names: Their names, where the labels are names.

    Raises:
        ValueError: If a column is missing or of another type than required.
    """
    prediction = _prediction(log, types, class_number)
    columns = {
        "y": _label(log, types, class_number, class_names),
        "given": prediction,
        "given_label": quoted(log.label),
        "w": "1.0" if log.sample_weight is None else _number(log.sample_weight, types),
        "k": row_number if log.row_key is None else _key(log.row_key, types),
        "valid_time": "true",
        "adds_up": "true" if class_number is None else _adds_up(log, types, len(class_names)),
        **{field_column(name): _value(name, types) for name in field_columns(log)},
    }
    if log.logit is None:
        least = f"least({LARGEST_PROBABILITY!r}, {prediction})"
        columns["clipped"] = f"greatest({SMALLEST_PROBABILITY!r}, {least})"
    conditions = [f"({log.where})"] if log.where else []
    if period is not None:
        columns |= _period_columns(log, types, period)
        conditions += _period_conditions(_time(log.timestamp, types), ends)
    rows = f"SELECT {_selected(columns)} FROM log"
    if conditions:
        rows += f" WHERE {' AND '.join(conditions)}"
    return f"SELECT *, {_selected(_derived_columns(log, types))} FROM ({rows})"


def _selected(columns: Mapping[str, str]) -> str:
    return ", ".join(f"{expression} AS {name}" for name, expression in columns.items())


def _period_columns(log: ScoredLog, types: Mapping[str, str], period: str) -> dict[str, str]:
    """The period of each row, as seconds since 1970, and whether its time can be read."""
    time = _time(log.timestamp, types)
    return {
        "given_time": quoted(log.timestamp or ""),
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


def check_columns(log: ScoredLog, types: Mapping[str, str]) -> None:
    """Raises if the log names columns that are not there."""
    if missing := [name for name in used_columns(log) if name not in types]:
        raise ValueError(f"The log has no columns {missing}. Received: columns {[*types]}.")


def _number(column: str, types: Mapping[str, str]) -> str:
    if types[column].split("(")[0] not in _NUMBERS:
        raise ValueError(
            f"The column {column!r} must hold numbers. Received: {types[column]}. Check the name "
            "of the column."
        )
    return f"{quoted(column)}::DOUBLE"


def _label(
    log: ScoredLog,
    types: Mapping[str, str],
    class_number: int | None,
    class_names: Sequence[str],
) -> str:
    if class_number is None:
        return _number(log.label, types)
    column = quoted(log.label)
    if types[log.label].split("(")[0] in _NUMBERS:
        count = len(class_names)
        is_class = f"{column} >= 0 AND {column} < {count} AND floor({column}) = {column}"
        return f"CASE WHEN {is_class} THEN ({column} = {class_number})::INT::DOUBLE END"
    names = ", ".join(map(text, class_names))
    is_class = f"{column}::VARCHAR IN ({names})"
    of_class = f"{column}::VARCHAR = {text(class_names[class_number])}"
    return f"CASE WHEN {is_class} THEN ({of_class})::INT::DOUBLE END"


def _prediction(log: ScoredLog, types: Mapping[str, str], class_number: int | None) -> str:
    if log.logit is not None:
        return _number(log.logit, types)
    if not isinstance(log.probability, str):
        if class_number is None:
            raise ValueError(
                "Argument `probability` must name one column, of the probability of the label 1. "
                f"Received: {[*log.probability]}. Logs of classes are for `monitor`."
            )
        return [_number(column, types) for column in log.probability][class_number]
    if class_number is None:
        return _number(log.probability, types)
    return f"{_list(log.probability, types)}[{class_number + 1}]"


def _adds_up(log: ScoredLog, types: Mapping[str, str], num_classes: int) -> str:
    """Whether a row has a probability for each class, and they add up to 1."""
    if isinstance(log.probability, str):
        given = _list(log.probability, types)
        return f"len({given}) = {num_classes} AND abs(list_sum({given}) - 1) <= {SUM_TOLERANCE}"
    total = " + ".join(_number(column, types) for column in log.probability)
    return f"abs({total} - 1) <= {SUM_TOLERANCE}"


def _list(column: str, types: Mapping[str, str]) -> str:
    element = types[column].partition("[")[0].split("(")[0]
    if not types[column].endswith("]") or element not in _NUMBERS:
        raise ValueError(
            f"The column {column!r} must hold lists of numbers, one for each class. Received: "
            f"{types[column]}. Name the column of each class, probability=[…]."
        )
    return f"({quoted(column)}::DOUBLE[])"


def _value(column: str, types: Mapping[str, str]) -> str:
    # The codes of enumerations differ between sources; their texts do not.
    return f"{quoted(column)}::VARCHAR" if types[column].startswith("ENUM") else quoted(column)


def _key(column: str, types: Mapping[str, str]) -> str:
    name = quoted(column)
    if types[column] in _WHOLE and "HUGE" not in types[column]:
        unsigned = name if types[column].startswith("U") else f"({name}::BIGINT & {2**63 - 1})"
        return f"coalesce({unsigned}::UBIGINT, 0::UBIGINT)"
    return f"hash({name})"


def _time(column: str | None, types: Mapping[str, str]) -> str:
    """Expression of a time in UTC, as a TIMESTAMP; NULL where it cannot be read."""
    if column is None:
        raise ValueError("Argument `timestamp` must name the column of the times. Received: None.")
    name, kind = quoted(column), types[column].split("(")[0]
    if kind in _NUMBERS and kind != "BOOLEAN":
        seconds = f"{name}::DOUBLE"
        is_time = f"abs({seconds}) <= {_LARGEST_TIME}"
        return f"make_timestamp(CASE WHEN {is_time} THEN (floor({seconds}) * 1e6)::BIGINT END)"
    if kind == "VARCHAR":
        return f"try_cast({name} AS TIMESTAMPTZ)::TIMESTAMP"
    if kind == "DATE" or kind.startswith("TIMESTAMP"):
        return f"{name}::TIMESTAMP"
    raise ValueError(
        f"The timestamp column {column!r} must hold times, dates, ISO 8601 strings or seconds "
        f"since 1970. Received: {types[column]}."
    )


def _log1p(x: str) -> str:
    """log(1 + x) without loss of digits where x is small (Kahan)."""
    return f"CASE WHEN 1 + {x} = 1 THEN {x} ELSE ln(1 + {x}) * ({x}) / ((1 + {x}) - 1) END"
