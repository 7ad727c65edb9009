"""Monitor a model in production: calibration over time and by field, from its scored log."""

from calibration_records.logs.periods import Periods
from calibration_records.monitoring.monitor import monitor
from calibration_records.monitoring.monitor_report import MonitorReport
from calibration_records.monitoring.monitor_sums import monitor_sums

__all__ = ["MonitorReport", "Periods", "monitor", "monitor_sums"]
__dir__ = __all__.copy
