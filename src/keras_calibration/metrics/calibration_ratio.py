"""CalibrationRatio: predicted over observed."""

from typing import Any

import keras
from keras import ops

from keras_calibration.metrics.additive_metric import AdditiveMetric, warns_of_nan
from keras_calibration.metrics.rows import flat_rows, nan_outside_unit_interval
from keras_calibration.ops.mean_scores import calibration_ratio


@keras.saving.register_keras_serializable(package="keras_calibration")
class CalibrationRatio(AdditiveMetric):
    """Calibration ratio: `Σ w p / Σ w y`, predicted over observed (PCOC); 1 is right.

    Above 1 the model predicts too much, below 1 too little. Neither lower nor higher is better:
    `EarlyStopping` and `ModelCheckpoint` refuse it in `mode="auto"`; watch a loss instead.

    The result is NaN where there is no positive label, for a label or prediction outside [0, 1]
    (logits without `from_logits=True`, most often), for NaN and for a negative weight. Labels
    within [0, 1] may be soft. Keras hands `sample_weight` only to `weighted_metrics=` of `compile`.

    Args:
        from_logits: Whether predictions are logits.
        name: Name of the metric and key of the logs.
        dtype: Dtype of the state and the result; float64 by default where the backend has it.

    Raises:
        ValueError: If rows do not align in `update_state`.

    Example:
        >>> metric = CalibrationRatio()
        >>> metric.update_state([1, 0, 0, 1], [0.9, 0.5, 0.5, 0.6])
        >>> round(float(metric.result()), 4)
        1.25

    Reference:
        He et al., *Practical Lessons from Predicting Clicks on Ads at Facebook*, ADKDD 2014
        (there "calibration").
    """

    def __init__(
        self, from_logits: bool = False, name: str = "calibration_ratio", dtype: Any = None
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        self.from_logits = bool(from_logits)
        self._totals = self.add_sum((2,), name="predicted_and_observed")

    @property
    def _direction(self) -> str:  # type: ignore[override]
        # Keras takes any direction but "up", None too, for "down": there must be none at all.
        raise AttributeError("No direction of a calibration ratio is better: 1 is right.")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds rows.

        Args:
            y_true: Labels in [0, 1] (n,) or (n, 1).
            y_pred: Probabilities, or logits with `from_logits=True` (n,) or (n, 1).
            sample_weight: Weights, not negative (n,) or (n, 1), or None.
        """
        labels, predictions, weights = flat_rows(y_true, y_pred, sample_weight, self.dtype)
        if self.from_logits:
            predictions = ops.sigmoid(predictions)
        predictions = nan_outside_unit_interval(predictions)
        self._totals.add(ops.stack([ops.sum(weights * predictions), ops.sum(weights * labels)]))

    @warns_of_nan
    def result(self) -> Any:
        """Predicted over observed for all rows since `reset_state`, a scalar without unit."""
        totals = self._totals.value()
        return calibration_ratio(totals[0], totals[1])

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor, as plain Python values."""
        return {"from_logits": self.from_logits, "name": self.name, "dtype": self.dtype}
