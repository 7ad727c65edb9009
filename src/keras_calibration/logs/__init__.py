"""Logs of scored rows, of any size: sums by the engine that is where the rows are."""

from keras_calibration.logs.compute import log_sums as log_sums
from keras_calibration.logs.log_sums import LogSums as LogSums
from keras_calibration.logs.periods import Periods as Periods
from keras_calibration.logs.query import Query as Query
from keras_calibration.logs.scored_log import ScoredLog as ScoredLog
