"""Evidence over seeds: the ledger of runs, the statistics over them and the verdict."""

from keras_calibration.seeds.accuracy import accuracy_interval as accuracy_interval
from keras_calibration.seeds.accuracy import detection_gain as detection_gain
from keras_calibration.seeds.accuracy import independent_seed_accuracy as independent_seed_accuracy
from keras_calibration.seeds.accuracy import metric_accuracy as metric_accuracy
from keras_calibration.seeds.accuracy import same_seed_accuracy as same_seed_accuracy
from keras_calibration.seeds.compare import compare as compare
from keras_calibration.seeds.comparison import Comparison as Comparison
from keras_calibration.seeds.difference import mean_difference as mean_difference
from keras_calibration.seeds.difference import (
    minimum_detectable_effect as minimum_detectable_effect,
)
from keras_calibration.seeds.difference import seeds_needed as seeds_needed
from keras_calibration.seeds.estimate import Estimate as Estimate
from keras_calibration.seeds.family_noise import FamilyNoise as FamilyNoise
from keras_calibration.seeds.family_noise import moderated_difference as moderated_difference
from keras_calibration.seeds.hybrid import hybrid_loss as hybrid_loss
from keras_calibration.seeds.imports import import_csv as import_csv
from keras_calibration.seeds.imports import import_mlflow as import_mlflow
from keras_calibration.seeds.imports import import_tensorboard as import_tensorboard
from keras_calibration.seeds.ledger import Ledger as Ledger
from keras_calibration.seeds.posterior import probability_better as probability_better
from keras_calibration.seeds.random_seeds import set_dropout_seed as set_dropout_seed
from keras_calibration.seeds.random_seeds import set_seeds as set_seeds
from keras_calibration.seeds.sequential import always_valid_difference as always_valid_difference
from keras_calibration.seeds.sequential import pocock_confidence as pocock_confidence
from keras_calibration.seeds.spread import pitman_morgan as pitman_morgan
from keras_calibration.seeds.spread import std_ratio as std_ratio
from keras_calibration.seeds.statistics import summarize as summarize
from keras_calibration.seeds.variance_components import (
    VarianceComponents as VarianceComponents,
)
from keras_calibration.seeds.variance_components import (
    difference_on_new_rows as difference_on_new_rows,
)
from keras_calibration.seeds.variance_components import variance_components as variance_components
from keras_calibration.seeds.verdict import Outcome as Outcome
from keras_calibration.seeds.verdict import Verdict as Verdict
