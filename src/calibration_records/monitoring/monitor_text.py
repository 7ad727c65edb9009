"""A monitor report as text of about 100 columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from calibration_records._text import grid, shorten, wrap

if TYPE_CHECKING:
    # Reports print themselves with this module.
    from calibration_records.monitoring.monitor_report import (
        ClassMonitorReport,
        FieldErrorCheck,
        MonitorReport,
        PeriodReport,
        RateCheck,
        Report,
        Shift,
    )

_MAX_NAME = 30
_MOST_YEARS = 1e6
ADVICE = (
    "To mend a shift, find its cause, or refresh the calibration on the rows since its start. Then "
    "begin a new state."
)
# Field values shown: this many, and all that are out of bounds.
NUM_VALUES_SHOWN = 10
RATES_HEADER = ("rows", "predicted", "observed", "ratio", "interval", "")
LOSS_HEADER = ("rolling", "cal. loss", "bounds", "")
CLASS_HEADER = ("class", *RATES_HEADER, "alerts")


def class_tables(report: ClassMonitorReport) -> list[str]:
    """A line for each class, and the tables of those with an alert."""
    lines = [*grid([CLASS_HEADER, *class_rows(report)]), ""]
    for name, part in report.classes.items():
        if part.is_alert:
            lines += [f"Class {shorten(name, _MAX_NAME)} against the others:", *tables(part)]
    return lines


def tables(report: MonitorReport) -> list[str]:
    """The periods and the fields, each followed by an empty line."""
    periods = [[*rates_cells(period.rates), *loss_cells(period)] for period in report.periods]
    header = [report.period, *RATES_HEADER, *LOSS_HEADER]
    total = [*rates_cells(report.overall), *[""] * len(LOSS_HEADER)]
    lines = [*grid([header, *periods, total]), *wrap(shift_text([report.overall])), ""]
    for name, field in report.fields.items():
        shown = shown_values(field.values)
        lines += grid([[shorten(name, _MAX_NAME), *RATES_HEADER], *map(rates_cells, shown)])
        hidden = field.num_values - len(shown)
        lines += [f"and {hidden:,} more values without a shift"] * (hidden > 0)
        lines += [f"Field-RCE {error_text(field.error)}", *wrap(shift_text(field.values)), ""]
    return lines


def summary(report: Report) -> list[str]:
    """What the bounds mean, and the alerts."""
    lines = wrap(bounds_sentence(report))
    alerts = report.alerts
    if not alerts:
        return [*lines, "No alert."]
    found = [part for alert in alerts for part in wrap(f"! {alert}")]
    return [*lines, f"ALERT, {len(alerts)} out of bounds:", *found, *wrap(ADVICE)]


def class_rows(report: ClassMonitorReport) -> list[Sequence[str]]:
    """The table cells of each class: its rate in all rows, and the number of its alerts."""
    return [
        [shorten(name, _MAX_NAME), *rates_cells(part.overall)[1:], str(len(part.alerts))]
        for name, part in report.classes.items()
    ]


def rates_cells(rates: RateCheck) -> list[str]:
    """The table cells of a rate."""
    return [
        shorten(rates.name, _MAX_NAME),
        f"{rates.num_rows:,}",
        f"{rates.predicted:.4g}",
        f"{rates.observed:.4g}",
        number(rates.ratio),
        f"{number(rates.low)}–{number(rates.high)}",
        "!" if rates.is_off else "",
    ]


def loss_cells(period: PeriodReport) -> list[str]:
    """The table cells of the losses of a period; empty where they are undefined."""
    loss, rolling = period.loss, period.rolling_loss
    first = "" if rolling is None else f"{rolling:.4f}"
    if math.isnan(loss.value):
        return [first, "", "", ""]
    bounds = f"{loss.low:.4f}–{loss.high:.4f}"
    return [first, f"{loss.value:.4f}", bounds, "!" if loss.is_off else ""]


def error_text(error: FieldErrorCheck) -> str:
    """A Field-RCE with its noise floor and bound."""
    flag = " !" if error.is_off else ""
    return (
        f"{error.field_rce:.4g}; noise floor {error.noise_floor:.4g} ± "
        f"{error.noise_deviation:.2g}, bound {error.high:.4g}{flag}"
    )


def shift_text(values: Sequence[RateCheck]) -> str:
    """The strongest evidence for a shift among the values of a field, or of the whole log."""
    name, shift = max(
        ((rates.name, rates.shift) for rates in values if rates.shift is not None),
        key=lambda named: named[1].years,
    )
    if shift.years < 1:
        return "No evidence of a shift."
    return (
        f"Shift of {shorten(name, _MAX_NAME)} since {shift.since}: {change_text(shift)}, by chance "
        f"{years_text(shift)}{' !' if shift.is_off else ''}"
    )


def change_text(shift: Shift) -> str:
    """How far the labels are from the predictions."""
    size = abs(shift.change)
    percent = f"{size:.1%}" if size < 1e4 else f"{100 * size:.3g}%"
    return f"{percent} {'fewer' if shift.change < 0 else 'more'} than predicted"


def years_text(shift: Shift) -> str:
    """How rare the evidence for a shift is under right predictions."""
    if shift.years >= _MOST_YEARS:
        return "less than once in a million years"
    return f"less than once in {float(f'{shift.years:.2g}'):,g} years"


def bounds_sentence(report: Report) -> str:
    """What tolerance and false alarms mean, and the time zone."""
    until = getattr(report, "observed_until", None)
    late = f"Predicted are the labels that have come until {until}. " if until else ""
    return (
        f"{late}Bounds: relative errors up to {report.tolerance:.2g} do not matter. If all "
        "probabilities are correct, reports after each period raise an alert in a year with a "
        f"probability of at most {report.false_alarms_per_year:.3g}. Times are in UTC."
    )


def shown_values(values: list[RateCheck]) -> list[RateCheck]:
    """The values with most rows, and those out of bounds."""
    return [rates for place, rates in enumerate(values) if place < NUM_VALUES_SHOWN or rates.is_off]


def number(value: float) -> str:
    """A ratio as text."""
    return f"{value:.3f}" if value < 100 else f"{value:.3g}"
