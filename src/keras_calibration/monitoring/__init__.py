"""Models in production: calibration over time and by field, from the log of what they predicted."""

from keras_calibration.monitoring.monitor import monitor as monitor
from keras_calibration.monitoring.monitor_page import write_page as write_page
from keras_calibration.monitoring.monitor_report import MonitorReport as MonitorReport
