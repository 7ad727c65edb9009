"""Monitor a model in production: calibration over time and by field, from its scored log."""

from calibration_records.logs.periods import Periods as Periods
from calibration_records.monitoring.class_monitor_report import (
    ClassMonitorReport as ClassMonitorReport,
)
from calibration_records.monitoring.monitor import monitor as monitor
from calibration_records.monitoring.monitor_report import MonitorReport as MonitorReport
