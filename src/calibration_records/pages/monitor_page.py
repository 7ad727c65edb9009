"""A monitor report as one self-contained HTML page."""

import math
import os
from collections.abc import Sequence

from calibration_records.monitoring.monitor_report import (
    ClassMonitorReport,
    FieldReport,
    MonitorReport,
    PeriodReport,
    RateCheck,
)
from calibration_records.monitoring.monitor_text import (
    ADVICE,
    CLASS_HEADER,
    LOSS_HEADER,
    RATES_HEADER,
    bounds_sentence,
    class_rows,
    error_text,
    loss_cells,
    rates_cells,
    shift_text,
    shown_values,
)
from calibration_records.pages.page import Axis, Bar, Section, Table, page, range_of, write

# Number of periods or values that are shown at first; all are in a part that is folded.
_MAX_SHOWN = 92
_HEADING = "Are the probabilities in production calibrated?"
_RATIO_CAPTION = (
    "Predicted / observed with its confidence interval, on a logarithmic scale; the line at 1 is "
    "the target. Grey band: tolerance. Square: alert."
)
_LOSS_CAPTION = (
    "Calibrated Log Loss (mark) and its bounds (line) if the bias-corrected probabilities were "
    "correct. Rolling: the log loss with the bias of the period before."
)
_METHOD = (
    "Intervals of the ratio are Clopper–Pearson intervals of a binomial variable with the mean and "
    "variance of the predictions. Bounds of the loss are Bernstein bounds; that of a Field-RCE is "
    "a quantile of its distribution if the predictions are right. The evidence for a shift of the "
    "whole log or of a field value is a sum of likelihood ratios over possible starts and sizes "
    "(an e-process), which may be looked at at any time. The false alarms of a year are divided "
    "among these, periods, losses and fields (Bonferroni), and among the values of a field or the "
    "periods of a year. If labels arrive late, the latest periods seem over-predicted."
)
_METHOD_OF_CLASSES = (
    "Each class is checked against all others, with an equal share of the probability of a false "
    "alert. "
)


def write_page(report: MonitorReport | ClassMonitorReport, path: str | os.PathLike[str]) -> None:
    """Writes a monitor report to one self-contained HTML file.

    Args:
        report: The result of `monitor`.
        path: HTML file to write, in UTF-8.

    Raises:
        ImportError: Jinja2 is not installed.
    """
    write(page_html(report), path)


def page_html(report: MonitorReport | ClassMonitorReport) -> str:
    """The page as text; names are escaped."""
    if isinstance(report, ClassMonitorReport):
        one, sections = next(iter(report.classes.values())), [_class_section(report)]
        method = _METHOD_OF_CLASSES + _METHOD
    else:
        one, sections, method = report, _sections(report), _METHOD
    verdict = _verdict(report.alerts)
    size = f"{one.overall.num_rows:,} rows in {len(one.periods)} periods of one {report.period}. "
    points = [*report.alerts, ADVICE] if report.alerts else []
    first = Section(verdict=verdict, caption=size + bounds_sentence(report), points=points)
    sections = [first, *sections, Section("Method", caption=method)]
    return page(f"{verdict}: calibration", _HEADING, sections)


def _verdict(alerts: Sequence[str]) -> str:
    return f"Alert: {len(alerts)} out of bounds" if alerts else "No alert"


def _class_section(report: ClassMonitorReport) -> Section:
    """A table of the classes, and the sections of each, shown where there is an alert."""
    parts = [
        Section(
            f"Class {name} against the others. {_verdict(part.alerts)}",
            parts=_sections(part),
            is_open=part.is_alert,
        )
        for name, part in report.classes.items()
    ]
    return Section("Classes", table=Table(CLASS_HEADER, class_rows(report)), parts=parts)


def _sections(report: MonitorReport) -> list[Section]:
    """The checks over time and by field."""
    by_field = [_field_section(report, name, field) for name, field in report.fields.items()]
    return [_time_section(report), *by_field]


def _time_section(report: MonitorReport) -> Section:
    shown = report.periods[-_MAX_SHOWN:]
    rates = [period.rates for period in shown]
    rows = [[*rates_cells(period.rates), *loss_cells(period)] for period in report.periods]
    head = (report.period, *RATES_HEADER, *LOSS_HEADER)
    parts = [
        Section(
            "Predicted / observed",
            table=_rate_table(report.period, rates, report),
            caption=f"{_RATIO_CAPTION} All rows: {shift_text([report.overall])}",
        ),
        Section(
            "Calibrated Log Loss",
            table=_loss_table(report.period, shown),
            caption=_LOSS_CAPTION,
        ),
        *_folded(f"{len(rows):,} periods", head, rows, len(shown)),
    ]
    return Section("Over time", parts=parts)


def _field_section(report: MonitorReport, name: str, field: FieldReport) -> Section:
    listed = f"{len(field.values):,} values"
    if len(field.values) != field.num_values:
        listed += f" of {field.num_values:,}"
    shown = shown_values(field.values)[:_MAX_SHOWN]
    rows = [rates_cells(rates) for rates in field.values]
    return Section(
        f"By {name}",
        table=_rate_table(name, shown, report),
        caption=f"{listed}. Field-RCE {error_text(field.error)}. {shift_text(field.values)}",
        parts=_folded(listed, (name, *RATES_HEADER), rows, len(shown)),
    )


def _folded(
    title: str, head: Sequence[str], rows: Sequence[Sequence[str]], num_shown: int
) -> list[Section]:
    """All rows without pictures, folded, if they are more than are shown."""
    return [Section(title, table=Table(head, rows), is_open=False)] * (len(rows) > num_shown)


def _rate_table(name: str, cells: Sequence[RateCheck], report: MonitorReport) -> Table:
    bars = [
        Bar([_log(rates.ratio)], _log(rates.low), _log(rates.high), is_square=rates.is_off)
        for rates in cells
    ]
    # On a logarithmic scale 1/2 and 2 are equally far from 1. Ratios beyond 4 are at the ends.
    margin = math.log(1 + report.tolerance)
    ends = [
        end for bar in bars for end in (bar.low, bar.high, *bar.marks) if abs(end) < math.log(4)
    ]
    low, high = range_of([-2 * margin, 2 * margin, -0.01, 0.01, *ends])
    labels = (f"{math.exp(low):.3g}", f"{math.exp(high):.3g}")
    axis = Axis(low, high, labels, target=0.0, margin=margin)
    return Table((name, *RATES_HEADER), [rates_cells(rates) for rates in cells], bars, axis)


def _log(ratio: float) -> float:
    """The logarithm, also of 0."""
    return math.log(ratio) if ratio > 0 else -math.inf


def _loss_table(name: str, periods: Sequence[PeriodReport]) -> Table:
    losses = [period.loss for period in periods]
    bars = [
        None if math.isnan(loss.value) else Bar([loss.value], loss.low, loss.high, loss.is_off)
        for loss in losses
    ]
    ends = [end for bar in bars if bar for end in (bar.low, bar.high, *bar.marks)]
    low, high = range_of(ends)
    axis = Axis(low, high, (f"{low:.4g}", f"{high:.4g}"))
    rows = [[rates_cells(period.rates)[0], *loss_cells(period)] for period in periods]
    return Table((name, *LOSS_HEADER), rows, bars, axis)
