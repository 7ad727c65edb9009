"""LogLoss: the log loss, accumulated without loss of precision."""

from __future__ import annotations

import keras
from keras import ops

from keras_calibration._ops.losses import log_loss_from_logits
from keras_calibration._rows.metric_rows import logit_rows
from keras_calibration._typing import Tensor
from keras_calibration.metrics.additive_metric import AdditiveMetric, checked_result
from keras_calibration.metrics.log_sums import LabelSums, LogitMoments


@keras.saving.register_keras_serializable(package="keras_calibration")
class LogLoss(AdditiveMetric):
    """Mean log loss, `Σ w [-y log p - (1 - y) log(1 - p)] / Σ w`, exact for any number of rows.

    `keras.metrics.BinaryCrossentropy` accumulates in float32: one row at a time, its count stops at
    16,777,216 rows; in batches of 257, its value is off by 3e-5 after 2e7 rows. It also clips
    probabilities: a positive with a logit of -20 costs 16.1 instead of 20. This metric does
    neither. The difference to a `CalibratedLogLoss` of the same rows is the cost of the bias.

    The result is NaN if there are no rows, if a label or probability is outside [0, 1], if a
    prediction is NaN, or if a weight is negative. Rows of weight 0 are ignored, whatever they hold:
    use it for missing labels. A common factor of the weights changes nothing, and a row of weight 2
    counts as two. Keras passes `sample_weight` only to `weighted_metrics=` of `compile`, not to
    `metrics=`.

    Args:
        from_logits: Whether predictions are logits. Prefer logits where the model provides them: a
            probability of exactly 0 or 1 counts as a logit of ±36.7, and costs 36.7 nats if the
            label is the opposite. Keras models return float32, in which probabilities above
            1 - 3e-8 (logits above 17) are 1.
        name: Name of the metric, and its key in the logs.
        dtype: Dtype of state and result. The default is float64 where the backend supports it.

    Raises:
        ValueError: If arrays in `update_state` differ in length.

    Example:
        >>> metric = LogLoss(from_logits=True)
        >>> metric.update_state([1, 0], [-20.0, -20.0])
        >>> round(float(metric.result()), 4)
        10.0
    """

    def __init__(
        self, from_logits: bool = False, name: str = "log_loss", dtype: str | None = None
    ) -> None:
        super().__init__(name, dtype, from_logits=from_logits)
        # Σ w loss and Σ w.
        self._sums = self.add_sum((2,), name="loss_and_weight")

    def add_rows(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None) -> None:
        """Adds to the sums."""
        labels, logits, weights = logit_rows(
            y_true, y_pred, sample_weight, self.from_logits, self.dtype
        )
        losses = weights * log_loss_from_logits(labels, logits)
        self._sums.add(ops.stack([ops.sum(losses), ops.sum(weights)]))

    def log_sums(self) -> dict[str, LabelSums | LogitMoments]:
        """The sums of a scored log that make up `sum_shapes`."""
        return {"loss_and_weight": LabelSums(("loss", "weight"))}

    @checked_result
    def result(self) -> Tensor:
        """The mean log loss of the rows since `reset_state`, a scalar in nats."""
        sums = self._sums.value()
        return sums[0] / sums[1]
