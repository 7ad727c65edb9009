"""MonitorReport: what a scored log says of its probabilities, over time and by field."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Rates:
    """Predicted and observed rate of a period, a segment, or the whole log.

    Args:
        name: Beginning of the period, value of the field, or "all".
        num_rows: Number of rows.
        predicted: Mean predicted probability.
        observed: Share of the labels that are 1.
        low: Lower end of the interval of predicted / observed.
        high: Upper end; infinite where there is no positive label.
        is_off: Whether the whole interval is outside the bounds.
    """

    name: str
    num_rows: int
    predicted: float
    observed: float
    low: float
    high: float
    is_off: bool

    @property
    def ratio(self) -> float:
        """Predicted / observed; infinite where there is no positive label."""
        return self.predicted / self.observed if self.observed else math.inf

    @property
    def excess(self) -> float:
        """How many positive labels more than observed were predicted."""
        return self.num_rows * (self.predicted - self.observed)


@dataclass(frozen=True)
class Loss:
    """The Calibrated Log Loss of a period, and what it would be if the predictions were right.

    Args:
        value: The loss, its bias corrected on the period's own rows; NaN where they are of one
            class.
        expected: Its expectation, the mean entropy of the corrected predictions.
        low: Lower bound.
        high: Upper bound.
        is_off: Whether the loss is outside the bounds.
    """

    value: float
    expected: float
    low: float
    high: float
    is_off: bool


@dataclass(frozen=True)
class FieldError:
    """A Field-RCE beside what chance alone would make it.

    Args:
        field_rce: The field-level relative calibration error.
        noise_floor: Its mean if the predictions were right.
        noise_deviation: Its standard deviation then.
        high: Upper bound.
        is_off: Whether the error is above the bound.
    """

    field_rce: float
    noise_floor: float
    noise_deviation: float
    high: float
    is_off: bool


@dataclass(frozen=True)
class Period:
    """One period of the log.

    Args:
        rates: Predicted and observed rate.
        loss: Calibrated Log Loss.
        fields: Field → its Field-RCE in this period; shown, never a reason for an alert.
    """

    rates: Rates
    loss: Loss
    fields: dict[str, FieldError]


@dataclass(frozen=True)
class Field:
    """One field over the whole log.

    Args:
        error: Its Field-RCE.
        values: Rates of its values, those with most rows first.
    """

    error: FieldError
    values: list[Rates]


@dataclass(frozen=True)
class MonitorReport:
    """What `monitor` found; `str` of it is the text of the command.

    Args:
        period: "hour", "day", "week" or "month".
        confidence: Probability that right probabilities raise no alert.
        tolerance: Relative error that does not matter.
        overall: Rates of the whole log.
        periods: The periods that have rows, in time.
        fields: Field → what was found of it.
    """

    period: str
    confidence: float
    tolerance: float
    overall: Rates
    periods: list[Period]
    fields: dict[str, Field]

    @property
    def alerts(self) -> list[str]:
        """A sentence for everything that left its bounds; none where all is well."""
        found = [f"all rows: {_rates_sentence(self.overall)}"] if self.overall.is_off else []
        for period in self.periods:
            if period.rates.is_off:
                found.append(f"{period.rates.name}: {_rates_sentence(period.rates)}")
            if period.loss.is_off:
                found.append(f"{period.rates.name}: {_loss_sentence(period.loss)}")
        for name, field in self.fields.items():
            if field.error.is_off:
                found.append(
                    f"{name}: Field-RCE {field.error.field_rce:.4g} is above {field.error.high:.4g}"
                )
            found += [
                f"{name} {rates.name}: {_rates_sentence(rates)}"
                for rates in field.values
                if rates.is_off
            ]
        return found

    @property
    def is_alert(self) -> bool:
        """Whether anything left its bounds."""
        return bool(self.alerts)

    def to_dict(self) -> dict[str, Any]:
        """Everything in JSON values; what is not finite is None."""
        values: dict[str, Any] = _finite(dataclasses.asdict(self))
        return {"is_alert": self.is_alert, "alerts": self.alerts, **values}

    def __str__(self) -> str:
        # Here, since text needs the report's classes.
        from keras_calibration.rendering.monitor_text import monitor_text

        return monitor_text(self)


def _rates_sentence(rates: Rates) -> str:
    side = "much" if rates.low > 1 else "little"
    times = "infinitely" if not rates.observed else f"{rates.ratio:.3g} times"
    return (
        f"predicts too {side}, {rates.predicted:.4g} against {rates.observed:.4g} observed "
        f"({times}, at {'least' if rates.low > 1 else 'most'} "
        f"{rates.low if rates.low > 1 else rates.high:.3g} times), {rates.num_rows:,} rows"
    )


def _loss_sentence(loss: Loss) -> str:
    side, bound = ("above", loss.high) if loss.value > loss.high else ("below", loss.low)
    return (
        f"Calibrated Log Loss {loss.value:.4g} is {side} {bound:.4g}; right probabilities would "
        f"have {loss.expected:.4g}"
    )


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_finite(part) for part in value]
    return value
