"""NormalizedEntropy: the log loss relative to that of a constant prediction."""

from __future__ import annotations

import keras
from keras import ops

from keras_calibration._ops.losses import log_loss_from_logits
from keras_calibration._ops.mean_scores import normalized_entropy
from keras_calibration._rows.metric_rows import logit_rows
from keras_calibration._typing import Tensor
from keras_calibration.metrics.additive_metric import AdditiveMetric, checked_result
from keras_calibration.metrics.log_sums import LabelSums, LogitMoments


@keras.saving.register_keras_serializable(package="keras_calibration")
class NormalizedEntropy(AdditiveMetric):
    """Normalized entropy: the mean log loss divided by the entropy of the mean label r.

    `NE = (Σ w loss / Σ w) / -(r log r + (1 - r) log(1 - r))`, with `r = Σ w y / Σ w`. The
    denominator is the log loss of the best constant prediction. Below 1 the model is better than a
    constant, above 1 worse. Unlike the log loss, it can be compared between data with different
    positive rates. With soft labels it cannot, because the entropy of the labels is part of the
    loss.

    The result is NaN if there are no rows, if all labels are of one class, if a label or
    probability is outside [0, 1] (most often a logit without `from_logits=True`), if a logit is NaN
    or infinite, or if a weight is negative. Keras passes `sample_weight` only to
    `weighted_metrics=` of `compile`.

    Args:
        from_logits: Whether predictions are logits. Prefer logits where the model provides them: a
            probability rounded to 1 has lost its logit.
        name: Name of the metric, and its key in the logs.
        dtype: Dtype of state and result. The default is float64 where the backend supports it.

    Raises:
        ValueError: If arrays in `update_state` differ in length.

    Example:
        >>> metric = NormalizedEntropy()
        >>> metric.update_state([1, 0, 0, 0], [0.25, 0.25, 0.25, 0.25])
        >>> round(float(metric.result()), 6)
        1.0
        >>> metric.update_state([1, 0, 0, 0], [0.7, 0.1, 0.1, 0.1])
        >>> round(float(metric.result()), 4)
        0.6495

    Reference:
        He et al., *Practical Lessons from Predicting Clicks on Ads at Facebook*, ADKDD 2014, eq. 3.
    """

    def __init__(
        self, from_logits: bool = False, name: str = "normalized_entropy", dtype: str | None = None
    ) -> None:
        super().__init__(name, dtype, from_logits=from_logits)
        # Σ w loss, Σ w y and Σ w (1 - y).
        self._totals = self.add_sum((3,), name="loss_and_labels")

    def add_rows(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None) -> None:
        """Adds to the sums."""
        labels, logits, weights = logit_rows(
            y_true, y_pred, sample_weight, self.from_logits, self.dtype
        )
        # The loss of an infinite logit is infinite, or 0 · ∞ where the prediction is right.
        logits = ops.where(ops.isfinite(logits), logits, float("nan"))
        terms = (log_loss_from_logits(labels, logits), labels, 1 - labels)
        self._totals.add(ops.stack([ops.sum(weights * term) for term in terms]))

    def log_sums(self) -> dict[str, LabelSums | LogitMoments]:
        """The sums of a scored log that make up `sum_shapes`."""
        return {"loss_and_labels": LabelSums(("loss", "positives", "negatives"))}

    @checked_result
    def result(self) -> Tensor:
        """Normalized entropy of the rows since `reset_state`, a scalar."""
        return normalized_entropy(*ops.unstack(self._totals.value()))
