"""Statistics over seeds: functions of numbers, with NumPy and scipy."""

from calibration_records.statistics.accuracy import (
    accuracy_interval,
    independent_seed_accuracy,
    metric_accuracy,
    same_seed_accuracy,
)
from calibration_records.statistics.bias import bias_share, surviving_share
from calibration_records.statistics.difference import (
    always_valid_difference,
    mean_difference,
    seeds_needed,
    smallest_detectable_effect,
)
from calibration_records.statistics.estimate import Estimate
from calibration_records.statistics.posterior import probability_better
from calibration_records.statistics.summary import summarize

__all__ = [
    "Estimate",
    "accuracy_interval",
    "always_valid_difference",
    "bias_share",
    "independent_seed_accuracy",
    "mean_difference",
    "metric_accuracy",
    "probability_better",
    "same_seed_accuracy",
    "seeds_needed",
    "smallest_detectable_effect",
    "summarize",
    "surviving_share",
]
__dir__ = __all__.copy
