"""CalibratedCategoricalLogLoss: the log loss of several classes after a temperature is fitted."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calibration.metrics.cross_fitted_metric import CrossFittedMetric
from keras_calibration.metrics.rows import class_rows, distribution_or_nan
from keras_calibration.ops.class_temperature import (
    NUM_TEMPERATURES,
    best_inverse_temperature,
    log_partition_sum,
    temperature_sums,
)
from keras_calibration.ops.losses import SMALLEST_PROBABILITY


@keras.saving.register_keras_serializable(package="keras_calibration")
class CalibratedCategoricalLogLoss(CrossFittedMetric):
    """Log loss of `softmax(l / T)`, with the temperature T fitted on other rows: K classes.

    On some rows, the temperature is the one at which the log loss
    `mean of -Σ_k y_k log softmax(l / T)_k` is least; the result is that log loss on others, in
    nats. It varies less between seeds than the log loss does, and does not see a pipeline that
    improves the mean confidence: look at the log loss too.

    Every row is scored with the temperature of the other folds; `bias_fraction=0.2` is the hold-out
    of the papers' study on images, `num_folds=1` fits and scores on the same rows. See
    `CrossFittedMetric`.

    The state is of a fixed size: an exact sum for the labels, and the label-free part of the loss
    with two derivatives at 49 temperatures from 1/16 to 16, interpolated between them. It adds up
    over batches, replicas and shards. The interpolated mean loss is right to about 1e-9 (at worst,
    with rows all of one confidence, 2e-8 for 10 classes and 2e-6 for 1000). A temperature beyond
    the 49 is clipped, so that it is 1/16 where every label has the largest logit.

    The result is NaN where it cannot be told: no rows among those of a temperature or those that
    are scored, logits that are equal within every row, a logit that is not finite, probabilities
    outside [0, 1] or that do not sum to 1 (give or take 0.01; most often logits without
    `from_logits=True`), labels that do not, a negative weight.

    Keras hands `sample_weight` only to `weighted_metrics=` of `compile`, not to `metrics=`.

    Args:
        num_folds: Number of folds, at least 1.
        bias_fraction: Share of the rows that the temperature is fitted on, in (0, 1); None for
            folds.
        from_logits: Whether predictions are logits. A probability below 1e-38 counts as that:
            prefer logits where the model gives them.
        seed: Seed of the hash that shares out the rows.
        name: Name of the metric and key of the logs.
        dtype: Dtype of the state and the result; float64 by default where the backend has it.

    Raises:
        ValueError: If an argument is out of its range, or rows do not align in `update_state`.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> logits = rng.normal(0, 1, (10_000, 3))
        >>> labels = np.eye(3)[np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)]
        >>> metric = CalibratedCategoricalLogLoss(from_logits=True)
        >>> metric.update_state(labels, 2 * logits)  # a model that is too sure
        >>> round(float(metric.result()), 2), metric.temperature.round(1)
        (0.88, array([1.9, 2.1]))

    Reference:
        Fan, Si, Song, Zhang, *Calibration-then-Calculation*, arXiv 2401.16692.
    """

    def __init__(
        self,
        num_folds: int = 2,
        bias_fraction: float | None = None,
        from_logits: bool = False,
        seed: int = 0,
        name: str = "calibrated_categorical_log_loss",
        dtype: Any = None,
    ) -> None:
        super().__init__(num_folds, bias_fraction, seed, name=name, dtype=dtype)
        self.from_logits = from_logits
        self._sums = self.add_sum((self.num_groups, NUM_TEMPERATURES, 3), name="temperature_sums")
        # Σ w and Σ w l_y of each group, l less the largest logit of its row.
        self._label_sums = self.add_sum((self.num_groups, 2), name="label_sums")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds rows.

        Args:
            y_true: One-hot or soft labels (n, K), each row with sum 1.
            y_pred: Probabilities, or logits with `from_logits=True` (n, K).
            sample_weight: Weights, not negative (n,) or (n, 1), or None.
        """
        labels, logits, weights = class_rows(y_true, y_pred, sample_weight, self.dtype)
        if not self.from_logits:
            logits = ops.log(ops.maximum(distribution_or_nan(logits), SMALLEST_PROBABILITY))
        logits = ops.where(ops.isfinite(logits), logits, float("nan"))
        logits = logits - ops.max(logits, axis=-1, keepdims=True)
        group = self.next_groups(ops.shape(logits)[0])
        # Labels that sum to 1 only nearly count as often as they say, as in Keras' own loss.
        label_weights = weights * ops.sum(labels, axis=-1)
        self._sums.add(temperature_sums(logits, label_weights, group, self.num_groups))
        label_logits = weights * ops.sum(labels * logits, axis=-1)
        label_rows = ops.stack([weights, label_logits], axis=1)
        self._label_sums.add(ops.segment_sum(label_rows, group, num_segments=self.num_groups))

    def result(self) -> Any:
        """The loss of all rows since `reset_state`, a scalar in nats."""
        label_sums = self.scored_sums(self._label_sums.value())
        beta = self._inverse_temperatures()
        losses = log_partition_sum(self.scored_sums(self._sums.value()), beta)
        return ops.sum(losses - beta * label_sums[:, 1]) / ops.sum(label_sums[:, 0])

    @property
    def temperature(self) -> np.ndarray:
        """The fitted temperature T of each scored part, in [1/16, 16]: (num_folds,), or (1,)."""
        return ops.convert_to_numpy(1 / self._inverse_temperatures())

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor, as plain Python values."""
        return {**super().get_config(), "from_logits": self.from_logits}

    def _inverse_temperatures(self) -> Any:
        sums = self.fitting_sums(self._sums.value())
        label_sums = self.fitting_sums(self._label_sums.value())
        return best_inverse_temperature(sums, label_sums[:, 1], label_sums[:, 0])
