"""CalibratedQuadraticLoss: the mean squared error after the predictions' bias is corrected."""

from __future__ import annotations

import keras
import numpy as np
from keras import ops

from keras_calibration._ops.folds import fitting_sums, scored_sums
from keras_calibration._ops.quadratic_loss import mean_residual, residual_sums, squared_error_sum
from keras_calibration._rows.metric_rows import real_rows
from keras_calibration._typing import Tensor
from keras_calibration.metrics.additive_metric import checked_result
from keras_calibration.metrics.cross_fitted_metric import CrossFittedMetric


@keras.saving.register_keras_serializable(package="keras_calibration")
class CalibratedQuadraticLoss(CrossFittedMetric):
    """Mean squared error of `p + c`, where the bias c is fitted on other rows, for regression.

    The bias is the weighted mean residual `c = Σ w (y - p) / Σ w` of some of the rows; the loss is
    the weighted mean of `(y - p - c)²` over the others. If seeds differ in their mean prediction,
    it varies less between seeds than the squared error does. It does not show an improvement of the
    mean prediction: report the squared error too.

    By default every row is scored with the correction of the other folds. `bias_fraction=0.1` is
    the hold-out of the papers; `num_folds=1` fits and scores on the same rows, so the loss is the
    squared error minus the squared bias. See `CrossFittedMetric`.

    The state is three sums a fold. They are sums of residuals, so that large labels and predictions
    lose no precision. If the mean residual is R times the standard deviation of the residuals, the
    relative error is about 1e-16 R².

    The result is NaN if there are no rows to fit on or to score, if a label, prediction or residual
    is not finite, if a weight is negative, or if the weighted squares add up to more than the dtype
    holds (3e38 in float32).

    Keras passes `sample_weight` only to `weighted_metrics=` of `compile`, not to `metrics=`.

    Args:
        num_folds: Number of folds, at least 1.
        bias_fraction: Share of the rows that the correction is fitted on, in (0, 1), or None to use
            folds.
        seed: Seed of the hash that assigns the rows.
        name: Name of the metric, and its key in the logs.
        dtype: Dtype of state and result. The default is float64 where the backend supports it. In
            float32, labels and predictions are rounded to 7 digits, and R can be up to 300.

    Raises:
        ValueError: If an argument is invalid, or arrays in `update_state` differ in length.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> predictions = rng.normal(100, 5, 10_000)
        >>> labels = predictions + rng.normal(3, 1, 10_000)  # predictions that are too low
        >>> metric = CalibratedQuadraticLoss()
        >>> metric.update_state(labels, predictions)
        >>> round(float(metric.result()), 2), metric.bias.round(1)
        (0.99, array([3., 3.]))

    Reference:
        Fan, Si, Song, Zhang, *Calibration-then-Calculation*, arXiv 2401.16692.
    """

    def __init__(
        self,
        num_folds: int = 2,
        bias_fraction: float | None = None,
        seed: int = 0,
        name: str = "calibrated_quadratic_loss",
        dtype: str | None = None,
    ) -> None:
        super().__init__(num_folds, bias_fraction, seed, name, dtype)
        self._sums = self.add_sum((self.num_groups, 3), name="residual_sums")

    def add_rows(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None) -> None:
        """Adds to the sums."""
        labels, predictions, weights = real_rows(y_true, y_pred, sample_weight, self.dtype)
        group = self.next_groups(weights, all_count=sample_weight is None)
        self._sums.add(residual_sums(labels, predictions, weights, group, self.num_groups))

    @checked_result
    def result(self) -> Tensor:
        """The loss of the rows since `reset_state`, a scalar in squared units of the label."""
        return self._score_rows(self._compute_biases())

    @property
    def uncalibrated_loss(self) -> float:
        """The mean squared error of the scored rows without the correction."""
        return float(self._score_rows(ops.zeros_like(self._compute_biases())))

    @property
    def bias(self) -> np.ndarray:
        """The fitted bias c of each scored part, in units of the label, shape `(parts,)`."""
        return np.asarray(self._compute_biases()).copy()

    def _score_rows(self, biases: Tensor) -> Tensor:
        sums = scored_sums(self._sums.value(), self.held_out)
        return ops.sum(squared_error_sum(sums, biases)) / ops.sum(sums[:, 0])

    def _compute_biases(self) -> Tensor:
        return mean_residual(fitting_sums(self._sums.value(), self.held_out))
