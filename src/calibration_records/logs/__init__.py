"""Logs of scored rows of any size, and their sums, computed where the rows are."""

from calibration_records.logs.compute import log_sums
from calibration_records.logs.periods import Periods
from calibration_records.logs.query import Query
from calibration_records.logs.scored_log import ScoredLog
from calibration_records.logs.sums import LogSums

__all__ = ["LogSums", "Periods", "Query", "ScoredLog", "log_sums"]
__dir__ = __all__.copy
