"""A monitor's report as text of at most 100 columns."""

import math

from keras_calibration.monitoring.monitor_report import FieldError, Loss, MonitorReport, Rates
from keras_calibration.rendering.text import grid, shorten, wrap

_MAX_NAME = 30
# The values of a field that are shown: these many, and all that are off.
NUM_VALUES_SHOWN = 10
RATES_HEADER = ("rows", "predicted", "observed", "ratio", "interval", "")
LOSS_HEADER = ("C. log loss", "bounds", "")


def monitor_text(report: MonitorReport) -> str:
    """The report for a terminal: periods, fields, and last the alerts.

    Args:
        report: To be shown.
    """
    periods = [[*rates_cells(period.rates), *loss_cells(period.loss)] for period in report.periods]
    header = [report.period, *RATES_HEADER, *LOSS_HEADER]
    total = [*rates_cells(report.overall), "", "", ""]
    lines = [*grid([header, *periods, total]), ""]
    for name, field in report.fields.items():
        shown = shown_values(field.values)
        lines += grid([[shorten(name, _MAX_NAME), *RATES_HEADER], *map(rates_cells, shown)])
        hidden = len(field.values) - len(shown)
        lines += [f"and {hidden:,} more values, within their bounds"] * (hidden > 0)
        lines += [f"Field-RCE {error_text(field.error)}", ""]
    lines += wrap(bounds_sentence(report))
    alerts = report.alerts
    if not alerts:
        return "\n".join([*lines, "No alert."])
    found = [part for alert in alerts for part in wrap(f"! {alert}")]
    return "\n".join([*lines, f"ALERT, {len(alerts)} out of bounds:", *found])


def rates_cells(rates: Rates) -> list[str]:
    """The cells of a row of rates."""
    return [
        shorten(rates.name, _MAX_NAME),
        f"{rates.num_rows:,}",
        f"{rates.predicted:.4g}",
        f"{rates.observed:.4g}",
        number(rates.ratio),
        f"{number(rates.low)}–{number(rates.high)}",
        "!" if rates.is_off else "",
    ]


def loss_cells(loss: Loss) -> list[str]:
    """The cells of a Calibrated Log Loss; empty where it cannot be told."""
    if math.isnan(loss.value):
        return ["", "", ""]
    return [f"{loss.value:.4f}", f"{loss.low:.4f}–{loss.high:.4f}", "!" if loss.is_off else ""]


def error_text(error: FieldError) -> str:
    """A Field-RCE beside its noise floor."""
    flag = " !" if error.is_off else ""
    return (
        f"{error.field_rce:.4g}; chance alone {error.noise_floor:.4g} ± "
        f"{error.noise_deviation:.2g}, bound {error.high:.4g}{flag}"
    )


def bounds_sentence(report: MonitorReport) -> str:
    """What the bounds are."""
    return (
        f"Bounds: an error of {report.tolerance:.2g} of the rate or the loss does not matter; "
        f"right probabilities raise no alert in {report.confidence:.4g} of all logs, all intervals "
        "together."
    )


def shown_values(values: list[Rates]) -> list[Rates]:
    """The values of a field that have most rows, and those that are off."""
    return [rates for place, rates in enumerate(values) if place < NUM_VALUES_SHOWN or rates.is_off]


def number(value: float) -> str:
    """A ratio."""
    return f"{value:.3f}" if value < 100 else f"{value:.3g}"
