"""Statistics over seeds: functions of numbers, with NumPy and scipy."""

from calibration_records.statistics import (
    Estimate,
    accuracy_interval,
    always_valid_difference,
    bias_share,
    independent_seed_accuracy,
    mean_difference,
    metric_accuracy,
    minimum_detectable_effect,
    probability_better,
    same_seed_accuracy,
    seeds_needed,
    summarize,
    surviving_share,
)

__all__ = [
    "Estimate",
    "accuracy_interval",
    "always_valid_difference",
    "bias_share",
    "independent_seed_accuracy",
    "mean_difference",
    "metric_accuracy",
    "minimum_detectable_effect",
    "probability_better",
    "same_seed_accuracy",
    "seeds_needed",
    "summarize",
    "surviving_share",
]
__dir__ = __all__.copy
