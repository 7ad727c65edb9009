"""Evidence over seeds: the ledger of runs and the statistics over them."""

from keras_calibration.seeds.ledger import Ledger as Ledger
from keras_calibration.seeds.statistics import summarize as summarize
