"""Statistics over seeds: functions of numbers, with NumPy and scipy."""

from calibration_records.statistics.accuracy import accuracy_interval as accuracy_interval
from calibration_records.statistics.accuracy import (
    independent_seed_accuracy as independent_seed_accuracy,
)
from calibration_records.statistics.accuracy import metric_accuracy as metric_accuracy
from calibration_records.statistics.accuracy import same_seed_accuracy as same_seed_accuracy
from calibration_records.statistics.bias import bias_share as bias_share
from calibration_records.statistics.bias import surviving_share as surviving_share
from calibration_records.statistics.difference import (
    always_valid_difference as always_valid_difference,
)
from calibration_records.statistics.difference import mean_difference as mean_difference
from calibration_records.statistics.difference import (
    minimum_detectable_effect as minimum_detectable_effect,
)
from calibration_records.statistics.difference import seeds_needed as seeds_needed
from calibration_records.statistics.estimate import Estimate as Estimate
from calibration_records.statistics.posterior import probability_better as probability_better
from calibration_records.statistics.summary import summarize as summarize
