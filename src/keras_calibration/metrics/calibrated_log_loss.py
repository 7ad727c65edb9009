"""CalibratedLogLoss: the log loss after the bias of the predictions is corrected."""

from __future__ import annotations

import keras
import numpy as np
from keras import ops

from calibration_records._logit_moments import NUM_BINS, NUM_COLUMNS
from keras_calibration._ops.compiled import compiled, filled_up
from keras_calibration._ops.folds import fitting_sums, num_groups_of, row_groups, scored_sums
from keras_calibration._ops.logit_moments import (
    bias_root,
    by_group,
    log_loss_and_weight,
    logit_moments,
)
from keras_calibration._ops.losses import logits_from_probabilities
from keras_calibration._rows.metric_rows import rows_or_nan, rows_with_all_digits
from keras_calibration._typing import Tensor
from keras_calibration.metrics.additive_metric import checked_result
from keras_calibration.metrics.cross_fitted_metric import CrossFittedMetric, numbers_of_rows
from keras_calibration.metrics.log_sums import LabelSums, LogitMoments


@keras.saving.register_keras_serializable(package="keras_calibration")
class CalibratedLogLoss(CrossFittedMetric):
    """Log loss of `σ(l + c)`, where the bias c is fitted on other rows.

    From seed to seed, training moves the mean prediction of a model up or down by chance, and the
    log loss moves with it. The Calibrated Log Loss finds the bias
    `c = argmin_c Σ w log loss(y, σ(l + c))` on some of the rows, which is where
    `Σ w σ(l + c) = Σ w y`, and reports the mean log loss of `σ(l + c)` on the others.

    It is the loss of a model that is calibrated again before it is served. If seeds differ in their
    bias, as after many steps in small batches, it varies less between seeds than the log loss does.
    It then needs fewer runs to show the better of two pipelines, if their difference survives the
    correction. It does not detect a pipeline that is only better calibrated, a limitation that
    the paper names in section 7. If pipelines differ in the mean of their bias, as on data that
    drift, or in its noise over the seeds, the two losses can prefer different pipelines: a bias b
    raises the log loss by about `½ p (1 − p) (mean(b)² + Var(b))`. `seeds.compare` prints the share
    of bias in the seed variance and the share of the difference that survives. For a model that is
    served as it was trained, the log loss decides.

    The rows are divided in one of three ways:

    - `num_folds=2` (default): cross-fitted. Every row is scored with the bias of the other folds.
    - `bias_fraction=0.1`: hold-out, as in the papers. The bias is fitted on that share of the rows
      and the loss is computed on the rest. Its variance is higher.
    - `num_folds=1`: in-sample. Bias and loss use all rows. It is never above the log loss.

    Rows are assigned by a hash of their number since `reset_state`, so neither the batch size nor a
    periodic order of the rows changes the result. Another order of the rows gives other folds, and
    by chance another result: do not shuffle the validation rows.

    The state has a fixed size, 27 kB a fold: moments of the logits in 418 bins and exact sums of
    the labels. It adds up over batches, replicas and shards. For logits in [-88, 88) the loss has a
    relative error below 1e-6 (in float32 about 1e-5), and below 1e-9 for logits in [-16, 16).

    Soft labels within [0, 1] are allowed. The result is NaN

    - if there are no rows, or the rows that a bias is fitted on have labels of one class only,
    - if a label is outside [0, 1], a weight is negative, a prediction is NaN or infinite, or a
      probability is outside [0, 1] (most often a logit without `from_logits=True`),
    - if the rows do not determine the bias, because all probabilities are 0 or 1 with any bias,
    - if the relative error of the loss may exceed 1e-6, because the bias moves logits from beyond
      ±88 close to 0.

    Keras passes `sample_weight` only to `weighted_metrics=` of `compile`, not to `metrics=`.

    Args:
        num_folds: Number of folds, at least 1.
        bias_fraction: Share of the rows that the bias is fitted on, in (0, 1), or None to use
            folds.
        from_logits: Whether predictions are logits. Prefer logits where the model provides them: a
            probability rounded to 1 has lost its logit.
        seed: Seed of the hash that assigns the rows.
        name: Name of the metric, and its key in the logs.
        dtype: Dtype of state and result. The default is float64 where the backend supports it.

    Raises:
        ValueError: If an argument is invalid, or arrays in `update_state` differ in length.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> logits = rng.normal(-2, 1, 10_000)
        >>> labels = rng.random(10_000) < 1 / (1 + np.exp(-logits))
        >>> metric = CalibratedLogLoss(from_logits=True)
        >>> metric.update_state(labels, logits + 0.5)  # predictions that are too high
        >>> round(float(metric.result()), 4), metric.bias.round(1)
        (0.3719, array([-0.6, -0.5]))

    Reference:
        Fan, Si, Song, Zhang, *Calibration-then-Calculation*, arXiv 2401.16692 (their bias is -c).
    """

    # Whether `scoring.score_by_period` also computes a rolling loss.
    has_rolling_loss = True

    def __init__(
        self,
        num_folds: int = 2,
        bias_fraction: float | None = None,
        from_logits: bool = False,
        seed: int = 0,
        name: str = "calibrated_log_loss",
        dtype: str | None = None,
    ) -> None:
        super().__init__(num_folds, bias_fraction, seed, name, dtype, from_logits=from_logits)
        self._moments = self.add_sum((self.num_groups * NUM_BINS, NUM_COLUMNS), name="moments")

    def add_rows(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None) -> None:
        """Adds to the sums."""
        rows, are_logits = rows_with_all_digits(y_true, y_pred, sample_weight, self.from_logits)
        first_row = self.count_rows(rows[2])
        sharing = (self.num_folds, self.bias_fraction, self.seed)
        self._moments.add(
            _compiled_moments(
                *filled_up(*rows), first_row, are_logits, sample_weight is None, sharing, self.dtype
            )
        )

    def log_sums(self) -> dict[str, LabelSums | LogitMoments]:
        """The sums of a scored log that make up `sum_shapes`."""
        return {"moments": LogitMoments(self.num_folds, self.bias_fraction, self.seed)}

    @checked_result
    def result(self) -> Tensor:
        """The Calibrated Log Loss of the rows since `reset_state`, a scalar in nats."""
        return self._score_rows()[0]

    @property
    def fitted_bias(self) -> float:
        """The mean of `bias`."""
        return float(self.bias.mean())

    @property
    def uncalibrated_loss(self) -> float:
        """The mean log loss of the scored rows without the correction, in nats."""
        sums = scored_sums(by_group(self._moments.value()), self.held_out)
        losses, weights = log_loss_and_weight(sums, ops.zeros_like(sums[:, 0, 0]))
        return float(ops.sum(losses) / ops.sum(weights))

    @property
    def bias(self) -> np.ndarray:
        """The fitted bias c of each scored part, added to the logit, shape `(parts,)`."""
        return np.asarray(self._score_rows()[1]).copy()

    def moments_of_all_rows(self) -> np.ndarray:
        """The moments of the logits of all rows by bin, (418, 8), float64."""
        moments = np.asarray(self._moments.value(), np.float64)
        return moments.reshape(-1, NUM_BINS, NUM_COLUMNS).sum(axis=0)

    def _score_rows(self) -> tuple[Tensor, Tensor]:
        return _compiled_loss(self._moments.value(), self.held_out)


def _compute_moments(
    labels: Tensor,
    predictions: Tensor,
    weights: Tensor,
    first_row: Tensor,
    from_logits: bool,
    all_count: bool,
    sharing: tuple[int, float | None, int],
    dtype: str,
) -> Tensor:
    # Take the logit in the dtype of the probabilities, at least float32: after a cast to float32,
    # float64 probabilities near 1 would have lost their logits.
    logits = predictions if from_logits else logits_from_probabilities(predictions)
    labels, logits, weights = rows_or_nan(labels, logits, weights, dtype)
    groups = row_groups(first_row + numbers_of_rows(weights, all_count), *sharing)
    return logit_moments(labels, logits, weights, groups, num_groups_of(*sharing[:2]))


def _compute_loss(moments: Tensor, held_out: bool) -> tuple[Tensor, Tensor]:
    """The mean log loss of the scored rows, and the biases, which are fitted on other rows."""
    summary = by_group(moments)
    bias = bias_root(fitting_sums(summary, held_out))
    losses, weights = log_loss_and_weight(scored_sums(summary, held_out), bias)
    # A bias by which a part cannot be scored is not reported either.
    bias = ops.where(ops.isnan(losses), float("nan"), bias)
    return ops.sum(losses) / ops.sum(weights), bias


_compiled_moments = compiled(_compute_moments)
_compiled_loss = compiled(_compute_loss)
