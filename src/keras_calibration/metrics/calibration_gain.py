"""CalibrationGain: the part of the log loss that a correction of the predictions removes."""

from __future__ import annotations

import keras

from keras_calibration._typing import Tensor
from keras_calibration.metrics.additive_metric import warns_of_nan
from keras_calibration.metrics.calibrated_log_loss import CalibratedLogLoss
from keras_calibration.metrics.log_loss import LogLoss
from keras_calibration.metrics.log_sums import LabelSums, LogitMoments


@keras.saving.register_keras_serializable(package="keras_calibration")
class CalibrationGain(CalibratedLogLoss):
    """Log loss minus Calibrated Log Loss, on the same rows: `G = LL - CLL`.

    A change of pipeline that lowers the log loss may have made a better model, or it may only have
    moved the mean prediction closer to the mean label, which any calibration does as well. Three
    metrics tell the two apart: `LogLoss() = CalibratedLogLoss() + CalibrationGain()` holds exactly.
    In-sample (`num_folds=1`) G is never negative. Cross-fitted, it can be slightly negative by
    chance when there is nothing to correct.

    This is the decomposition of the log loss into refinement and calibration error. The refinement
    is the log loss after the best recalibration of the predictions, a function of the prediction
    alone; the calibration error is what that recalibration gains. The Calibrated Log Loss estimates
    the first and G the second, with the best recalibration sought among those of `correction`:
    `"platt"` finds most. A curved miscalibration stays in the Calibrated Log Loss; `calibrate`
    reports the cross-fitted log loss after more flexible corrections, such as `"ilps"`. To keep the
    epoch with the best refinement, and calibrate afterwards, stop training early by a
    `CalibratedLogLoss` of the validation rows.

    Args:
        num_folds: As for `CalibratedLogLoss`.
        bias_fraction: As for `CalibratedLogLoss`. The log loss still uses all rows.
        correction: As for `CalibratedLogLoss`.
        from_logits: Whether predictions are logits.
        seed: As for `CalibratedLogLoss`.
        name: Name of the metric, and its key in the logs.
        dtype: Dtype of state and result. The default is float64 where the backend supports it.

    Raises:
        ValueError: If an argument is invalid, or arrays in `update_state` differ in length.

    Example:
        >>> metrics = [LogLoss(), CalibratedLogLoss(num_folds=1), CalibrationGain(num_folds=1)]
        >>> for metric in metrics:
        ...     metric.update_state([1, 0, 1, 0, 1], [0.2, 0.1, 0.5, 0.4, 0.3])
        >>> [round(float(metric.result()), 4) for metric in metrics]
        [0.8245, 0.6085, 0.2161]

    Reference:
        Fan, Si, Song, Zhang, *Calibration-then-Calculation*, arXiv 2401.16692. The decomposition:
        Bröcker, *Reliability, Sufficiency, and the Decomposition of Proper Scores*, Quarterly
        Journal of the Royal Meteorological Society 2009. Early stopping by refinement, estimated
        after `correction="temperature"`: Berta, Holzmüller, Jordan, Bach, *Rethinking Early
        Stopping: Refine, Then Calibrate*, arXiv 2501.19195.
    """

    def __init__(
        self,
        num_folds: int = 2,
        bias_fraction: float | None = None,
        correction: str = "bias",
        from_logits: bool = False,
        seed: int = 0,
        name: str = "calibration_gain",
        dtype: str | None = None,
    ) -> None:
        super().__init__(
            num_folds, bias_fraction, correction, from_logits, seed, name=name, dtype=dtype
        )
        self._log_loss = LogLoss(from_logits=from_logits, dtype=dtype)

    def add_rows(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None) -> None:
        """Adds to the sums."""
        super().add_rows(y_true, y_pred, sample_weight)
        self._log_loss.update_state(y_true, y_pred, sample_weight)

    @property
    def has_rolling_loss(self) -> bool:
        """A difference of losses has none."""
        return False

    def log_sums(self) -> dict[str, LabelSums | LogitMoments]:
        """Which sums of a scored log are those of `sum_shapes`."""
        name = self._log_loss.name
        inner = {f"{name}/{key}": sums for key, sums in self._log_loss.log_sums().items()}
        return super().log_sums() | inner

    @warns_of_nan
    def result(self) -> Tensor:
        """The calibration gain of the rows since `reset_state`, a scalar in nats."""
        return self._log_loss.result() - super().result()
