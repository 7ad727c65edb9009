"""The checks of a log, from its sums."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from calibration_records.logs import LogSums, Periods
from calibration_records.logs.query import FIELD
from calibration_records.monitoring.bounds import (
    PeriodLosses,
    field_rce,
    field_rce_bound,
    rate_factors,
)
from calibration_records.monitoring.monitor_report import (
    FieldReport,
    MonitorReport,
    PeriodReport,
    RateCheck,
)
from calibration_records.monitoring.monitor_sums import (
    ValueSums,
    block_length,
    period_moments,
    period_sums,
    value_sums,
)
from calibration_records.monitoring.shifts import find_shifts, most_log_years
from calibration_records.monitoring.sums import Sums

# A report lists this many values of a field, and all values that are off.
_MOST_LISTED = 10_000
# Length of a period → periods in a year.
PER_YEAR = {"hour": 8766.0, "day": 365.25, "week": 365.25 / 7, "month": 12.0, "year": 1.0}


class Budget(NamedTuple):
    """The allowed rate of false alarms, and the errors that do not matter.

    Args:
        tolerance: Relative error that does not matter.
        false_alarms_per_year: Probability of an alert in a year if all predictions are right.
        num_kinds: Number of kinds of checks, which share this probability equally.
        risk: Probability of an alert of one kind in one period.
    """

    tolerance: float
    false_alarms_per_year: float
    num_kinds: int
    risk: float


def report_of(
    sums: LogSums, length: str, tolerance: float, false_alarms_per_year: float
) -> MonitorReport:
    """The report of a log, from its sums, for one look each period."""
    starts, period_rows = period_sums(sums, length)
    fields = [name for name in sums.names if name.startswith(FIELD)]
    # Bonferroni over the kinds of checks: shifts of all rows, rates, losses; and for each field,
    # its values and its error.
    num_kinds = 3 + 2 * len(fields)
    budget = Budget(
        tolerance,
        false_alarms_per_year,
        num_kinds,
        risk=false_alarms_per_year / num_kinds / PER_YEAR[length],
    )
    reports, bias = [], math.nan  # the bias of the last period that determines one
    rates = _check_rates([Periods(length).name(start) for start in starts], period_rows, budget)
    for rate, moments in zip(rates, period_moments(sums), strict=True):
        losses = PeriodLosses(moments)
        reports.append(_check_period(rate, losses, bias, budget))
        # A period is scored with the bias of the period before it, as a model served with that
        # bias.
        bias = bias if math.isnan(losses.bias) else losses.bias
    every = ValueSums(["all"], period_rows, np.zeros(len(starts), int), np.array(starts))
    (overall,) = _check_values(every, length, budget)
    return MonitorReport(
        length,
        false_alarms_per_year,
        tolerance,
        overall,
        reports,
        fields={
            name.removeprefix(FIELD): _check_field(value_sums(sums, name), length, budget)
            for name in fields
        },
    )


def _check_period(
    rate: RateCheck, losses: PeriodLosses, bias: float, budget: Budget
) -> PeriodReport:
    """The checks of a period, with the bias known before it."""
    rolling = losses.mean_loss(bias)
    loss = losses.mean_loss(losses.bias)
    expected, low, high = losses.bounds(1 - budget.risk)
    # An alert needs both: more than chance, and more than the error that does not matter.
    low = low - budget.tolerance * expected
    high = high + budget.tolerance * expected
    return PeriodReport(
        **vars(rate),
        loss=loss,
        expected_loss=expected,
        low_loss=max(low, 0.0),
        high_loss=high,
        is_loss_off=low > loss or loss > high,
        # None and not NaN: equal reports are equal on every Python.
        rolling_loss=rolling if math.isfinite(rolling) else None,
    )


def _check_field(values: ValueSums, length: str, budget: Budget) -> FieldReport:
    """The checks of a field and of its values, the values with most rows first."""
    # Compare the error with what chance alone gives, not with 0.
    error = field_rce(values.totals)
    mean, deviation, bound = field_rce_bound(values.totals, budget.risk)
    high = bound + budget.tolerance
    return FieldReport(
        error,
        mean,
        deviation,
        high,
        is_off=error > high,
        values=_check_values(values, block_length(length), budget),
        num_values=len(values.names),
    )


def _check_values(values: ValueSums, length: str, budget: Budget) -> list[RateCheck]:
    """The rates of the values with most rows, and of all values that have shifted."""
    years = 1 / PER_YEAR[length]
    num_tests = budget.num_kinds * len(values.names)
    needed = np.log(num_tests / budget.false_alarms_per_year)  # the evidence that is an alert
    totals = values.totals
    # Of a million values, most have too few rows to show anything: an upper bound of their evidence
    # is below the alert, so that they need no test.
    is_tested = most_log_years(totals, years * len(np.unique(values.block))) >= needed
    is_tested[np.argsort(-totals.rows, kind="stable")[:_MOST_LISTED]] = True
    values = values.select(is_tested)
    totals = totals.select(is_tested)
    log_years, starts, shifted = find_shifts(
        values.sums, values.value, values.block, years, budget.tolerance
    )
    is_off = log_years >= needed
    listed = np.argsort(-totals.rows, kind="stable")
    listed = listed[is_off[listed] | (np.arange(len(listed)) < _MOST_LISTED)]
    # The number of years for all checks of the report together: evidence divided by the number of
    # tests. The limit keeps it finite, as JSON has no infinity.
    once_in = np.exp(np.minimum(log_years[listed] - np.log(num_tests), 700.0)).tolist()
    rates = _check_rates([values.names[value] for value in listed], totals.select(listed), budget)
    since = [Periods(length).name(start) for start in starts[listed]]
    rates_since = _check_rates(since, shifted.select(listed), budget)
    return [
        dataclasses.replace(rate, is_off=is_alert, since=rows, years=number)
        for rate, is_alert, rows, number in zip(
            rates, is_off[listed].tolist(), rates_since, once_in, strict=True
        )
    ]


def _check_rates(names: Sequence[str], sums: Sums, budget: Budget) -> list[RateCheck]:
    """Rates with the intervals of predicted / observed; a rate is off if its interval is."""
    # Probabilities that are all 0 count as a tiny positive number, to avoid a division by 0.
    predicted = np.maximum(sums.predicted, np.finfo(np.float64).tiny ** 0.5)
    low, high = rate_factors(sums.positives, predicted, sums.rows, 1 - budget.risk)
    # The interval of true / predicted, turned round.
    with np.errstate(divide="ignore"):
        low, high = 1 / high, 1 / low
    is_off = (low > 1 + budget.tolerance) | (high < 1 / (1 + budget.tolerance))
    mean = np.clip(sums.predicted, 0, sums.rows) / sums.rows
    columns = (sums.rows.astype(int), mean, sums.positives / sums.rows, low, high, is_off)
    return [
        RateCheck(*row) for row in zip(names, *(column.tolist() for column in columns), strict=True)
    ]
