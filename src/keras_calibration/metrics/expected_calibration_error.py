"""ExpectedCalibrationError: the distance between predictions and observed rates, bin by bin."""

from __future__ import annotations

import keras

from calibration_records._check import integer
from keras_calibration._ops.probability_bins import (
    bin_sums,
    equal_width_bins,
    equal_width_edges,
    expected_calibration_error,
)
from keras_calibration._rows.metric_rows import as_tensor, probability_rows
from keras_calibration._typing import Tensor
from keras_calibration.metrics.additive_metric import AdditiveMetric, checked_result


@keras.saving.register_keras_serializable(package="keras_calibration")
class ExpectedCalibrationError(AdditiveMetric):
    """Expected calibration error of `P(y = 1)`: `Σ_b |Σ_{i in b} w (y - p)| / Σ w`.

    The bins b are (k / B, (k + 1) / B], where the first includes 0. Edges are rounded to the dtype
    of the predictions, so a float32 prediction of 0.3 lies on the edge 3 / 10. Where positives are
    rare, most predictions share the first bin, and the error is little more than that of the mean
    prediction: use `FieldECE`, or bins of equal mass in `plots.ReliabilityDisplay`.

    Errors of opposite sign within a bin cancel. By chance, a calibrated model does not reach 0
    either, above all with many bins and few rows.

    Soft labels within [0, 1] are allowed. The result is NaN if there are no rows, if a label or
    prediction is NaN or outside [0, 1] (most often a logit without `from_logits=True`), or if a
    weight is negative. Keras passes `sample_weight` only to `weighted_metrics=` of `compile`.

    Args:
        num_bins: Number of bins B, at least 1.
        from_logits: Whether predictions are logits.
        name: Name of the metric, and its key in the logs.
        dtype: Dtype of state and result. The default is float64 where the backend supports it.

    Raises:
        ValueError: If an argument is invalid, or arrays in `update_state` differ in length.

    Example:
        >>> metric = ExpectedCalibrationError(num_bins=2)
        >>> metric.update_state([0, 1, 1, 1], [0.2, 0.4, 0.9, 1.0])
        >>> round(float(metric.result()), 4)
        0.125

    Reference:
        Naeini, Cooper, Hauskrecht, *Obtaining Well Calibrated Probabilities Using Bayesian
        Binning*, AAAI 2015; Guo et al., *On Calibration of Modern Neural Networks*, ICML 2017 (of
        the most probable class).
    """

    def __init__(
        self,
        num_bins: int = 15,
        from_logits: bool = False,
        name: str = "expected_calibration_error",
        dtype: str | None = None,
    ) -> None:
        super().__init__(
            name,
            dtype,
            num_bins=integer("num_bins", num_bins, 1),
            from_logits=from_logits,
        )
        self._sums = self.add_sum((self.num_bins, 3), name="bin_sums")

    def add_rows(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None) -> None:
        """Adds to the sums."""
        labels, probabilities, weights = probability_rows(
            y_true, y_pred, sample_weight, self.from_logits, self.dtype
        )
        # Edges are rounded as the predictions were. Probabilities from logits have the dtype of the
        # metric.
        dtype = self.dtype if self.from_logits else as_tensor(y_pred, "y_pred").dtype
        edges = equal_width_edges(self.num_bins, keras.backend.standardize_dtype(dtype))
        bins = equal_width_bins(probabilities, edges)
        self._sums.add(bin_sums(labels, probabilities, weights, bins, self.num_bins))

    @checked_result
    def result(self) -> Tensor:
        """The error of the rows since `reset_state`, a scalar in units of probability."""
        return expected_calibration_error(self._sums.value())
