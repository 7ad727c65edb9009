"""The report of `monitor` for K classes: the report of each class against the others."""

from dataclasses import dataclass
from typing import Any

from calibration_records._text import ShownAsText
from calibration_records.monitoring.monitor_report import MonitorReport
from calibration_records.monitoring.monitor_text import class_monitor_text


@dataclass(frozen=True)
class ClassMonitorReport(ShownAsText):
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

    period: str
    false_alarms_per_year: float
    tolerance: float
    classes: dict[str, MonitorReport]

    @property
    def alerts(self) -> list[str]:
        """A sentence for each check that is out of bounds, with its class."""
        return [
            f"class {name}, {alert}"
            for name, report in self.classes.items()
            for alert in report.alerts
        ]

    @property
    def is_alert(self) -> bool:
        """Whether any check is out of bounds."""
        return any(report.is_alert for report in self.classes.values())

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON values; `None` where a value is not finite."""
        return {
            "is_alert": self.is_alert,
            "alerts": self.alerts,
            "period": self.period,
            "false_alarms_per_year": self.false_alarms_per_year,
            "tolerance": self.tolerance,
            "classes": {name: report.to_dict() for name, report in self.classes.items()},
        }

    def __str__(self) -> str:
        return class_monitor_text(self)
