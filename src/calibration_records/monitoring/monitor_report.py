"""MonitorReport: the checks of a scored log, over time and by field."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from calibration_records._text import ShownAsText, grid, shorten, wrap

_MAX_NAME = 30
# Field values shown: this many, and all that are out of bounds.
_NUM_SHOWN = 10
_RATES_HEADER = ("rows", "predicted", "observed", "ratio", "interval", "")
_LOSS_HEADER = ("rolling", "cal. loss", "bounds", "")
_ADVICE = (
    "To mend a shift, find its cause, or refresh the calibration on the rows since its start. Then "
    "monitor the rows from there on."
)


@dataclass(frozen=True)
class Shift:
    """The evidence that predictions are off since some time, valid however often it is looked at.

    Args:
        since: The most likely start: a period for the whole log; for a field value, a week, or a
            period where these are longer.
        num_rows: Number of rows since then.
        predicted: Their mean predicted probability.
        observed: Their share of positive labels.
        years: Strength of the evidence. Right predictions reach it less often than once in so many
            years, in all checks of the report together.
    """

    since: str
    num_rows: int
    predicted: float
    observed: float
    years: float


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
        is_off: Whether there is an alert. Of a period: the whole interval is out of bounds. Of a
            field value or the whole log: it has shifted.
        shift: Evidence for a shift of the field value or the whole log; None for a period.
    """

    name: str
    num_rows: int
    predicted: float
    observed: float
    low: float
    high: float
    is_off: bool
    shift: Shift | None = None

    def _cells(self) -> list[str]:
        ratio = self.predicted / self.observed if self.observed else math.inf
        rates = [f"{self.num_rows:,}", f"{self.predicted:.4g}", f"{self.observed:.4g}"]
        interval = f"{_number(self.low)}–{_number(self.high)}"
        name = shorten(self.name, _MAX_NAME)
        return [name, *rates, _number(ratio), interval, "!" * self.is_off]

    def _sentence(self) -> str:
        found, what = self.shift or self, ""
        if self.shift is not None:
            what = f" since {self.shift.since}"
            end = f"; by chance less than once in {float(f'{self.shift.years:.2g}'):,g} years"
            if self.shift.years >= 1e6:
                end = "; by chance less than once in a million years"
        elif self.low > 1:
            end = f"; predicted / observed is at least {self.low:.3g}"
        else:
            end = f"; predicted / observed is at most {self.high:.3g}"
        verb = "over" if found.predicted > found.observed else "under"
        rates = f"{found.predicted:.4g} predicted, {found.observed:.4g} observed"
        return f"{verb}-predicts{what}: {rates}, {found.num_rows:,} rows{end}"


@dataclass(frozen=True)
class PeriodReport(RateCheck):
    """The checks of one period: its rates, and its Calibrated Log Loss.

    Args:
        loss: The loss, with the bias fitted on the period's own rows; NaN if all labels are equal.
        expected_loss: Expected loss under right predictions: the mean entropy, bias corrected.
        low_loss: Lower bound of the loss.
        high_loss: Upper bound.
        is_loss_off: Whether the loss is out of bounds.
        rolling_loss: Mean log loss of `σ(l + c)`, where the bias c is that of the period before: of
            a model that is corrected once a period. None for the first.
    """

    loss: float = math.nan
    expected_loss: float = math.nan
    low_loss: float = math.nan
    high_loss: float = math.nan
    is_loss_off: bool = False
    rolling_loss: float | None = None

    def _loss_cells(self) -> list[str]:
        rolling = "" if self.rolling_loss is None else f"{self.rolling_loss:.4f}"
        if math.isnan(self.loss):
            return [rolling, "", "", ""]
        bounds = f"{self.low_loss:.4f}–{self.high_loss:.4f}"
        return [rolling, f"{self.loss:.4f}", bounds, "!" * self.is_loss_off]


@dataclass(frozen=True)
class FieldReport:
    """The checks of one field over the whole log.

    Args:
        field_rce: Its field-level relative calibration error.
        noise_floor: The mean of that under right predictions.
        noise_deviation: Its standard deviation under right predictions.
        high: Upper bound.
        is_off: Whether the error is above the bound.
        values: Rates of its values, those with most rows first; of more than 10,000, the 10,000
            with most rows and all that are off.
        num_values: Number of its values.
    """

    field_rce: float
    noise_floor: float
    noise_deviation: float
    high: float
    is_off: bool
    values: list[RateCheck]
    num_values: int


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
        found = [f"all rows: {self.overall._sentence()}"] if self.overall.is_off else []
        for period in self.periods:
            if period.is_off:
                found.append(f"{period.name}: {period._sentence()}")
            if period.is_loss_off:
                found.append(
                    f"{period.name}: Calibrated Log Loss {period.loss:.4g} is not within "
                    f"{period.low_loss:.4g}–{period.high_loss:.4g}; correct probabilities would "
                    f"give {period.expected_loss:.4g}"
                )
        for name, field in self.fields.items():
            if field.is_off:
                error = f"{field.field_rce:.4g} is above its bound {field.high:.4g}"
                found.append(f"{name}: Field-RCE {error}")
            values = [value for value in field.values if value.is_off]
            found += [f"{name} {value.name}: {value._sentence()}" for value in values]
        return found

    @property
    def is_alert(self) -> bool:
        """Whether any check is out of bounds."""
        return bool(self.alerts)

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON values; `None` where a value is not finite."""
        values = _json(dataclasses.asdict(self))
        return {"is_alert": self.is_alert, "alerts": self.alerts, **values}

    def __str__(self) -> str:
        periods = [[*each._cells(), *each._loss_cells()] for each in self.periods]
        total = [*self.overall._cells(), *[""] * len(_LOSS_HEADER)]
        lines = [*grid([[self.period, *_RATES_HEADER, *_LOSS_HEADER], *periods, total]), ""]
        for name, field in self.fields.items():
            rows = [v._cells() for n, v in enumerate(field.values) if n < _NUM_SHOWN or v.is_off]
            lines += grid([[shorten(name, _MAX_NAME), *_RATES_HEADER], *rows])
            hidden = field.num_values - len(rows)
            lines += [f"and {hidden:,} more values without a shift"] * (hidden > 0)
            noise = f"noise floor {field.noise_floor:.4g} ± {field.noise_deviation:.2g}"
            error = f"Field-RCE {field.field_rce:.4g}; {noise}, bound {field.high:.4g}"
            lines += [error + " !" * field.is_off, ""]
        lines += wrap(
            f"Bounds: relative errors up to {self.tolerance:.2g} do not matter. If all "
            "probabilities are correct, reports after each period raise an alert in a year with a "
            f"probability of at most {self.false_alarms_per_year:.3g}. Times are in UTC."
        )
        if not (alerts := self.alerts):
            return "\n".join([*lines, "No alert."])
        found = [part for alert in alerts for part in wrap(f"! {alert}")]
        return "\n".join([*lines, f"ALERT, {len(alerts)} out of bounds:", *found, *wrap(_ADVICE)])


def _number(value: float) -> str:
    return f"{value:.3f}" if value < 100 else f"{value:.3g}"


def _json(value: Any) -> Any:
    """Values with None for numbers that JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _json(part) for name, part in value.items()}
    return [_json(part) for part in value] if isinstance(value, list) else value
