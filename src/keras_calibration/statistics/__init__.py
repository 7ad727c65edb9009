"""Statistics over seeds: functions of numbers, with NumPy and scipy."""

from keras_calibration.statistics.accuracy import accuracy_interval as accuracy_interval
from keras_calibration.statistics.accuracy import (
    independent_seed_accuracy as independent_seed_accuracy,
)
from keras_calibration.statistics.accuracy import metric_accuracy as metric_accuracy
from keras_calibration.statistics.accuracy import same_seed_accuracy as same_seed_accuracy
from keras_calibration.statistics.bias import bias_share as bias_share
from keras_calibration.statistics.bias import surviving_share as surviving_share
from keras_calibration.statistics.difference import (
    always_valid_difference as always_valid_difference,
)
from keras_calibration.statistics.difference import mean_difference as mean_difference
from keras_calibration.statistics.difference import (
    minimum_detectable_effect as minimum_detectable_effect,
)
from keras_calibration.statistics.difference import seeds_needed as seeds_needed
from keras_calibration.statistics.estimate import Estimate as Estimate
from keras_calibration.statistics.posterior import probability_better as probability_better
from keras_calibration.statistics.summary import summarize as summarize
