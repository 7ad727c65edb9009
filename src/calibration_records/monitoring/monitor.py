"""Checks the predictions of a model in production against the labels that followed."""

from __future__ import annotations

from calibration_records._check import not_negative, positive, refused
from calibration_records.logs import LogSums, Periods, ScoredLog
from calibration_records.monitoring.checks import PER_YEAR, report_of
from calibration_records.monitoring.monitor_report import MonitorReport
from calibration_records.monitoring.monitor_sums import ROWS, monitor_sums


def monitor(
    log: ScoredLog | LogSums,
    period: str | Periods = "day",
    *,
    tolerance: float = 0.05,
    false_alarms_per_year: float = 0.01,
    verbose: int = 0,
) -> MonitorReport:
    """Checks the calibration of a scored log over time and by field.

    Four checks can raise an alert:

    - Predicted / observed in each period: its confidence interval must overlap
      `[1 / (1 + tolerance), 1 + tolerance]`.
    - The Calibrated Log Loss of each period: it must differ from its expected value (the entropy of
      the predictions) by no more than what chance explains and a share `tolerance` of that value.
      This check detects a broken feature that leaves the mean right.
    - A shift of the whole log, or of a field value, by more than `tolerance` from some period (for
      a field value, week) on. The evidence adds up over periods, so that this check finds small
      shifts that no single period shows. The report gives the start and the size of the shift.
    - The Field-RCE of each field over the whole log: it must be at most `tolerance` above its noise
      floor and what chance explains.

    If all predictions are right, reports after each period raise an alert in a year with a
    probability of at most `false_alarms_per_year`. `monitor` divides this probability equally among
    the whole log, the rates and losses of periods, and each field's values and Field-RCE
    (Bonferroni); then among the periods of a year, or the values of the field. E-processes test for
    shifts; they hold however often you look. The other checks allow one look each period: pass
    `until` at the start of the current period. For a single report on a log of D days with a
    false-alarm probability of a, pass `365 a / D`.

    Where labels come late (conversions, claims), the latest periods seem over-predicted: leave them
    out with `period=Periods("day", until=...)`. For K classes, monitor K logs, see `ScoredLog`, and
    divide `false_alarms_per_year` by K.

    DuckDB, or a Ray cluster, computes the sums where the rows are. A daily job keeps the sums of
    the earlier days (`monitor_sums`) and adds the sums of the new rows.

    Args:
        log: The log with its `timestamp`, or the sums of one from `monitor_sums`. Requires DuckDB:
            `pip install "keras-calibration[duckdb]"`.
        period: `"hour"`, `"day"`, `"week"`, `"month"` or `"year"`, or `logs.Periods`; for sums, the
            period of `monitor_sums`.
        tolerance: Relative error that does not matter, at least 0.
        false_alarms_per_year: Probability that right predictions raise an alert in a year; above 0,
            and less than the number of periods in a year.
        verbose: 1 shows a progress bar over the passes, 0 does not.

    Returns:
        A `MonitorReport`: print it, or read `is_alert` and `alerts`.

    Raises:
        ValueError: An argument is out of its range, a column is missing or has invalid values, or
            no rows are left.
        ImportError: DuckDB is not installed.

    Example:
        >>> import numpy as np
        >>> import pandas as pd
        >>> rng = np.random.default_rng(0)
        >>> p = rng.uniform(0.1, 0.5, 6000)
        >>> day = np.repeat(["2026-03-01", "2026-03-02", "2026-03-03"], 2000)
        >>> drift = np.where(day == "2026-03-03", 1.6, 1.0)
        >>> y = (rng.random(6000) < drift * p).astype(int)
        >>> rows = pd.DataFrame({"day": day, "probability": p, "label": y})
        >>> [period.is_off for period in monitor(ScoredLog(rows, timestamp="day")).periods]
        [False, False, True]
    """
    periods = period if isinstance(period, Periods) else Periods(period)
    not_negative("tolerance", tolerance, also=", for example 0.05 for 5 %")
    positive(
        "false_alarms_per_year",
        false_alarms_per_year,
        also=", the number of periods in a year",
        below=PER_YEAR[periods.length],
    )
    # Sums know their periods already; a log still has to be summed.
    if isinstance(log, ScoredLog):
        log = monitor_sums(log, periods, verbose)
    elif not isinstance(log, LogSums) or ROWS + periods.length not in log.names:
        raise refused(
            "log", "a ScoredLog, or the result of `monitor_sums` for the same period", log
        )
    elif periods.ends != (None, None):
        raise refused(
            "period",
            "without since= and until= for sums",
            period,
            "Pass them to `monitor_sums`.",
        )
    if not log.num_rows:
        raise ValueError(
            f"The log has no rows with since={periods.since!r} and until={periods.until!r}. Check "
            "the file and the times."
        )
    # The report holds plain numbers, which JSON can hold.
    return report_of(log, periods.length, float(tolerance), float(false_alarms_per_year))
