"""The mathematics: plain functions on tensors, in `keras.ops`, that compile under XLA."""

from keras_calibration.ops.affine_correction import fit_correction
from keras_calibration.ops.class_bias import (
    best_class_bias,
    class_bias_loss_sum,
    class_bias_sums,
)
from keras_calibration.ops.class_temperature import (
    best_inverse_temperature,
    log_partition_sum,
    temperature_summary,
    temperature_sums,
)
from keras_calibration.ops.click_histogram import ClickHistogram, click_histogram, quantile_edges
from keras_calibration.ops.field_noise import drawn_field_sums, jeffreys_interval
from keras_calibration.ops.field_sums import (
    crossed_ids,
    field_ece,
    field_rce,
    field_sums,
    known_ids,
    without_positives,
)
from keras_calibration.ops.folds import hashed_uniform
from keras_calibration.ops.histogram_auc import histogram_auc, label_histogram
from keras_calibration.ops.ilps_fit import fit_ilps
from keras_calibration.ops.knots import (
    balanced_knots,
    isotonic_projection,
    numeric_knots,
    quantile_knots,
    sigmoid_knots,
)
from keras_calibration.ops.logistic_fit import LogisticFit, fit_logistic, mean_log_loss
from keras_calibration.ops.logit_moments import (
    bias_root,
    by_group,
    label_sums,
    log_loss_sum,
    logit_moments,
)
from keras_calibration.ops.losses import log_loss_from_logits, logits_from_probabilities
from keras_calibration.ops.mean_scores import calibration_ratio, normalized_entropy
from keras_calibration.ops.piecewise_linear import (
    decrease_penalty,
    hat_basis,
    piecewise_linear,
    slope_change_penalty,
    slopes,
)
from keras_calibration.ops.probability_bins import (
    bin_sums,
    equal_mass_groups,
    equal_width_bins,
    equal_width_edges,
    expected_calibration_error,
    logit_bins,
)
from keras_calibration.ops.quadratic_loss import (
    least_squares_line,
    mean_residual,
    residual_sums,
    squared_error_sum,
)
from keras_calibration.ops.rolling import earlier_period

__all__ = [
    "ClickHistogram",
    "LogisticFit",
    "balanced_knots",
    "best_class_bias",
    "best_inverse_temperature",
    "bias_root",
    "bin_sums",
    "by_group",
    "calibration_ratio",
    "class_bias_loss_sum",
    "class_bias_sums",
    "click_histogram",
    "crossed_ids",
    "decrease_penalty",
    "drawn_field_sums",
    "earlier_period",
    "equal_mass_groups",
    "equal_width_bins",
    "equal_width_edges",
    "expected_calibration_error",
    "field_ece",
    "field_rce",
    "field_sums",
    "fit_correction",
    "fit_ilps",
    "fit_logistic",
    "hashed_uniform",
    "hat_basis",
    "histogram_auc",
    "isotonic_projection",
    "jeffreys_interval",
    "known_ids",
    "label_histogram",
    "label_sums",
    "least_squares_line",
    "log_loss_from_logits",
    "log_loss_sum",
    "log_partition_sum",
    "logit_bins",
    "logit_moments",
    "logits_from_probabilities",
    "mean_log_loss",
    "mean_residual",
    "normalized_entropy",
    "numeric_knots",
    "piecewise_linear",
    "quantile_edges",
    "quantile_knots",
    "residual_sums",
    "sigmoid_knots",
    "slope_change_penalty",
    "slopes",
    "squared_error_sum",
    "temperature_summary",
    "temperature_sums",
    "without_positives",
]
