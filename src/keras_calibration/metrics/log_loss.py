"""LogLoss: the plain log loss, accumulated exactly."""

from typing import Any

import keras
from keras import ops

from keras_calibration.metrics.additive_metric import AdditiveMetric, warns_of_nan
from keras_calibration.metrics.rows import flat_rows
from keras_calibration.ops.losses import log_loss_from_logits, logits_from_probabilities


@keras.saving.register_keras_serializable(package="keras_calibration")
class LogLoss(AdditiveMetric):
    """Mean log loss, `Σ w [-y log p - (1 - y) log(1 - p)] / Σ w`, right at any number of rows.

    `keras.metrics.BinaryCrossentropy` adds up in float32: its count stops at 16,777,216 rows when
    they come one by one, and in batches of 257 its value is off by 3e-5 after 2e7 rows. From
    probabilities it also clips: a positive that was given the logit -20 costs 16.1 instead of 20.
    This metric does neither, and is what `CalibratedLogLoss` and `CalibrationGain` add up to.

    The result is NaN over no rows, and where a label is outside [0, 1], a weight negative, a
    prediction NaN or a probability outside [0, 1]. Keras hands `sample_weight` only to
    `weighted_metrics=` of `compile`, not to `metrics=`.

    Args:
        from_logits: Whether predictions are logits. A float32 probability of exactly 0 or 1 is
            taken as the nearest one inside (0, 1): prefer logits where the model gives them.
        name: Name of the metric and key of the logs.
        dtype: Dtype of the state and the result; float64 by default where the backend has it.

    Raises:
        ValueError: If rows do not align in `update_state`.

    Example:
        >>> metric = LogLoss(from_logits=True)
        >>> metric.update_state([1, 0], [-20.0, -20.0])
        >>> round(float(metric.result()), 4)
        10.0
    """

    def __init__(
        self, from_logits: bool = False, name: str = "log_loss", dtype: Any = None
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        self.from_logits = from_logits
        # Σ w loss and Σ w.
        self._sums = self.add_sum((2,), name="loss_and_weight")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds rows.

        Args:
            y_true: Labels in [0, 1] (n,) or (n, 1).
            y_pred: Probabilities, or logits with `from_logits=True` (n,) or (n, 1).
            sample_weight: Weights, not negative (n,) or (n, 1), or None.
        """
        labels, logits, weights = flat_rows(y_true, y_pred, sample_weight, self.dtype)
        if not self.from_logits:
            logits = logits_from_probabilities(logits)
        losses = weights * log_loss_from_logits(labels, logits)
        self._sums.add(ops.stack([ops.sum(losses), ops.sum(weights)]))

    @warns_of_nan
    def result(self) -> Any:
        """The mean log loss of all rows since `reset_state`, a scalar in nats."""
        sums = self._sums.value()
        return sums[0] / sums[1]

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor, as plain Python values."""
        return {"from_logits": self.from_logits, "name": self.name, "dtype": self.dtype}
