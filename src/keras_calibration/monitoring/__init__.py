"""Monitor a model in production: calibration over time and by field, from its scored log."""

from keras_calibration.logs.periods import Periods as Periods
from keras_calibration.monitoring.class_monitor_report import (
    ClassMonitorReport as ClassMonitorReport,
)
from keras_calibration.monitoring.monitor import monitor as monitor
from keras_calibration.monitoring.monitor_report import MonitorReport as MonitorReport
