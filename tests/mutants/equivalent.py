"""Faults of a sample that no test can notice, or that none needs to: the name → why."""

_SRC = "keras_calibration"
_RECORDS = "calibration_records"

EQUIVALENT = {
    f"{_SRC}/models/calibrated_model.py CalibratedModel.predict: 1 → 2": (
        "For NumPy, any negative size is the one that follows from the others."
    ),
    f"{_SRC}/_solvers/field_effects.py FieldEffects.improve_curve: "
    "self.beta <= self.lower → (self.beta < self.lower)": (
        "It only makes a first guess of β, which each step of an effect sets again."
    ),
    f"{_SRC}/layers/field_network.py FieldNetwork._require_adapt: 0 → 1": (
        "In a compiled step of JAX, after `adapt` to one row."
    ),
    f"{_SRC}/layers/boosted_trees.py BoostedTrees.boosted.<locals>.training: "
    "set(range(len(folds))) - {part} → (set(range(len(folds))))": (
        "One more fit, of the rows to which no tree is fitted."
    ),
    f"{_SRC}/calibration/cross_fitted_scores.py _compute_field_errors: 1 → 2 #2": (
        "The error is that of the sums, whatever number of values the metric has."
    ),
    f"{_SRC}/_graph/logit_source.py _has_activation: "
    "np.allclose(values, expected, rtol=1e-5, atol=0) → "
    "(np.allclose(expected, values, rtol=1e-05, atol=0))": (
        "A limit relative to the one or the other differs by 1e-5 of itself."
    ),
    f"{_SRC}/export/verification.py _answer_file: True → False": ("Each request has one answer."),
    f"{_SRC}/calibration/calibration_report.py CalibrationReport._list_other_fields: "
    "True → False #2": "All rows have as many columns as there are sides.",
    f'{_SRC}/calibration/log_fits.py _expand_to_rows: table["rows"][group] > 1 → '
    "(table['rows'][group] >= 1)": (
        "The spread of one row is 0 but for rounding, which the next condition leaves out."
    ),
    f"{_RECORDS}/monitoring/shifts.py log_ratios: SHIFTS > 0 → (SHIFTS >= 0)": ("No shift is 0."),
    f"{_RECORDS}/logs/embedded.py : 1 → 2": (
        "Batches of twice as many rows: the sums are the same."
    ),
    f"{_SRC}/_solvers/total_bias.py bias_of_total: "
    "rows.row_weights / rows.row_weights.sum() → (rows.row_weights)": (
        "Newton's step is a ratio, in which a common factor of the weights cancels."
    ),
    f"{_SRC}/_ops/logit_bins.py bin_numbers: bins.num_bins - 1 → (bins.num_bins)": (
        "Only NaN can be beyond the last bin, and only where a cast makes it a large integer."
    ),
    f"{_SRC}/metrics/additive_metric.py RunningSum.add: "
    "two_sum(ops.convert_to_tensor(self._total), values) → "
    "(two_sum(values, ops.convert_to_tensor(self._total)))": (
        "The error of a sum of two numbers does not depend on their order."
    ),
    f"{_SRC}/calibration/cross_fitted_scores.py _choose_share: 1.0 → 2.0": (
        "The next line makes it 1."
    ),
    f"{_SRC}/_solvers/softmax_fit.py fit_vector: 4.0 → 8.0": (
        "Another start of Newton's method, which ends at the same optimum."
    ),
    f"{_SRC}/_rows/metric_rows.py class_rows: zip(labels.shape, shape, strict=False) → "
    "(zip(shape, labels.shape, strict=False))": "Each pair is only asked whether it differs.",
    f"{_RECORDS}/comparison/pipeline_runs.py _choose: 1 → 2 #2": (
        "The values are multiplied by 2, and have the same order."
    ),
    f"{_SRC}/_graph/logit_source.py : 5.0 → 10.0": (
        "Activations that differ, differ at half of the new probes as well."
    ),
    f"{_SRC}/_graph/base_logits.py BaseLogits.__init__: True → False": (
        "Keras sets `built` after the first call too."
    ),
}
