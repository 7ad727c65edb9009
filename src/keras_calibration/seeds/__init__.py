"""Train one pipeline under many seeds, record the runs, and compare pipelines."""

from calibration_records.comparison.compare import compare
from calibration_records.runs.ledger import Ledger
from calibration_records.statistics.accuracy import metric_accuracy
from keras_calibration.seeds.random_seeds import set_seeds
from keras_calibration.seeds.train import train

__all__ = ["Ledger", "compare", "metric_accuracy", "set_seeds", "train"]
__dir__ = __all__.copy
