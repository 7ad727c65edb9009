"""Record runs over several seeds and compare pipelines. Raw statistics: `statistics`."""

from calibration_records.comparison.compare import compare as compare
from calibration_records.runs.ledger import Ledger as Ledger
from calibration_records.statistics.accuracy import metric_accuracy as metric_accuracy
from keras_calibration.training.random_seeds import set_seeds as set_seeds
from keras_calibration.training.train import train as train
