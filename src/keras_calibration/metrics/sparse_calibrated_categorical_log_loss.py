"""SparseCalibratedCategoricalLogLoss: `CalibratedCategoricalLogLoss` for integer labels."""

from __future__ import annotations

import keras
from keras import ops

from calibration_records._columns import warn_of_other_order
from keras_calibration._rows.metric_rows import as_tensor
from keras_calibration._typing import Tensor
from keras_calibration.metrics.calibrated_categorical_log_loss import CalibratedCategoricalLogLoss


@keras.saving.register_keras_serializable(package="keras_calibration")
class SparseCalibratedCategoricalLogLoss(CalibratedCategoricalLogLoss):
    """Log loss of `softmax(l / T)` with T fitted on other rows, for class numbers as labels.

    The same as `CalibratedCategoricalLogLoss`, for labels that are whole numbers in [0, K) instead
    of one-hot. Any other label makes the result NaN.

    Args:
        num_folds: Number of folds, at least 1.
        bias_fraction: Share of the rows to fit the temperature on, in (0, 1), or None to use
            folds.
        from_logits: Whether predictions are logits. Prefer logits where the model provides them.
        seed: Seed of the hash that assigns the rows.
        name: Name of the metric, and its key in the logs.
        dtype: Dtype of state and result. The default is float64 where the backend supports it.

    Raises:
        ValueError: If an argument is invalid, or arrays in `update_state` differ in shape.

    Example:
        >>> metric = SparseCalibratedCategoricalLogLoss(num_folds=1, from_logits=True)
        >>> metric.update_state([0, 0, 0, 1], [[2.0, 0.0]] * 4)
        >>> round(float(metric.result()), 4)  # of the probabilities 3/4 and 1/4
        0.5623
        >>> print(metric.temperature.round(4))  # 2 / log 3
        [1.8205]

    Reference:
        Fan, Si, Song, Zhang, *Calibration-then-Calculation*, arXiv 2401.16692.
    """

    def __init__(
        self,
        num_folds: int = 2,
        bias_fraction: float | None = None,
        from_logits: bool = False,
        seed: int = 0,
        name: str = "sparse_calibrated_categorical_log_loss",
        dtype: str | None = None,
    ) -> None:
        super().__init__(num_folds, bias_fraction, from_logits, seed, name=name, dtype=dtype)

    def update_state(
        self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None
    ) -> None:
        """Adds rows.

        Args:
            y_true: Class numbers in [0, K), any dtype, shape `(n,)` or `(n, 1)`.
            y_pred: Probabilities, or logits with `from_logits=True`, shape `(n, K)`.
            sample_weight: Non-negative weights, shape `(n,)` or `(n, 1)`, or None.
        """
        warn_of_other_order(y_true=y_true, y_pred=y_pred, sample_weight=sample_weight)
        classes = as_tensor(y_true, "Labels")
        shape = tuple(classes.shape)
        if len(shape) not in (1, 2) or (len(shape) == 2 and shape[1] != 1):
            raise ValueError(
                "Argument `y_true` must hold class numbers, with shape (n,) or (n, 1). Received: "
                f"shape {shape}. For one-hot labels, use CalibratedCategoricalLogLoss."
            )
        y_pred = as_tensor(y_pred, "Predictions")
        num_classes = y_pred.shape[-1] if len(y_pred.shape) == 2 else 0
        # An invalid label gives a row of zeros, which then becomes NaN.
        numbers = ops.arange(num_classes or 0, dtype=self.dtype)
        one_hot = ops.reshape(ops.cast(classes, self.dtype), (-1, 1)) == numbers
        super().update_state(one_hot, y_pred, sample_weight)
