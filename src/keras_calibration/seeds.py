"""Record runs over several seeds and compare pipelines. Raw statistics: `statistics`."""

from keras_calibration.comparison.compare import compare as compare
from keras_calibration.ledger.ledger import Ledger as Ledger
from keras_calibration.ledger.random_seeds import set_seeds as set_seeds
from keras_calibration.statistics.accuracy import metric_accuracy as metric_accuracy
from keras_calibration.training.train import train as train
