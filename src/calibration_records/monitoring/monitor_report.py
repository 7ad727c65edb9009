"""The reports of `monitor`: checks of a scored log, over time and by field, and by class."""

from __future__ import annotations

import abc
import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from calibration_records._text import ShownAsText
from calibration_records.monitoring.monitor_text import (
    change_text,
    class_tables,
    summary,
    tables,
    years_text,
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
        is_off: Whether that is rare enough for an alert, `years >= 1 / false_alarms_per_year`.
    """

    since: str
    num_rows: int
    predicted: float
    observed: float
    years: float
    is_off: bool

    @property
    def change(self) -> float:
        """Observed / predicted since then, less 1; infinite where 0 is predicted."""
        return self.observed / self.predicted - 1 if self.predicted else math.inf


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

    @property
    def ratio(self) -> float:
        """Predicted / observed; infinite without positive labels."""
        return self.predicted / self.observed if self.observed else math.inf

    @property
    def excess(self) -> float:
        """Number of positives predicted beyond those observed."""
        return self.num_rows * (self.predicted - self.observed)


@dataclass(frozen=True)
class LossCheck:
    """The Calibrated Log Loss of a period, with its value and bounds under right predictions.

    Args:
        value: The loss, with the bias fitted on the period's own rows; NaN if all labels are equal.
        expected: Expected loss under right predictions: the mean entropy, bias corrected.
        low: Lower bound.
        high: Upper bound.
        is_off: Whether the loss is out of bounds.
    """

    value: float
    expected: float
    low: float
    high: float
    is_off: bool


@dataclass(frozen=True)
class FieldErrorCheck:
    """A Field-RCE with its distribution under right predictions.

    Args:
        field_rce: The field-level relative calibration error.
        noise_floor: Its mean under right predictions.
        noise_deviation: Its standard deviation under right predictions.
        high: Upper bound.
        is_off: Whether the error is above the bound.
    """

    field_rce: float
    noise_floor: float
    noise_deviation: float
    high: float
    is_off: bool


@dataclass(frozen=True)
class PeriodReport:
    """The checks of one period.

    Args:
        rates: Predicted and observed rate.
        loss: Calibrated Log Loss.
        rolling_loss: Mean log loss of `σ(l + c)`, where the bias c is that of the period before: of
            a model that is corrected once a period. None for the first.
    """

    rates: RateCheck
    loss: LossCheck
    rolling_loss: float | None


@dataclass(frozen=True)
class FieldReport:
    """The checks of one field over the whole log.

    Args:
        error: Its Field-RCE.
        values: Rates of its values, those with most rows first; of more than 10,000, the 10,000
            with most rows and all that are off.
        num_values: Number of its values.
    """

    error: FieldErrorCheck
    values: list[RateCheck]
    num_values: int


@dataclass(frozen=True)
class Report(ShownAsText, abc.ABC):
    """What the reports of labels 0 and 1 and of K classes have; see these."""

    period: str
    false_alarms_per_year: float
    tolerance: float

    @property
    @abc.abstractmethod
    def alerts(self) -> list[str]:
        """A sentence for each check that is out of bounds."""

    @property
    def is_alert(self) -> bool:
        """Whether any check is out of bounds."""
        return bool(self.alerts)

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON values; `None` where a value is not finite."""
        return {"is_alert": self.is_alert, "alerts": self.alerts, **_json(vars(self))}

    @abc.abstractmethod
    def _tables(self) -> list[str]:
        """The lines of the text before the alerts."""

    def __str__(self) -> str:
        return "\n".join([*self._tables(), *summary(self)])


@dataclass(frozen=True)
class MonitorReport(Report):
    """The result of `monitor`; printing it gives the text of the command.

    Args:
        period: "hour", "day", "week", "month" or "year".
        false_alarms_per_year: Probability that right predictions raise an alert in a year.
        tolerance: Relative error that does not matter.
        overall: Rates of the whole log.
        periods: The periods that have rows, in ascending order.
        fields: Field name → its checks.
        observed_until: If labels come late, the time until which they are in the log: predictions
            are then those of the labels so far. None otherwise.
    """

    overall: RateCheck
    periods: list[PeriodReport]
    fields: dict[str, FieldReport]
    observed_until: str | None = None

    @property
    def alerts(self) -> list[str]:
        """A sentence for each check that is out of bounds."""
        found = [f"all rows: {_rates_sentence(self.overall)}"] if self.overall.is_off else []
        for period in self.periods:
            if period.rates.is_off:
                found.append(f"{period.rates.name}: {_rates_sentence(period.rates)}")
            if period.loss.is_off:
                found.append(f"{period.rates.name}: {_loss_sentence(period.loss)}")
        for name, field in self.fields.items():
            if field.error.is_off:
                found.append(
                    f"{name}: Field-RCE {field.error.field_rce:.4g} is above its bound "
                    f"{field.error.high:.4g}"
                )
            found += [
                f"{name} {rates.name}: {_rates_sentence(rates)}"
                for rates in field.values
                if rates.is_off
            ]
        return found

    def _tables(self) -> list[str]:
        return tables(self)


@dataclass(frozen=True)
class ClassMonitorReport(Report):
    """The result of `monitor` for K classes; printing it gives the text of the command.

    The labels of a class are 1 for its rows and 0 for all others. If the probabilities of all
    classes are right, those of each are. `false_alarms_per_year` is divided equally among the
    classes: the reports in `classes` have the share of a class.

    Args:
        period: "hour", "day", "week", "month" or "year".
        false_alarms_per_year: Probability that right predictions raise an alert in a year, in all
            classes together.
        tolerance: Relative error that does not matter.
        classes: Class → its report.
    """

    classes: dict[str, MonitorReport]

    @property
    def alerts(self) -> list[str]:
        """A sentence for each check that is out of bounds, with its class."""
        return [
            f"class {name}, {alert}"
            for name, report in self.classes.items()
            for alert in report.alerts
        ]

    def _tables(self) -> list[str]:
        return class_tables(self)


def _rates_sentence(rates: RateCheck) -> str:
    if rates.shift is not None:
        return _shift_sentence(rates.shift)
    verb = "over-predicts" if rates.low > 1 else "under-predicts"
    times = "infinite" if not rates.observed else f"{rates.ratio:.3g}"
    return (
        f"{verb}: {rates.predicted:.4g} predicted, {rates.observed:.4g} observed (ratio {times}, "
        f"at {'least' if rates.low > 1 else 'most'} "
        f"{rates.low if rates.low > 1 else rates.high:.3g}), {rates.num_rows:,} rows"
    )


def _shift_sentence(shift: Shift) -> str:
    verb = "over-predicts" if shift.change < 0 else "under-predicts"
    return (
        f"{verb} since {shift.since}: {shift.predicted:.4g} predicted, {shift.observed:.4g} "
        f"observed ({change_text(shift)}), {shift.num_rows:,} rows; by chance {years_text(shift)}"
    )


def _loss_sentence(loss: LossCheck) -> str:
    side, bound = ("above", loss.high) if loss.value > loss.high else ("below", loss.low)
    return (
        f"Calibrated Log Loss {loss.value:.4g} is {side} {bound:.4g}; correct probabilities would "
        f"give {loss.expected:.4g}"
    )


def _json(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _json(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_json(part) for part in value]
    if isinstance(value, Report):
        return value.to_dict()
    return _json(vars(value)) if dataclasses.is_dataclass(value) else value
