"""MonitorReport: the checks of a scored log, over time and by field."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from calibration_records._figures import decimals_of, significant, to_error
from calibration_records._text import ShownAsText, as_json, counted, grid, shorten, wrap

_MAX_NAME = 30
_RATES_HEADER = ("rows", "predicted", "observed", "ratio", "interval", "")
_LOSS_HEADER = ("rolling", "cal. loss", "bounds", "")


@dataclass(frozen=True)
class RateCheck:
    """Predicted and observed rate of a period, a field value or the whole log.

    Args:
        name: Start of the period, field value, or "all".
        num_rows: Number of rows.
        predicted: Mean predicted probability.
        observed: Share of positive labels.
        low: Lower end of the confidence interval of predicted / observed.
        high: Upper end; infinite without positive labels.
        is_off: Whether there is an alert. For a period: the whole interval is out of bounds. For a
            field value or the whole log: it has shifted.
        since: Rates since the most likely start of a shift, for a field value or the whole log. Its
            `name` is this start: a period, for a field value at least a week. None for a period.
        years: Evidence for this shift, valid however often you look. With right predictions, all
            checks of the report together reach this evidence less often than once in so many years
            of log.
    """

    name: str
    num_rows: int
    predicted: float
    observed: float
    low: float
    high: float
    is_off: bool
    since: RateCheck | None = None
    years: float = 0.0

    def _format_cells(self) -> list[str]:
        ratio = self.predicted / self.observed if self.observed else math.inf
        return [
            shorten(self.name, _MAX_NAME),
            f"{self.num_rows:,}",
            significant(self.predicted, 4),
            significant(self.observed, 4),
            _format_number(ratio, _count_decimals(self.low, self.high, 3)),
            _format_interval(self.low, self.high),
            "!" * self.is_off,
        ]

    def _describe_rate(self, report: MonitorReport) -> str:
        rows = self.since or self
        since = "" if self.since is None else f" since {rows.name}"
        # Periods have an interval that decides, shifts have evidence in years.
        allowed = _format_interval(1 / (1 + report.tolerance), 1 + report.tolerance)
        found = _format_interval(self.low, self.high)
        why = f"interval of the ratio {found}, all outside {allowed}"
        if self.since is not None:
            why = (
                "right predictions would show this at most once in "
                f"{_format_years(self.years)} of log"
            )
        verb = "over" if rows.predicted > rows.observed else "under"
        return (
            f"{self.name}: {verb}-predicts{since}: {significant(rows.predicted, 4)} predicted, "
            f"{significant(rows.observed, 4)} observed, {rows.num_rows:,} rows; {why}"
        )


@dataclass(frozen=True)
class PeriodReport(RateCheck):
    """The checks of one period: its rates, and its Calibrated Log Loss.

    Args:
        loss: The loss, with the bias fitted on the period's own rows; NaN if all labels are equal.
        expected_loss: The mean of the loss under right predictions: the mean entropy after bias
            correction.
        low_loss: Lower bound of the loss.
        high_loss: Upper bound.
        is_loss_off: Whether the loss is out of bounds.
        rolling_loss: Mean log loss of `σ(l + c)` with the bias c of the period before: the loss of
            a model whose bias is corrected once a period. None for the first period.
    """

    loss: float = math.nan
    expected_loss: float = math.nan
    low_loss: float = math.nan
    high_loss: float = math.nan
    is_loss_off: bool = False
    rolling_loss: float | None = None

    def _format_loss_cells(self) -> list[str]:
        rolling = "" if self.rolling_loss is None else self._format_loss(self.rolling_loss)
        if math.isnan(self.loss):
            return [rolling, "", "", ""]
        return [rolling, self._format_loss(self.loss), self._bounds, "!" * self.is_loss_off]

    @property
    def _bounds(self) -> str:
        return f"{self._format_loss(self.low_loss)}–{self._format_loss(self.high_loss)}"

    def _format_loss(self, loss: float) -> str:
        return f"{loss:.{_count_decimals(self.low_loss, self.high_loss, 4)}f}"

    def _describe_loss(self) -> str:
        expected = self._format_loss(self.expected_loss)
        return (
            f"{self.name}: Calibrated Log Loss {self._format_loss(self.loss)}, not within "
            f"{self._bounds}; right predictions would give about {expected}"
        )


@dataclass(frozen=True)
class FieldReport:
    """The checks of one field over the whole log.

    Args:
        field_rce: The field-level relative calibration error.
        noise_floor: The mean of the error under right predictions.
        noise_deviation: The standard deviation of the error under right predictions.
        high: Upper bound.
        is_off: Whether the error is above the bound.
        values: Rates of the field's values, in order of their rows, most rows first. With more than
            10,000 values, the list has the 10,000 with most rows and all that are off.
        num_values: Number of its values.
    """

    field_rce: float
    noise_floor: float
    noise_deviation: float
    high: float
    is_off: bool
    values: list[RateCheck]
    num_values: int

    def _format_error(self, form: str) -> str:
        """The figures in this form, to the digits that chance leaves."""
        names = ("field_rce", "noise_floor", "noise_deviation", "high")
        return form.format(**{n: to_error(getattr(self, n), self.noise_deviation) for n in names})


@dataclass(frozen=True)
class MonitorReport(ShownAsText):
    """The result of `monitor`; printing it gives the text of the command.

    Args:
        period: "hour", "day", "week", "month" or "year".
        false_alarms_per_year: Probability that right predictions raise an alert in a year.
        tolerance: Relative error that does not matter.
        overall: Rates of the whole log.
        periods: The periods that have rows, in ascending order.
        fields: Field name → its checks.
    """

    period: str
    false_alarms_per_year: float
    tolerance: float
    overall: RateCheck
    periods: list[PeriodReport]
    fields: dict[str, FieldReport]

    @property
    def alerts(self) -> list[str]:
        """A sentence for each check that is out of bounds."""
        alerts = [self.overall._describe_rate(self)] if self.overall.is_off else []
        for period in self.periods:
            alerts += [period._describe_rate(self)] * period.is_off
            alerts += [period._describe_loss()] * period.is_loss_off
        for name, field in self.fields.items():
            sentence = field._format_error(
                "Field-RCE {field_rce}, above its bound {high}; right predictions would give about "
                "{noise_floor}"
            )
            alerts += [f"{name}: {sentence}"] * field.is_off
            alerts += [
                f"{name} {value._describe_rate(self)}" for value in field.values if value.is_off
            ]
        return alerts

    @property
    def is_alert(self) -> bool:
        """Whether any check is out of bounds."""
        return bool(self.alerts)

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON values; `None` for values that are not finite."""
        return {"is_alert": self.is_alert, "alerts": self.alerts, **as_json(self)}

    def __str__(self) -> str:
        alerts, years = self.alerts, _format_years(1 / self.false_alarms_per_year)
        checks = f"ALERT: {counted(len(alerts), 'check')} out of bounds."
        rule = (
            f"Right predictions raise an alert at most once in {years}, all checks together, with "
            f"a look after each {self.period}. Relative errors up to {100 * self.tolerance:.3g} % "
            "do not matter. Times are UTC."
        )
        lines = [
            checks if alerts else "No alert.",
            *(line for alert in alerts for line in wrap(f"! {alert}")),
            *wrap(rule),
        ]
        periods = [
            [*period._format_cells(), *period._format_loss_cells()] for period in self.periods
        ]
        total = [*self.overall._format_cells(), *[""] * len(_LOSS_HEADER)]
        lines += ["", *grid([[self.period, *_RATES_HEADER, *_LOSS_HEADER], *periods, total])]
        for name, field in self.fields.items():
            # Ten values suffice to see the field; alerts must never be hidden.
            rows = [v._format_cells() for n, v in enumerate(field.values) if n < 10 or v.is_off]
            lines += ["", *grid([[shorten(name, _MAX_NAME), *_RATES_HEADER], *rows])]
            if hidden := field.num_values - len(rows):
                lines.append(f"and {hidden:,} more values without a shift")
            line = (
                "Field-RCE {field_rce}; noise floor {noise_floor} ± {noise_deviation}, bound {high}"
            )
            lines.append(field._format_error(line) + " !" * field.is_off)
        return "\n".join(lines)


def _format_years(years: float) -> str:
    """The number of years, at most a million, beyond which it says nothing more."""
    return f"{min(years, 1e6):{',.0f' if years >= 10 else '#.2g'}} years"


def _count_decimals(low: float, high: float, least: int) -> int:
    """The decimals of an interval: more than usual if it is narrow, as with many rows.

    At most nine: all probabilities of 0 have ratios that are tiny numbers.
    """
    return max(least, min(decimals_of((high - low) / 2), 9))


def _format_interval(low: float, high: float) -> str:
    places = _count_decimals(low, high, 3)
    return f"{_format_number(low, places)}–{_format_number(high, places)}"


def _format_number(value: float, places: int) -> str:
    return f"{value:.{places}f}" if value < 100 else significant(value, 3)
