"""The rows of a scored log as one SELECT: checked types, and columns of standard names."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from calibration_records._limits import SMALLEST_PROBABILITY, SUM_TOLERANCE
from calibration_records.logs.columns import (
    CSV_TEXT,
    NUMBERS,
    WHOLE,
    column_of,
    field_value,
    key_of,
    kind_of,
    list_of,
    number_of,
    number_of_text,
    time_of,
)
from calibration_records.logs.late_labels.late_sql import (
    is_time,
    label_columns,
    labels_so_far,
    observed_condition,
    observed_rows,
    weighted_rows,
)
from calibration_records.logs.query import field_column, quoted, text
from calibration_records.logs.scored_log import ScoredLog


@dataclass(frozen=True)
class Selection:
    """Which rows of a log are summed, and as what.

    Args:
        period: "hour", "day", "week", "month" or "year" where queries ask for the period of a row.
        ends: First second since 1970 to include and to exclude, or None.
        class_number: For K classes, the class whose rows have the label 1.
        class_names: The names of the classes.
        purpose: What sums of rows are for whose labels come late: "score" and "fit" weigh them as
            `LabelDelay.weigh` does; "observed" compares the labels so far with predictions of them;
            "delays" has ages and delays alone; None has neither, but all rows.

    Example:
        >>> Selection("day", ends=(86400, None)).period  # from the second day of 1970 on
        'day'
    """

    period: str | None = None
    ends: tuple[int | None, int | None] = (None, None)
    class_number: int | None = None
    class_names: tuple[str, ...] = ()
    purpose: str | None = "score"


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
    weight = "1.0" if log.sample_weight is None else number_of(log.sample_weight, types)
    columns = {
        "given": prediction,
        "given_prediction": given,
        "w": weight,
        "given_weight": "1.0" if log.sample_weight is None else column_of(log.sample_weight),
        "k": quoted(row_number) if log.row_key is None else key_of(log.row_key, types),
        "adds_up": _adds_up(log, types, selection),
        "valid_time": "true",
        **{field_column(name): field_value(name, types) for name in field_columns(log)},
    }
    if file_name is not None:
        columns["f"] = quoted(file_name)
    # A row of weight 0 is no row, whatever it holds.
    conditions = [] if log.sample_weight is None else [f"({weight}) IS DISTINCT FROM 0"]
    if selection.period is not None:
        columns |= _period_columns(log, types, selection.period)
        conditions += _period_conditions(time_of(log.timestamp, types), selection.ends)
    is_late = log.label_time is not None and selection.purpose is not None
    if is_late:
        _refuse_without_delay(log, selection)
        columns |= label_columns(log, types)
        conditions.append(observed_condition(log, types))
    elif log.label_time is None:
        columns |= {"y": _label(log, types, selection), "given_label": column_of(log.label)}
    else:
        columns |= {"y": "0.0", "valid_label": "true"}
    rows = f"SELECT {_selected(columns)} FROM ({_rows_of_where(log, types, where_columns)})"
    if conditions:
        rows += f" WHERE {' AND '.join(conditions)}"
    if not is_late:
        is_whole = log.label_time is not None or types[log.label] in WHOLE
        return _with_losses(rows, log, types, is_whole)
    curves = log.label_delay
    rows = labels_so_far(rows, curves)
    if curves is None:
        return _with_losses(rows, log, types, True)
    if selection.purpose == "observed":
        rows = observed_rows(rows, curves, log.logit is not None)
        return _with_losses(rows, dataclasses.replace(log, logit=None), types, True)
    return weighted_rows(_with_losses(rows, log, types, True), curves, str(selection.purpose))


def _refuse_without_delay(log: ScoredLog, selection: Selection) -> None:
    if selection.class_number is not None:
        raise ValueError(
            "Argument `label_time` of the ScoredLog is for labels 0 and 1. Received: a log of "
            f"{len(selection.class_names)} classes."
        )
    if log.label_delay is None and selection.purpose != "delays":
        raise ValueError(
            "The log has labels that come late, and nothing that says how late. Pass "
            "log.with_delay(LabelDelay(window=…).fit_log(log)), with the longest delay in days."
        )


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
    time = time_of(log.timestamp, types)
    return {
        "given_time": column_of(log.timestamp or ""),
        "t": f"epoch(date_trunc('{period}', {time}))::BIGINT",
        "micros": f"epoch_us({time})",
        "valid_time": is_time(time),
    }


def _period_conditions(time: str, ends: tuple[int | None, int | None]) -> list[str]:
    # A row whose time cannot be read is kept, and refused. In this form, DuckDB skips the parts of
    # files that hold other times.
    return [
        f"({time} {comparison} make_timestamp({end * 1_000_000}::BIGINT) OR {time} IS NULL)"
        for end, comparison in zip(ends, (">=", "<"), strict=True)
        if end is not None
    ]


def _with_losses(
    rows: str, log: ScoredLog, types: Mapping[str, str], has_whole_labels: bool
) -> str:
    """Rows with logit, probability and log loss, and whether their columns are valid."""
    if log.logit is None:
        valid = "isfinite(given) AND given >= 0 AND given <= 1 AND adds_up"
        columns = {
            "l": f"ln({_not_0('given')} / {_not_0('1 - given')})",
            "p": "given",
            # One logarithm, of 1 - p or of p, where the label cannot be a share.
            "loss": f"-ln({_not_0('abs(1 - y - given)')})"
            if has_whole_labels
            else f"-(1 - y) * ln({_not_0('1 - given')}) - y * ln({_not_0('given')})",
        }
    else:
        valid = "isfinite(given)"
        tail = "exp(-abs(given))"
        columns = {
            "l": "given",
            "p": "1 / (1 + exp(-given))",
            "loss": f"(1 - y) * greatest(given, 0) + y * greatest(-given, 0) + {_log1p(tail)}",
        }
    columns["valid_prediction"] = f"({valid}) IS TRUE"
    columns["valid_weight"] = "true"
    if log.sample_weight is not None:
        columns["valid_weight"] = "(isfinite(w) AND w >= 0) IS TRUE"
    if log.label_time is None:
        # The statistics of a Parquet file leave NaN out, and DuckDB believes them: `given <= 1`
        # alone would be true of NaN. Whole numbers have none.
        is_number = "" if has_whole_labels else "isfinite(y) AND "
        columns["valid_label"] = f"({is_number}y >= 0 AND y <= 1) IS TRUE"
    return f"SELECT *, {_selected(columns)} FROM ({rows})"


def _not_0(probability: str) -> str:
    """A probability, or 1 minus one, as the metrics take its logarithm."""
    return f"greatest({SMALLEST_PROBABILITY!r}, {probability})"


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
    named = [log.label if log.label_time is None else log.label_time]
    named += probabilities if log.logit is None else [log.logit]
    others = (log.sample_weight, log.timestamp, log.row_key, log.delay_field)
    named += [column for column in others if column is not None]
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


def _label(log: ScoredLog, types: Mapping[str, str], selection: Selection) -> str:
    if selection.class_number is None:
        return number_of(log.label, types)
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
    kind = kind_of(log.label, types)
    if kind == "BOOLEAN":
        raise ValueError(
            f"Labels must be class numbers or the names of the classes, {[*names]}. "
            f"Received: the column {log.label!r} of truth values. Check the name of the column."
        )
    return f"CASE {when_number if kind in NUMBERS else when_name} END"


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
        numbers = [number_of(each, types) for each in column]
        return numbers[class_number], column_of(column[class_number])
    if class_number is None or log.logit is not None:
        return number_of(column, types), column_of(column)
    entry = f"{list_of(column, types)}[{class_number + 1}]"
    return entry, entry


def _adds_up(log: ScoredLog, types: Mapping[str, str], selection: Selection) -> str:
    """Whether a row has a probability for each class, and they add up to 1."""
    if selection.class_number is None:
        return "true"
    if isinstance(log.probability, str):
        given = list_of(log.probability, types)
        has_all = f"len({given}) = {len(selection.class_names)}"
        return f"{has_all} AND abs(list_sum({given}) - 1) <= {SUM_TOLERANCE}"
    total = " + ".join(number_of(column, types) for column in log.probability)
    return f"abs({total} - 1) <= {SUM_TOLERANCE}"


def _log1p(x: str) -> str:
    """log(1 + x) without loss of digits where x is small (Kahan)."""
    return f"CASE WHEN 1 + {x} = 1 THEN {x} ELSE ln(1 + {x}) * ({x}) / ((1 + {x}) - 1) END"
