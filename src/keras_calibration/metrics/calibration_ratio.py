"""CalibrationRatio: the sum of the predictions over the sum of the labels."""

from __future__ import annotations

import keras
from keras import ops

from keras_calibration._ops.mean_scores import calibration_ratio
from keras_calibration._rows.metric_rows import probability_rows
from keras_calibration._typing import Tensor
from keras_calibration.metrics.additive_metric import AdditiveMetric, checked_result
from keras_calibration.metrics.log_sums import LabelSums, LogitMoments


@keras.saving.register_keras_serializable(package="keras_calibration")
class CalibrationRatio(AdditiveMetric):
    """Calibration ratio, predicted over observed: `Σ w p / Σ w y` (PCOC). A calibrated model has 1.

    Above 1 the predictions are too high, below 1 too low. Neither lower nor higher is better, so
    `EarlyStopping` and `ModelCheckpoint` refuse it in `mode="auto"`; monitor a loss instead.

    Soft labels within [0, 1] are allowed. The result is NaN if there is no positive label, if a
    label or prediction is NaN or outside [0, 1] (most often a logit without `from_logits=True`), or
    if a weight is negative. Keras passes `sample_weight` only to `weighted_metrics=` of `compile`.

    Args:
        from_logits: Whether predictions are logits.
        name: Name of the metric, and its key in the logs.
        dtype: Dtype of state and result. The default is float64 where the backend supports it.

    Raises:
        ValueError: If arrays in `update_state` differ in length.

    Example:
        >>> metric = CalibrationRatio()
        >>> metric.update_state([1, 0, 0, 1], [0.9, 0.5, 0.5, 0.6])
        >>> round(float(metric.result()), 4)
        1.25

    Reference:
        He et al., *Practical Lessons from Predicting Clicks on Ads at Facebook*, ADKDD 2014, where
        it is called "calibration".
    """

    def __init__(
        self, from_logits: bool = False, name: str = "calibration_ratio", dtype: str | None = None
    ) -> None:
        super().__init__(name, dtype, from_logits=from_logits)
        self._totals = self.add_sum((2,), name="predicted_and_observed")

    @property
    def _direction(self) -> str:  # type: ignore[override]
        # Keras reads any value other than "up", even None, as "down": the attribute must not exist.
        raise AttributeError("A calibration ratio has no direction: the best value is 1.")

    def add_rows(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None) -> None:
        """Adds to the sums."""
        labels, predictions, weights = probability_rows(
            y_true, y_pred, sample_weight, self.from_logits, self.dtype
        )
        self._totals.add(ops.stack([ops.sum(weights * predictions), ops.sum(weights * labels)]))

    def log_sums(self) -> dict[str, LabelSums | LogitMoments]:
        """The sums of a scored log that make up `sum_shapes`."""
        return {"predicted_and_observed": LabelSums(("predicted", "positives"))}

    @checked_result
    def result(self) -> Tensor:
        """Predicted over observed for the rows since `reset_state`, a scalar."""
        return calibration_ratio(*ops.unstack(self._totals.value()))
