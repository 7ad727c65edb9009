"""Checks the predictions of a model in production against the labels that followed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from calibration_records._check import listed, named_once, not_negative, refused
from calibration_records.logs import LogSums, Periods, ScoredLog
from calibration_records.logs.compute import num_classes
from calibration_records.logs.files import is_data
from calibration_records.logs.scored_log import Field
from calibration_records.monitoring.checks import PER_YEAR, Budget, report_of
from calibration_records.monitoring.monitor_report import ClassMonitorReport, MonitorReport
from calibration_records.monitoring.monitor_state import MonitorState
from calibration_records.monitoring.monitor_sums import class_sums, period_sums

_FEWEST_CLASSES = 3


def monitor(
    log: Any,
    *,
    probability: str | Sequence[str] | None = None,
    label: str | None = None,
    timestamp: str | None = None,
    fields: Sequence[Field] | None = None,
    classes: Sequence[str] | None = None,
    period: str | Periods = "day",
    tolerance: float = 0.05,
    false_alarms_per_year: float = 0.01,
    state: str | os.PathLike[str] | None = None,
    verbose: int = 0,
) -> MonitorReport | ClassMonitorReport:
    """Checks the calibration of a scored log over time and by field.

    Four checks can raise an alert:

    - of each period, predicted / observed: its confidence interval must overlap
      `[1 / (1 + tolerance), 1 + tolerance]`;
    - the Calibrated Log Loss of each period: within `tolerance` of its expected value (the entropy
      of the predictions), or within what chance explains. It detects a broken feature that leaves
      the mean right;
    - a shift of the whole log, or of a field value, by more than `tolerance` from some period (for
      a field value, week) on. The evidence adds up over periods: it finds small shifts that no
      single period shows. The report says since when, and how far;
    - the Field-RCE of each field over the whole log: at most `tolerance` above its noise floor.

    If all predictions are right, a report after each period raises an alert in a year with a
    probability of at most `false_alarms_per_year`. It is divided equally among the whole log, the
    rates and losses of periods, and each field's values and Field-RCE (Bonferroni); then among the
    periods of a year, or the values of the field. The shifts are tested by e-processes: these may
    be looked at as often as one likes. The other checks count one look a period, which a call with
    `until` at the start of the current period is. For a single report on a log of D days that may
    be wrong with a probability of a, pass `365 a / D`.

    If labels come late (conversions, claims), pass a `logs.ScoredLog` with `label_time`,
    `observed_until` and, by `ScoredLog.with_delay`, how late they come. Each prediction is then
    that of the label so far, p F(age); rows of which too little is known are left out. A shift is
    one of the rate at which labels come, which may be looked at at any time; the rates and losses
    of a period share its risk among all looks until its labels have come. With a `state`, files are
    counted when all their labels have had their time to come; younger files may change, and are
    read anew by each call. A wrong distribution of the delay, and one that drifts, are shifts too:
    fit it to the rows of now, and raise `tolerance` by its error. Without these arguments, the
    latest periods of such a log seem over-predicted: exclude them with
    `period=Periods("day", until=...)`.

    For a model of K classes, all this is done for each class against the others: its label is 1 in
    the rows of the class and 0 elsewhere. `false_alarms_per_year` is divided equally among the
    classes.

    DuckDB, or a cluster of Ray, computes the sums where the rows are (`logs.ScoredLog`), in three
    passes and one more for each field. Memory does not grow with the number of rows.

    A daily job reads new files only: name a `state` file. It keeps the sums of the rows that have
    been counted, and remembers their files by content, so that each call adds the rows of files
    that are new, whatever their dates, and reports on all. Files may be renamed, moved and deleted;
    their rows stay counted. They must not be changed: a file with rows of an hour of which a
    changed or deleted file is counted raises an error, because rows could count twice; so does a
    second file of the same rows, such as one that was compressed in another way. Rows from
    `until` on are left for later calls, so that their files may change until then. If a call is
    killed, or two run at once, the state is whole, and what it lacks is read by the next call.

    Args:
        log: The rows: a Parquet or CSV file, a folder, glob or list of them, an Arrow table or data
            set, a pandas or Polars data frame, a DuckDB relation or a Ray data set; or a
            `logs.ScoredLog` of them, which names the columns: then `probability`, `label`,
            `timestamp` and `fields` must be left out. Requires DuckDB: `pip install
            "keras-calibration[duckdb]"`.
        probability: Column of the predicted probabilities, by default `"probability"`. For K
            classes, of at least 3, a list of K columns, or one column of lists of length K; each
            row must add up to 1 within 0.03.
        label: Column of the labels, 0 or 1, by default `"label"`. For K classes, class numbers from
            0, or names of classes.
        timestamp: Column of the times: timestamps, dates, ISO 8601 texts, or seconds since 1970; by
            default `"timestamp"`.
        fields: Columns of the fields, of any type and number of values; tuples of columns for
            crosses. By default, none.
        classes: Names of the K classes, in the order of the probabilities. The default is the names
            of the columns of `probability`, or the class numbers.
        period: `"hour"`, `"day"`, `"week"`, `"month"` or `"year"`, or `logs.Periods`.
        tolerance: Relative error that does not matter, at least 0.
        false_alarms_per_year: Probability that right predictions raise an alert in a year; above 0,
            and less than the number of periods in a year.
        state: File of the sums that earlier calls have counted, or None. Written anew by each call.
            The log must then be Parquet or CSV files, in folders or an object store; columns,
            classes, length of a period, `where` and `since` must stay the same, and `until` must
            not move back.
        verbose: 1 shows a progress bar for each pass, 0 does not.

    Returns:
        A `MonitorReport`, or a `ClassMonitorReport` for K classes: print it, or read `is_alert` and
        `alerts`.

    Raises:
        ValueError: An argument is out of its range, a column is missing or has invalid values, no
            rows are left, or the state is damaged, of other columns, of another version, or of
            files that have changed. The state file is then unchanged.
        ImportError: DuckDB is not installed.

    Example:
        >>> import numpy as np
        >>> import pandas as pd
        >>> rng = np.random.default_rng(0)
        >>> p = rng.uniform(0.1, 0.5, 6000)
        >>> day = np.repeat(["2026-03-01", "2026-03-02", "2026-03-03"], 2000)
        >>> drift = np.where(day == "2026-03-03", 1.6, 1.0)
        >>> y = (rng.random(6000) < drift * p).astype(int)
        >>> log = pd.DataFrame({"timestamp": day, "probability": p, "label": y})
        >>> [period.rates.is_off for period in monitor(log).periods]
        [False, False, True]
    """
    periods = period if isinstance(period, Periods) else Periods(period)
    _check(tolerance, false_alarms_per_year, periods.length)
    columns = {
        "probability": probability,
        "label": label,
        "timestamp": timestamp,
        "fields": fields,
    }
    log = _log_of(log, {name: given for name, given in columns.items() if given is not None})
    if log.sample_weight is not None:
        raise ValueError(
            "Argument `log` of `monitor` must have no weights: its bounds count rows. Received: "
            f"sample_weight={log.sample_weight!r}."
        )
    if state is not None:
        _check_state(state)
    names = class_names(log.probability, classes)
    known = MonitorState.load(state) if state is not None and os.path.exists(state) else None
    if names is None and known is not None:
        names = known.settings["classes"]
    elif names is None and (received := num_classes(log)) is not None:
        names = class_names("", [str(number) for number in range(received)])
    if state is None:
        sums: Sequence[LogSums] = class_sums(
            log, periods.length, periods.ends, names, tolerance, verbose
        )
    else:
        read = MonitorState.new(log, periods, names, tolerance)
        if known is not None:
            known.refuse_others(read.settings, state)
            read = known
        read, sums = read.with_rows_of(log, periods, verbose)
    if not sums or not period_sums(sums[0])[0]:
        between = f" with since={periods.since!r} and until={periods.until!r}"
        raise ValueError(
            f"The log has no rows{between if periods.since or periods.until else ''}. Check the "
            "file and the times."
        )
    if state is not None:
        read.save(state)
    budget = Budget.of(log, periods.length, tolerance, false_alarms_per_year / len(sums))
    reports = [report_of(each, log, periods, budget) for each in sums]
    if names is None:
        return reports[0]
    by_name = dict(zip(names, reports, strict=True))
    return ClassMonitorReport(periods.length, false_alarms_per_year, tolerance, by_name)


def class_names(
    probability: str | Sequence[str], classes: Sequence[str] | None
) -> list[str] | None:
    """The names of the classes; None where there is one column and no names are given.

    Example:
        >>> class_names(["cat", "dog", "bird"], None), class_names("probability", None)
        (['cat', 'dog', 'bird'], None)
    """
    listed("classes", classes, "names")
    columns = None if isinstance(probability, str) else [*probability]
    names = columns if classes is None else [*map(str, classes)]
    if names is None:
        return None
    if len(names) < _FEWEST_CLASSES:
        raise ValueError(
            f"Arguments `probability` and `classes` must name at least {_FEWEST_CLASSES} classes. "
            f"Received: {names}. For two classes, pass the column of one and labels 0 and 1."
        )
    if columns is not None and len(columns) != len(names):
        raise ValueError(
            "Argument `classes` must name the class of each column of `probability`. Received: "
            f"{len(names)} classes for {len(columns)} columns."
        )
    if len(set(names)) < len(names):
        raise refused("classes", "a list of different names", names)
    return names


def _check_state(state: str | os.PathLike[str]) -> None:
    """Raises if no file can be written there, before the log is read."""
    path = os.path.realpath(state)
    folder = os.path.dirname(path)
    if os.path.isdir(path) or not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        why = "is a folder" if os.path.isdir(path) else f"needs the folder {folder!r}, writable"
        raise ValueError(
            "Argument `state` must be the path of a file in a folder that exists. Received: "
            f"state={os.fspath(state)!r}, which {why}."
        )
    if is_data(path):
        raise ValueError(
            "Argument `state` must not be named like a file of a log, because a folder with both "
            f"would be read with it. Received: state={os.fspath(state)!r}. Pass, for example, "
            '"monitor.state".'
        )


def _check(tolerance: float, false_alarms_per_year: float, length: str) -> None:
    not_negative("tolerance", tolerance, also=", for example 0.05 for 5 %")
    if not 0 < false_alarms_per_year < PER_YEAR[length]:
        raise ValueError(
            "Argument `false_alarms_per_year` must be above 0 and less than the number of periods "
            f"in a year, {PER_YEAR[length]:.4g}. Received: "
            f"false_alarms_per_year={false_alarms_per_year!r}."
        )


def _log_of(log: Any, columns: Mapping[str, Any]) -> ScoredLog:
    """The log with its columns, which are named in one place: in the log, or beside it."""
    if isinstance(log, ScoredLog):
        if columns:
            given = ", ".join(f"{name}={value!r}" for name, value in columns.items())
            raise ValueError(
                f"Arguments {[*columns]} must be left out if `log` is a `ScoredLog`, which names "
                f"its columns itself. Received: {given}. Pass ScoredLog(..., {given})."
            )
    else:
        log = ScoredLog(log, **{"timestamp": "timestamp", **columns})
    probabilities = [log.probability] if isinstance(log.probability, str) else log.probability
    probabilities = [log.logit] if log.logit is not None else probabilities
    fields = [field for field in log.fields if isinstance(field, str)]
    label = log.label if log.label_time is None else log.label_time
    named = [*probabilities, label, log.timestamp, *fields]
    named_once("column", (name for name in named if name is not None))
    return log
