"""A monitor report as one self-contained HTML page."""

import html
import math
import os
from collections.abc import Sequence

from keras_calibration._text import shorten
from keras_calibration.monitoring.class_monitor_report import ClassMonitorReport
from keras_calibration.monitoring.monitor_report import (
    FieldReport,
    MonitorReport,
    PeriodReport,
    RateCheck,
)
from keras_calibration.monitoring.monitor_text import (
    CLASS_HEADER,
    LOSS_HEADER,
    RATES_HEADER,
    bounds_sentence,
    class_rows,
    error_text,
    loss_cells,
    rates_cells,
    shown_values,
)
from keras_calibration.rendering import html_page, svg

# Number of periods drawn, the latest ones; the table lists all.
_MAX_DRAWN = 92
_ROW = 20
_HEADING = "Are the probabilities in production calibrated?"
_RATIO_CAPTION = (
    "Predicted / observed with its confidence interval; the dashed line at 1 is the target. Grey "
    "band: tolerance. Square: out of bounds."
)
_LOSS_CAPTION = (
    "Calibrated Log Loss (mark) and its bounds (line) if the bias-corrected probabilities were "
    "correct."
)
_METHOD = (
    "Intervals of the ratio are Clopper–Pearson intervals of a binomial variable with the mean and "
    "variance of the predictions. Bounds of the loss are Bernstein bounds; that of a Field-RCE is "
    "a quantile of its distribution if the predictions are right. The probability of a false alert "
    "holds for the whole report: it is divided among periods, losses and fields, and "
    "within each among all intervals (Bonferroni), so a report with more intervals has wider ones. "
    "If labels arrive late, the latest periods seem over-predicted."
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
    """
    html_page.write(page_html(report), path)


def page_html(report: MonitorReport | ClassMonitorReport) -> str:
    """The page as text; names are escaped."""
    if isinstance(report, ClassMonitorReport):
        one, sections = next(iter(report.classes.values())), _class_sections(report)
        method = _METHOD_OF_CLASSES + _METHOD
    else:
        one, sections, method = report, _sections(report), _METHOD
    alerts = report.alerts
    verdict = _verdict(alerts)
    listed = "".join(f"<li>{html.escape(alert)}</li>" for alert in alerts)
    parts = [
        f'<p class="verdict">{verdict}</p>',
        f'<p class="faint">{one.overall.num_rows:,} rows in {len(one.periods)} periods of '
        f"one {report.period}. {html.escape(bounds_sentence(report))}</p>",
        f"<ul>{listed}</ul>" if alerts else "",
        sections,
        f"<section><h2>Method</h2><p>{html.escape(method)}</p></section>",
    ]
    return html_page.page(f"{verdict}: calibration", _HEADING, "\n".join(parts))


def _verdict(alerts: Sequence[str]) -> str:
    return f"Alert: {len(alerts)} out of bounds" if alerts else "No alert"


def _class_sections(report: ClassMonitorReport) -> str:
    """A table of the classes, and the sections of each, shown where there is an alert."""
    parts = [f"<section><h2>Classes</h2>{html_page.table(CLASS_HEADER, class_rows(report))}"]
    for name, of_class in report.classes.items():
        shown = " open" if of_class.is_alert else ""
        parts.append(
            f"<details{shown}><summary>Class {html.escape(name)} against the others. "
            f"{_verdict(of_class.alerts)}</summary>{_sections(of_class)}</details>"
        )
    return "\n".join([*parts, "</section>"])


def _sections(report: MonitorReport) -> str:
    """The checks over time and by field."""
    by_field = [_field_section(report, name, field) for name, field in report.fields.items()]
    return "\n".join([_time_section(report), *by_field])


def _time_section(report: MonitorReport) -> str:
    drawn = report.periods[-_MAX_DRAWN:]
    rows = [[*rates_cells(period.rates), *loss_cells(period.loss)] for period in report.periods]
    head = (report.period, *RATES_HEADER, *LOSS_HEADER)
    return (
        "<section><h2>Over time</h2><h3>Predicted / observed</h3>"
        f"{_ratio_plot([period.rates for period in drawn], report.tolerance)}"
        f"<h3>Calibrated Log Loss</h3>{_loss_plot(drawn)}"
        f"<details><summary>{len(rows)} periods</summary>{html_page.table(head, rows)}</details>"
        "</section>"
    )


def _field_section(report: MonitorReport, name: str, field: FieldReport) -> str:
    shown = shown_values(field.values)
    head = (name, *RATES_HEADER)
    table = html_page.table(head, [rates_cells(rates) for rates in field.values])
    return (
        f"<section><h2>By {html.escape(name)}</h2>"
        f"<p>Field-RCE {html.escape(error_text(field.error))}</p>"
        f"{_ratio_plot(shown[:_MAX_DRAWN], report.tolerance)}"
        f"<details><summary>{_listed(field)}</summary>{table}</details></section>"
    )


def _listed(field: FieldReport) -> str:
    listed = f"{len(field.values):,} values"
    return listed if len(field.values) == field.num_values else f"{listed} of {field.num_values:,}"


def _ratio_plot(cells: Sequence[RateCheck], tolerance: float) -> str:
    """Ratios on a logarithmic scale, where 1/2 and 2 are equally far from 1."""
    most = math.log(4)
    within = [
        math.log(end)
        for rates in cells
        for end in (rates.low, rates.ratio, rates.high)
        if 0 < end < math.inf and abs(math.log(end)) < most
    ]
    margin = math.log(1 + tolerance)
    scale = svg.Scale([-2 * margin, 2 * margin, -0.01, 0.01, *within])
    height = _ROW * len(cells) + 44
    marks = [svg.band(scale(-margin), scale(margin), height)]
    marks += [svg.line(scale(0.0), 8, scale(0.0), height - 32, "zero")]
    for text in ("1/4", "1/2", "2/3", "4/5", "9/10", "1", "10/9", "5/4", "3/2", "2", "4"):
        top, _, bottom = text.partition("/")
        value = int(top) / int(bottom or 1)
        if scale.low <= math.log(value) <= scale.high:
            marks.append(_tick(scale(math.log(value)), f"{value:.3g}", height))
    for place, rates in enumerate(cells):
        y = 20 + _ROW * place
        low, middle, high = (
            scale.clip(math.log(end) if 0 < end < math.inf else math.copysign(99, end - 1))
            for end in (rates.low, rates.ratio, rates.high)
        )
        marks.append(svg.label(shorten(rates.name, 26), y))
        marks.append(svg.line(low, y, high, y, "ink"))
        marks.append(svg.mark("a" if rates.is_off else "b", middle, y))
    return svg.picture(height, marks, _RATIO_CAPTION)


def _tick(x: float, text: str, height: int) -> str:
    place = f'text-anchor="middle" x="{x:.1f}" y="{height - 5}"'
    tick = svg.line(x, height - 24, x, height - 19, "axis")
    return f'{tick}<text class="faint" {place}>{text}</text>'


def _loss_plot(periods: Sequence[PeriodReport]) -> str:
    rows = [
        (period.rates.name, period.loss.low, period.loss.high, period.loss.value)
        for period in periods
        if not math.isnan(period.loss.value)
    ]
    off = {period.rates.name for period in periods if period.loss.is_off}
    return _range_plot(rows, off, _LOSS_CAPTION)


def _range_plot(
    rows: Sequence[tuple[str, float, float, float]], off: set[str], caption: str
) -> str:
    """Rows of (name, low, high, value): a line from low to high and a mark at value."""
    if not rows:
        return '<p class="faint">All labels are equal.</p>'
    scale = svg.Scale([number for row in rows for number in row[1:]])
    height = _ROW * len(rows) + 44
    marks = [scale.axis(height)]
    for place, (name, low, high, value) in enumerate(rows):
        y = 20 + _ROW * place
        marks.append(svg.label(shorten(name, 26), y))
        marks.append(svg.line(scale(low), y, scale(high), y, "ink"))
        marks.append(svg.mark("a" if name in off else "b", scale(value), y))
    return svg.picture(height, marks, caption)
