"""CalibratedCategoricalLogLoss: the log loss of several classes after a fitted correction."""

from __future__ import annotations

import keras
import numpy as np
from keras import ops

from keras_calibration._ops.class_temperature import (
    NUM_TEMPERATURES,
    best_inverse_temperature,
    log_partition_sum,
    temperature_summary,
)
from keras_calibration._ops.compiled import compiled, filled_up
from keras_calibration._ops.folds import fitting_sums, scored_sums
from keras_calibration._ops.losses import class_logits_from_probabilities
from keras_calibration._rows.metric_rows import class_rows, distribution_or_nan
from keras_calibration._typing import Tensor
from keras_calibration.metrics.additive_metric import checked_result
from keras_calibration.metrics.cross_fitted_metric import CrossFittedMetric


@keras.saving.register_keras_serializable(package="keras_calibration")
class CalibratedCategoricalLogLoss(CrossFittedMetric):
    """Log loss of `softmax(l / T)` over K classes, where the temperature T is fitted on other rows.

    The temperature minimises the mean of `-Σ_k y_k log softmax(l / T)_k` on some of the rows; the
    result is that loss, in nats, on the others. If seeds differ in their mean confidence, it varies
    less between seeds than the log loss does. It does not show an improvement of the mean
    confidence: report the log loss too.

    Labels are class numbers from 0 to K - 1, shape `(n,)` or `(n, 1)`, or one-hot or soft labels,
    shape `(n, K)`, each row with sum 1.

    By default every row is scored with the temperature of the other folds. `bias_fraction=0.2` is
    the hold-out of the papers' image study; `num_folds=1` fits and scores on the same rows. See
    `CrossFittedMetric`.

    The state holds exact label sums, and the label-free part of the loss with two derivatives at 49
    temperatures from 1/16 to 16. Between these, it is interpolated. The mean loss has an error of
    about 1e-9 (at worst, if all rows have the same confidence, 2e-8 for 10 classes and 2e-6 for
    1000). Temperatures are clipped to [1/16, 16]: if every label has the largest logit, the
    temperature is 1/16.

    The state has a fixed size and adds up over batches, replicas and shards.

    The result is NaN

    - if there are no rows to fit on or to score,
    - if no temperature can be fitted, because the logits of every row are all equal,
    - if a class number is not a whole number in [0, K), a logit is not finite, a probability is
      outside [0, 1], the probabilities or labels of a row do not sum to 1 within 0.03 (most often
      logits without `from_logits=True`), or a weight is negative.

    Keras passes `sample_weight` only to `weighted_metrics=` of `compile`, not to `metrics=`.

    Args:
        num_folds: Number of folds, at least 1.
        bias_fraction: Share of the rows to fit the temperature on, in (0, 1), or None to use
            folds.
        from_logits: Whether predictions are logits. Prefer logits where the model provides them: a
            probability below 2⁻⁵³, 1.1e-16, counts as 2⁻⁵³.
        seed: Seed of the hash that assigns the rows.
        name: Name of the metric, and its key in the logs.
        dtype: Dtype of state and result. The default is float64 where the backend supports it.

    Raises:
        ValueError: If an argument is invalid, or arrays in `update_state` differ in shape.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> logits = rng.normal(0, 1, (10_000, 3))
        >>> labels = np.eye(3)[np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)]
        >>> metric = CalibratedCategoricalLogLoss(from_logits=True)
        >>> metric.update_state(labels, 2 * logits)  # an overconfident model
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
        dtype: str | None = None,
    ) -> None:
        super().__init__(num_folds, bias_fraction, seed, name, dtype, from_logits=from_logits)
        self._temperature_sums = self.add_sum(
            (self.num_groups, NUM_TEMPERATURES, 3), "temperature_sums"
        )
        self._label_sums = self.add_sum((self.num_groups, 2), "label_sums")

    def add_rows(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None) -> None:
        """Adds to the sums."""
        labels, logits, weights = class_rows(y_true, y_pred, sample_weight, self.dtype)
        if not self.from_logits:
            logits = class_logits_from_probabilities(distribution_or_nan(logits))
        logits = ops.where(ops.isfinite(logits), logits, float("nan"))
        group = self.next_groups(weights, all_count=sample_weight is None)
        summary = _compiled_summary(*filled_up(labels, logits, weights, group), self.num_groups)
        for total, values in zip((self._temperature_sums, self._label_sums), summary, strict=True):
            total.add(values)

    @checked_result
    def result(self) -> Tensor:
        """The loss of the rows since `reset_state`, a scalar in nats."""
        return self._score_at_best_temperature()[0]

    @property
    def uncalibrated_loss(self) -> float:
        """The mean log loss of the scored rows at the temperature 1, in nats."""
        values = self._temperature_sums.value(), self._label_sums.value()
        sums, labels = (scored_sums(value, self.held_out) for value in values)
        return float(_compute_mean(sums, labels, ops.ones_like(labels[:, 0])))

    @property
    def temperature(self) -> np.ndarray:
        """The fitted temperature T of each scored part, in [1/16, 16], shape `(parts,)`."""
        return 1 / np.asarray(self._score_at_best_temperature()[1])

    def _score_at_best_temperature(self) -> tuple[Tensor, Tensor]:
        """Mean loss at the best inverse temperatures, and these."""
        return _compiled_loss(
            self._temperature_sums.value(), self._label_sums.value(), self.held_out
        )


def _compute_loss(sums: Tensor, label_sums: Tensor, held_out: bool) -> tuple[Tensor, Tensor]:
    """The mean log loss of the scored rows, and β, which is fitted on other rows."""
    labels = fitting_sums(label_sums, held_out)
    beta = best_inverse_temperature(fitting_sums(sums, held_out), labels[:, 1], labels[:, 0])
    return _compute_mean(scored_sums(sums, held_out), scored_sums(label_sums, held_out), beta), beta


def _compute_mean(sums: Tensor, labels: Tensor, beta: Tensor) -> Tensor:
    """The mean log loss of softmax(β l)."""
    # Σ w log loss is F(β) - β Σ w d_y, from the sums alone.
    losses = log_partition_sum(sums, beta) - beta * labels[:, 1]
    return ops.sum(losses) / ops.sum(labels[:, 0])


_compiled_summary = compiled(temperature_summary)
_compiled_loss = compiled(_compute_loss)
