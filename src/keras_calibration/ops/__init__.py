"""The mathematics: plain functions on tensors, in `keras.ops`, that compile under XLA."""

from keras_calibration.ops.field_sums import field_ece, field_rce, field_sums, known_ids
from keras_calibration.ops.folds import hashed_uniform
from keras_calibration.ops.knots import (
    balanced_knots,
    isotonic_projection,
    numeric_knots,
    quantile_knots,
    sigmoid_knots,
)
from keras_calibration.ops.logit_histogram import bias_root, logit_histogram, softplus_sum
from keras_calibration.ops.losses import log_loss_from_logits, logits_from_probabilities
from keras_calibration.ops.piecewise_linear import (
    decrease_penalty,
    hat_basis,
    piecewise_linear,
    slope_change_penalty,
    slopes,
)

__all__ = [
    "balanced_knots",
    "bias_root",
    "decrease_penalty",
    "field_ece",
    "field_rce",
    "field_sums",
    "hashed_uniform",
    "hat_basis",
    "isotonic_projection",
    "known_ids",
    "log_loss_from_logits",
    "logit_histogram",
    "logits_from_probabilities",
    "numeric_knots",
    "piecewise_linear",
    "quantile_knots",
    "sigmoid_knots",
    "slope_change_penalty",
    "slopes",
    "softplus_sum",
]
