"""Logs of scored rows of any size, and their sums, computed where the rows are."""

from calibration_records.logs import LogSums, Periods, Query, ScoredLog, log_sums
from calibration_records.monitoring.monitor_sums import monitor_sums

__all__ = ["LogSums", "Periods", "Query", "ScoredLog", "log_sums", "monitor_sums"]
__dir__ = __all__.copy
