"""Logs of scored rows, of any size: sums by the engine that is where the rows are."""

from calibration_records.logs.compute import log_sums as log_sums
from calibration_records.logs.log_sums import LogSums as LogSums
from calibration_records.logs.periods import Periods as Periods
from calibration_records.logs.query import Query as Query
from calibration_records.logs.scored_log import ScoredLog as ScoredLog
