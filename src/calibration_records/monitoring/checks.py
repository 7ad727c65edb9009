"""The checks of a log: what `monitor` finds in its sums."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from calibration_records.logs import LogSums, Periods, ScoredLog
from calibration_records.logs.scored_log import field_name
from calibration_records.monitoring.bounds import loss_bounds, rate_factors
from calibration_records.monitoring.field_error_bound import field_rce, field_rce_bound
from calibration_records.monitoring.moment_losses import MomentLosses
from calibration_records.monitoring.monitor_report import (
    FieldErrorCheck,
    FieldReport,
    LossCheck,
    MonitorReport,
    PeriodReport,
    RateCheck,
    Shift,
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

# Values of a field that are listed: those with most rows, and all that are off.
_MOST_LISTED = 10_000
# Length of a period → periods in a year.
PER_YEAR = {"hour": 8766.0, "day": 365.25, "week": 365.25 / 7, "month": 12.0, "year": 1.0}
# The exponential of more is infinite, which JSON does not have.
_LARGEST_LOG = 700.0


class Budget(NamedTuple):
    """What right predictions may cost in false alarms, and which errors do not matter.

    Args:
        tolerance: Relative error that does not matter.
        false_alarms_per_year: Probability of an alert in a year, in all checks.
        num_kinds: Number of the kinds of checks, which have equal shares of it.
        risk: Probability of an alert of one kind in one period.
        num_looks: How often a period is looked at until all its labels have come.
    """

    tolerance: float
    false_alarms_per_year: float
    num_kinds: int
    risk: float
    num_looks: int

    @classmethod
    def of(
        cls, log: ScoredLog, length: str, tolerance: float, false_alarms_per_year: float
    ) -> Budget:
        """The budget of a log that is looked at once a period."""
        # Shifts of all rows, rates, losses, and of each field its values and its error.
        num_kinds = 3 + 2 * len(log.fields)
        risk = false_alarms_per_year / num_kinds / PER_YEAR[length]
        num_looks = 1
        if log.label_delay is not None:
            periods_a_day = PER_YEAR[length] / PER_YEAR["day"]
            num_looks += math.ceil(log.label_delay.horizon * periods_a_day)
        return cls(tolerance, false_alarms_per_year, num_kinds, risk, num_looks)


def report_of(sums: LogSums, log: ScoredLog, periods: Periods, budget: Budget) -> MonitorReport:
    """The report of labels 0 and 1, or of a class against the others."""
    starts, period_rows = period_sums(sums)
    names, risk = [periods.name(start) for start in starts], budget.risk / budget.num_looks
    reports, bias = [], math.nan  # that of the last period that determines one
    rates = _rates(names, period_rows, budget.tolerance, risk)
    for rate, moments in zip(rates, period_moments(sums), strict=True):
        losses = MomentLosses(moments)
        loss = _loss(losses, budget.tolerance, 1 - risk)
        reports.append(PeriodReport(rate, loss, _rolling_loss(losses, bias)))
        bias = bias if math.isnan(losses.bias) else losses.bias
    every = ValueSums(["all"], period_rows, np.zeros(len(starts), int), np.array(starts))
    (overall,) = _shifted_rates(every, periods.length, budget)
    return MonitorReport(
        period=periods.length,
        false_alarms_per_year=budget.false_alarms_per_year,
        tolerance=budget.tolerance,
        overall=overall,
        periods=reports,
        fields={
            name: _field_report(value_sums(sums, name), block_length(periods.length), budget)
            for name in map(field_name, log.fields)
        },
        observed_until=None if log.observed_until is None else str(log.observed_until),
    )


def _field_report(values: ValueSums, length: str, budget: Budget) -> FieldReport:
    """The checks of a field and of its values, the values with most rows first."""
    return FieldReport(
        error=_field_check(values.totals, budget.tolerance, budget.risk),
        values=_shifted_rates(values, length, budget),
        num_values=len(values.names),
    )


def _shifted_rates(values: ValueSums, length: str, budget: Budget) -> list[RateCheck]:
    """The rates of the values with most rows, and of all that have shifted."""
    totals, block_years = values.totals, 1 / PER_YEAR[length]
    # The evidence that is an alert, for each value.
    needed = np.log(budget.num_kinds * totals.num_groups / budget.false_alarms_per_year)
    by_rows = np.argsort(-totals["rows"], kind="stable")
    # Of a million values, most have too few rows to show anything.
    can_shift = most_log_years(totals, values.block, block_years) >= needed
    tested = by_rows[(np.arange(len(by_rows)) < _MOST_LISTED) | can_shift[by_rows]]
    found = find_shifts(*values.groups_of(tested), block_years, budget.tolerance)
    is_off = found.log_years >= needed
    listed = np.flatnonzero(is_off | (np.arange(len(tested)) < _MOST_LISTED))
    years = np.exp(np.minimum(found.log_years - needed, _LARGEST_LOG))
    years /= budget.false_alarms_per_year
    since = [Periods(length).name(start) for start in found.since[listed]]
    names = [values.names[value] for value in tested[listed]]
    rates = _rates(names, totals.of(tested[listed]), budget.tolerance, budget.risk)
    rates_since = _rates(since, found.sums.of(listed), budget.tolerance, budget.risk)
    return [
        dataclasses.replace(
            rate,
            is_off=is_alert,
            shift=Shift(part.name, part.num_rows, part.predicted, part.observed, once_in, is_alert),
        )
        for rate, part, once_in, is_alert in zip(
            rates, rates_since, years[listed].tolist(), is_off[listed].tolist(), strict=True
        )
    ]


def _rates(names: Sequence[str], sums: Sums, tolerance: float, risk: float) -> list[RateCheck]:
    low, high, is_off = _rate_bounds(sums, tolerance, 1 - risk)
    rows = sums["rows"]
    mean = np.clip(sums["predicted"], 0, rows) / rows
    columns = (rows.astype(int), mean, sums["positives"] / rows, low, high, is_off)
    values = zip(*(column.tolist() for column in columns), strict=True)
    return [RateCheck(name, *cell) for name, cell in zip(names, values, strict=True)]


def _rate_bounds(
    sums: Sums, tolerance: float, confidence: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ends of the intervals of predicted / observed, and which are out of bounds."""
    # Probabilities that are all 0 count as the smallest positive number: no division by 0.
    predicted = np.maximum(sums["predicted"], np.finfo(np.float64).tiny ** 0.5)
    squares = np.maximum(sums["predicted_squares"], predicted**2 / sums["rows"])
    low, high = rate_factors(sums["positives"], predicted, squares, confidence)
    with np.errstate(divide="ignore"):
        low, high = 1 / high, 1 / low
    return low, high, (low > 1 + tolerance) | (high < 1 / (1 + tolerance))


def _loss(losses: MomentLosses, tolerance: float, confidence: float) -> LossCheck:
    value, expected, low, high = loss_bounds(losses, confidence)
    low, high = low - tolerance * expected, high + tolerance * expected
    is_off = not (np.isnan(value) or low <= value <= high)
    return LossCheck(value, expected, max(low, 0.0), high, is_off)


def _rolling_loss(losses: MomentLosses, bias: float) -> float | None:
    """The mean log loss of a period with the bias known before it."""
    loss = losses.loss(bias) / float(losses.weights.sum())
    # None and not NaN: equal reports are equal on every Python.
    return loss if math.isfinite(loss) else None


def _field_check(sums: Sums, tolerance: float, risk: float) -> FieldErrorCheck:
    """The check of a Field-RCE, from the sums of the values."""
    value = field_rce(sums)
    mean, deviation, bound = field_rce_bound(sums, risk)
    return FieldErrorCheck(value, mean, deviation, bound + tolerance, value > bound + tolerance)
