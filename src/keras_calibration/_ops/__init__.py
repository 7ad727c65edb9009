"""Plain functions of tensors, in `keras.ops`, that compile under XLA."""

from keras_calibration._ops.field_sums import field_ece_from_sums, field_rce_from_sums, field_sums
from keras_calibration._ops.losses import log_loss_from_logits, logits_from_probabilities
from keras_calibration._ops.mean_scores import calibration_ratio, normalized_entropy
from keras_calibration._ops.piecewise_linear import piecewise_linear
from keras_calibration._ops.probability_bins import expected_calibration_error

__all__ = [
    "calibration_ratio",
    "expected_calibration_error",
    "field_ece_from_sums",
    "field_rce_from_sums",
    "field_sums",
    "log_loss_from_logits",
    "logits_from_probabilities",
    "normalized_entropy",
    "piecewise_linear",
]
