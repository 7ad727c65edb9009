"""RollingCalibratedLoss: the loss of each period, with the bias fitted on the period before."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calibration._typing import Tensor
from keras_calibration.metrics.additive_metric import AdditiveMetric, warns_of_nan
from keras_calibration.metrics.rows import flat_ids, flat_rows, real_rows
from keras_calibration.ops.compiled import compiled
from keras_calibration.ops.field_sums import known_ids
from keras_calibration.ops.logit_moments import (
    NUM_BINS,
    NUM_COLUMNS,
    bias_root,
    by_group,
    log_loss_sum,
    logit_moments,
    total_weight,
)
from keras_calibration.ops.losses import logits_from_probabilities
from keras_calibration.ops.quadratic_loss import mean_residual, residual_sums, squared_error_sum
from keras_calibration.ops.rolling import earlier_period

_PERIOD_DTYPE = [("weight", np.float64), ("bias", np.float64), ("loss", np.float64)]


@keras.saving.register_keras_serializable(package="keras_calibration")
class RollingCalibratedLoss(AdditiveMetric):
    """Loss of the rows of each period, with the bias fitted on the rows of the period before.

    For data that drift: the bias of last month corrects this month, as it would in production. The
    result is the weighted mean over all scored rows. With `loss="log"` it is the log loss of
    `σ(l + c)`, where c makes the predictions of the period before sum to its labels. With
    `loss="quadratic"` it is the squared error of `p + c`, where c is the mean residual of the
    period before.

    The period of each row is passed as `update_state(..., field=period)`. In `compile`, pass the
    metric to `field_metrics=` of a `FieldMetricsModel` or a `CalibratedModel`, which gives it the
    feature of that name: `field_metrics={"month": [RollingCalibratedLoss(12)]}`. Rows may come in
    any order; periods are ordered by their number.

    The first period that has rows is not scored. A period that follows an empty one takes the bias
    of the nearest earlier period with rows of positive weight. The result is NaN

    - if fewer than two periods have rows, or a period is outside [0, num_periods),
    - if a label is outside [0, 1] (for `"quadratic"`: not finite), a prediction is not finite, a
      probability is outside [0, 1] (most often a logit without `from_logits=True`), or a weight is
      negative,
    - for `"log"`, if a period that corrects another has labels of one class only, its bias moves
      logits from beyond ±88 close to 0, or all its logits are beyond ±88.

    For `"log"`, the state is 27 kB a period in float64, moments of the logits in 418 bins. For
    `"quadratic"`, it is six sums a period.

    Args:
        num_periods: Number of periods, at least 2.
        loss: `"log"` (binary labels) or `"quadratic"` (regression).
        from_logits: Whether predictions are logits. Only for `"log"`.
        name: Name of the metric, and its key in the logs.
        dtype: Dtype of state and result. The default is float64 where the backend supports it.

    Raises:
        ValueError: If an argument is invalid, `field` is missing, or arrays differ in length.

    Example:
        >>> metric = RollingCalibratedLoss(3, loss="quadratic")
        >>> labels, predictions = [1.0, 3.0, 4.0, 5.0], [0.0, 1.0, 2.0, 3.0]
        >>> metric.update_state(labels, predictions, field=[0, 0, 1, 2])
        >>> float(metric.result())
        0.125
        >>> metric.per_period()["bias"]
        array([nan, 1.5, 2. ])

    Reference:
        Fan, Si, Song, Zhang, *Calibration-then-Calculation*, arXiv 2401.16692, in the version with
        regression (the months of a stock index).
    """

    def __init__(
        self,
        num_periods: int,
        loss: str = "log",
        from_logits: bool = False,
        name: str = "rolling_calibrated_loss",
        dtype: str | None = None,
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        if not isinstance(num_periods, int | np.integer) or num_periods < 2:
            raise ValueError(
                "Argument `num_periods` must be an integer of at least 2, because each period "
                f"corrects the next. Received: num_periods={num_periods!r}."
            )
        if loss not in ("log", "quadratic"):
            raise ValueError(
                'Argument `loss` must be "log" for binary labels or "quadratic" for regression. '
                f"Received: loss={loss!r}."
            )
        if from_logits and loss == "quadratic":
            raise ValueError(
                'Argument `from_logits` must be False with loss="quadratic", for which predictions '
                "are in the unit of the label. Received: from_logits=True."
            )
        self.num_periods = int(num_periods)
        self.loss = loss
        self.from_logits = from_logits
        if loss == "log":
            self._sums = self.add_sum((self.num_periods * NUM_BINS, NUM_COLUMNS), name="moments")
        else:
            self._sums = self.add_sum((self.num_periods, 6), name="residual_sums")

    def update_state(
        self,
        y_true: Tensor,
        y_pred: Tensor,
        sample_weight: Tensor | None = None,
        field: Tensor | None = None,
    ) -> None:
        """Adds rows.

        Args:
            y_true: Labels, in [0, 1] for the log loss, shape `(n,)` or `(n, 1)`.
            y_pred: Predictions, shape `(n,)` or `(n, 1)`: probabilities, logits with
                `from_logits=True`, or real numbers for the quadratic loss.
            sample_weight: Non-negative weights, shape `(n,)` or `(n, 1)`, or None.
            field: Periods, whole numbers in [0, num_periods), shape `(n,)` or `(n, 1)`.
        """
        if field is None:
            raise ValueError(
                "Argument `field` must be the period of every row: update_state(y_true, y_pred, "
                "field=period). Received: field=None. In `compile`, pass RollingCalibratedLoss to "
                "`field_metrics=` of a FieldMetricsModel or CalibratedModel, not to `metrics=`."
            )
        rows = flat_rows if self.loss == "log" else real_rows
        labels, predictions, weights = rows(y_true, y_pred, sample_weight, self.dtype)
        period = known_ids(flat_ids(field, labels, "period"), self.num_periods)
        # A row outside all periods must make the result NaN; through which period does not matter.
        weights = ops.where(period < self.num_periods, weights, float("nan"))
        period = ops.minimum(period, self.num_periods - 1)
        if self.loss == "quadratic":
            self._sums.add(residual_sums(labels, predictions, weights, period, self.num_periods))
            return
        logits = predictions if self.from_logits else logits_from_probabilities(predictions)
        self._sums.add(logit_moments(labels, logits, weights, period, self.num_periods))

    @warns_of_nan
    def result(self) -> Tensor:
        """The loss of the scored rows since `reset_state`, in nats or squared label units."""
        weight, _, loss_sum, scored = self._by_period()
        # A NaN anywhere in the sums comes from an invalid row. It makes the result NaN even if its
        # period is not scored.
        spoilt = 0 * ops.sum(self._sums.value())
        loss = ops.sum(ops.where(scored, loss_sum, 0.0))
        return loss / ops.sum(ops.where(scored, weight, 0.0)) + spoilt

    def per_period(self) -> np.ndarray:
        """The loss of each period.

        Returns:
            A structured array of shape `(num_periods,)`: `weight`, the total weight of the rows of
            the period; `bias`, the bias that corrects them, fitted on an earlier period; `loss`,
            their mean loss. Bias and loss are NaN where the period is not scored.
        """
        weight, bias, loss_sum, scored = (ops.convert_to_numpy(part) for part in self._by_period())
        table = np.full(self.num_periods, np.nan, _PERIOD_DTYPE)
        table["weight"] = weight
        table["bias"][scored] = bias[scored]
        table["loss"][scored] = loss_sum[scored] / weight[scored]
        return table

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor, as plain Python values."""
        return {
            "num_periods": self.num_periods,
            "loss": self.loss,
            "from_logits": self.from_logits,
            "name": self.name,
            "dtype": self.dtype,
        }

    def _by_period(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return _compiled_by_period(self._sums.value(), self.loss)


def _loss_by_period(sums: Tensor, loss: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """For each period: weight, the bias applied to it, summed loss, and whether it is scored."""
    if loss == "log":
        summary = by_group(sums)
        weight, own_bias = total_weight(summary), bias_root(summary)
    else:
        weight, own_bias = sums[:, 0], mean_residual(sums)
    source = earlier_period(weight)
    bias = ops.take(own_bias, ops.maximum(source, 0))
    if loss == "log":
        loss_sum = log_loss_sum(summary, bias)
    else:
        loss_sum = squared_error_sum(sums, bias, ops.ones_like(bias))
    return weight, bias, loss_sum, ops.logical_and(weight > 0, source >= 0)


_compiled_by_period = compiled(_loss_by_period)
