"""Logs of scored rows, of any size: sums by the engine that is where the rows are."""

from calibration_records.logs.compute import log_sums
from calibration_records.logs.log_sums import LogSums
from calibration_records.logs.periods import Periods
from calibration_records.logs.query import Query
from calibration_records.logs.scored_log import ScoredLog

__all__ = [
    "LogSums",
    "Periods",
    "Query",
    "ScoredLog",
    "log_sums",
]
__dir__ = __all__.copy
