"""The rows of a scored log as one SELECT: checked types, and columns of standard names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from calibration_records._check import known
from calibration_records._columns import names_of
from calibration_records._limits import SMALLEST_PROBABILITY
from calibration_records.logs.columns import (
    WHOLE,
    are_merged,
    field_value,
    is_odd_time,
    is_time,
    key_of,
    number_of,
    time_of,
)
from calibration_records.logs.query import field_column, quoted, write_columns
from calibration_records.logs.scored_log import ScoredLog

# The columns added to a source: row numbers and paths of files.
ROW_NUMBER, FILE_NAME = "keras_calibration row", "keras_calibration file"


@dataclass(frozen=True)
class Selection:
    """The rows of a log to sum.

    Args:
        period: "hour", "day", "week", "month" or "year" where queries ask for the period of a row.
        ends: First second since 1970 to include and to exclude, or None.

    Example:
        >>> Selection("day", ends=(86400, None)).period  # from the second day of 1970 on
        'day'
    """

    period: str | None = None
    ends: tuple[int | None, int | None] = (None, None)


def rows_sql(log: ScoredLog, types: Mapping[str, str], selection: Selection) -> str:
    """A SELECT over the table `log` of the columns that a `Query` uses."""
    prediction = log.probability if log.logit is None else log.logit
    given = number_of(prediction)
    weight = "1.0" if log.sample_weight is None else number_of(log.sample_weight)
    columns = {
        "y": number_of(log.label),
        "given": given,
        "w": weight,
        "k": quoted(ROW_NUMBER) if log.row_key is None else key_of(log.row_key, types),
        "given_label": quoted(log.label),
        "given_prediction": quoted(prediction),
        "given_weight": quoted(log.sample_weight) if log.sample_weight else "1.0",
        "given_row": quoted(ROW_NUMBER),
        "given_file": quoted(FILE_NAME) if FILE_NAME in types else "NULL",
        "valid_time": "true",
        "odd_time": "false",
        "odd_id": are_merged((*field_columns(log), *filter(None, [log.row_key])), types),
        "odd_logit": f"{given} >= 0 AND {given} <= 1" if log.logit else "false",
        **{field_column(name): field_value(name, types) for name in field_columns(log)},
    }
    # Leave out rows of weight 0, whatever they hold; NULL is distinct from 0, and refused later.
    conditions = [] if log.sample_weight is None else [f"({weight}) IS DISTINCT FROM 0"]
    if selection.period is not None:
        time = time_of(log.timestamp, types)
        columns |= {
            "given_time": quoted(log.timestamp or ""),
            "t": f"epoch(date_trunc('{selection.period}', {time}))::BIGINT",
            "valid_time": is_time(time),
            "odd_time": is_odd_time(time),
        }
        conditions += _write_period_conditions(time, selection.ends)
    # The line break ends a comment at the end of the user's condition.
    rows = f"(SELECT * FROM log WHERE ({log.where}\n))" if log.where else "log"
    rows = f"SELECT {write_columns(columns)} FROM {rows} WHERE {' AND '.join(conditions) or 'true'}"
    return _add_losses(rows, log, types)


def _write_period_conditions(time: str, ends: tuple[int | None, int | None]) -> list[str]:
    """Leaves rows of other times out; unreadable times stay, so that a later check refuses them."""
    # A plain comparison of the column lets DuckDB skip parts of files by their statistics.
    return [
        f"({time} {comparison} make_timestamp({end * 1_000_000}::BIGINT) OR {time} IS NULL)"
        for end, comparison in zip(ends, (">=", "<"), strict=True)
        if end is not None
    ]


def _add_losses(rows: str, log: ScoredLog, types: Mapping[str, str]) -> str:
    """Rows with logit, probability and log loss, and whether their columns are valid."""
    has_whole_labels = types[log.label] in WHOLE
    # The statistics of a Parquet file leave NaN out, and DuckDB believes them: `given <= 1` alone
    # would be true of NaN. Whole numbers have none.
    is_number = "" if has_whole_labels else "isfinite(y) AND "
    columns = {
        "valid_label": f"({is_number}y >= 0 AND y <= 1) IS TRUE",
        "valid_weight": "(isfinite(w) AND w >= 0) IS TRUE",
    }
    if log.logit is None:
        columns |= {
            "l": f"ln({_keep_above_0('given')} / {_keep_above_0('1 - given')})",
            "p": "given",
            # A label of 0 or 1 needs one logarithm: `|1 - y - p|` is the probability of the label.
            "loss": f"-ln({_keep_above_0('abs(1 - y - given)')})"
            if has_whole_labels
            else f"-(1 - y) * ln({_keep_above_0('1 - given')}) - y * ln({_keep_above_0('given')})",
            "valid_prediction": "(isfinite(given) AND given >= 0 AND given <= 1) IS TRUE",
        }
    else:
        tail = "exp(-abs(given))"
        columns |= {
            "l": "given",
            "p": "1 / (1 + exp(-given))",
            # `softplus(l) - y l` without overflow: `max(±l, 0) + log(1 + exp(-|l|))`, the logarithm
            # without loss of digits where the exponential is small (Kahan).
            "loss": "(1 - y) * greatest(given, 0) + y * greatest(-given, 0) + "
            f"CASE WHEN 1 + {tail} = 1 THEN {tail} "
            f"ELSE ln(1 + {tail}) * {tail} / ((1 + {tail}) - 1) END",
            "valid_prediction": "isfinite(given) IS TRUE",
        }
    return f"SELECT *, {write_columns(columns)} FROM ({rows})"


def _keep_above_0(probability: str) -> str:
    """A probability, or 1 minus one, as the metrics take its logarithm."""
    return f"greatest({SMALLEST_PROBABILITY!r}, {probability})"


def field_columns(log: ScoredLog) -> list[str]:
    """The columns of all fields and crosses, each once.

    Example:
        >>> field_columns(ScoredLog(fields=["site", ("site", "device")]))
        ['site', 'device']
    """
    return list(dict.fromkeys(chain.from_iterable(map(names_of, log.fields))))


def used_columns(log: ScoredLog) -> list[str]:
    """The columns that a log names, each once, apart from `where`.

    Example:
        >>> used_columns(ScoredLog(fields=["site"], row_key="id"))
        ['label', 'probability', 'id', 'site']
    """
    prediction = log.probability if log.logit is None else log.logit
    optional = (log.sample_weight, log.timestamp, log.row_key)
    named = [log.label, prediction, *(column for column in optional if column is not None)]
    return list(dict.fromkeys([*named, *field_columns(log)]))


def check_columns(log: ScoredLog, columns: Sequence[str]) -> None:
    """Raises if the log names columns that are not there, or two have one name for DuckDB."""
    if "" in used_columns(log):
        raise ValueError("Columns of a log must have names. Received: ''. Rename the column.")
    known(
        "A ScoredLog must name columns of its source",
        used_columns(log),
        columns,
        "Name them: ScoredLog(…, label=…, probability=…, timestamp=…).",
    )
    # DuckDB ignores the case of names.
    folded = [name.casefold() for name in columns]
    if twice := sorted({name for name in columns if folded.count(name.casefold()) > 1}):
        raise ValueError(
            "Columns must have different names, whether in upper or lower case. Received twice: "
            f"{twice}."
        )
