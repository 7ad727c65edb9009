"""SmoothECE: the calibration error of smoothed residuals, without bins."""

from __future__ import annotations

import keras
from keras import ops

from calibration_records._check import integer
from keras_calibration._ops.compiled import compiled
from keras_calibration._ops.smooth_ece import residuals_on_grid, smooth_ece_from_sums
from keras_calibration._rows.metric_rows import probability_rows
from keras_calibration._typing import Tensor
from keras_calibration.metrics.additive_metric import AdditiveMetric, warns_of_nan


@keras.saving.register_keras_serializable(package="keras_calibration")
class SmoothECE(AdditiveMetric):
    """Smooth expected calibration error: the ECE of residuals smoothed over nearby predictions.

    `smECE = ∫ |r_σ(t)| dt`, where `r_σ(t) = Σ w (y - p) K_σ(t, p) / Σ w` and K is a Gaussian kernel
    of bandwidth σ, reflected at 0 and 1. The bandwidth is the one at which `smECE = σ`, so errors
    of opposite sign cancel over predictions about as far apart as the error itself, and there is
    nothing to choose. It is a continuous function of the predictions and bounds their distance to
    calibrated ones from both sides (a consistent measure of calibration). In
    `ExpectedCalibrationError`, by contrast, a prediction that moves over the edge of a bin can
    change the result by any amount.

    The state is the sum of the residuals at `num_cells + 1` equally spaced probabilities; each
    residual is divided between its two neighbours. The result is within about 1 % of that of the
    rows themselves if it is above two cells, 0.001 by default, and a little too low if it is below.
    Where positives are so rare that smaller errors matter, use more cells.

    Soft labels within [0, 1] are allowed. The result is NaN if there are no rows, if a label or
    prediction is NaN or outside [0, 1] (most often a logit without `from_logits=True`), or if a
    weight is negative. Keras passes `sample_weight` only to `weighted_metrics=` of `compile`.

    Args:
        num_cells: Number of cells of the grid of probabilities, at least 2; best a power of 2.
        from_logits: Whether predictions are logits.
        name: Name of the metric, and its key in the logs.
        dtype: Dtype of state and result. The default is float64 where the backend supports it.

    Raises:
        ValueError: If an argument is invalid, or arrays in `update_state` differ in length.

    Example:
        >>> metric = SmoothECE()
        >>> metric.update_state([0, 0, 1, 1], [0.3, 0.3, 0.8, 0.8])
        >>> round(float(metric.result()), 4)
        0.199

    Reference:
        Błasiok, Nakkiran, *Smooth ECE: Principled Reliability Diagrams via Kernel Smoothing*, arXiv
        2309.12236.
    """

    def __init__(
        self,
        num_cells: int = 2048,
        from_logits: bool = False,
        name: str = "smooth_ece",
        dtype: str | None = None,
    ) -> None:
        num_cells = integer("num_cells", num_cells, 2)
        super().__init__(name, dtype, num_cells=num_cells, from_logits=bool(from_logits))
        self._residuals = self.add_sum((self.num_cells + 1,), name="residuals")
        self._weight = self.add_sum((), name="weight")

    def add_rows(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None) -> None:
        """Adds to the sums."""
        labels, probabilities, weights = probability_rows(
            y_true, y_pred, sample_weight, self.from_logits, self.dtype
        )
        self._residuals.add(residuals_on_grid(labels, probabilities, weights, self.num_cells))
        self._weight.add(ops.sum(weights))

    @warns_of_nan
    def result(self) -> Tensor:
        """The error of the rows since `reset_state`, a scalar in units of probability."""
        return _compiled_error(self._residuals.value(), self._weight.value())


_compiled_error = compiled(smooth_ece_from_sums)
