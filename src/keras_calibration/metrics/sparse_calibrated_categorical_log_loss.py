"""SparseCalibratedCategoricalLogLoss: CalibratedCategoricalLogLoss for class numbers as labels."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_calibration.metrics.calibrated_categorical_log_loss import CalibratedCategoricalLogLoss


@keras.saving.register_keras_serializable(package="keras_calibration")
class SparseCalibratedCategoricalLogLoss(CalibratedCategoricalLogLoss):
    """Log loss of `softmax(l / T)`, with the temperature T fitted on other rows: class numbers.

    The same as `CalibratedCategoricalLogLoss`, for labels that are whole numbers in [0, K) rather
    than one-hot. Any other label makes the result NaN.

    Args:
        num_folds: Number of folds, at least 1.
        bias_fraction: Share of the rows that the correction is fitted on, in (0, 1); None for
            folds.
        correction: What is fitted: `"temperature"`, or `"class_bias"`, a bias for each class.
        from_logits: Whether predictions are logits; prefer these where the model gives them.
        num_classes: Number of classes K, at least 2; needed for `"class_bias"` only.
        starting_bias: Biases that are added to the logits before any is fitted, K numbers, or None;
            for `"class_bias"` only.
        seed: Seed of the hash that shares out the rows.
        name: Name of the metric and key of the logs.
        dtype: Dtype of the state and the result; float64 by default where the backend has it.

    Raises:
        ValueError: If an argument is out of its range, or rows do not align in `update_state`.

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
        correction: str = "temperature",
        from_logits: bool = False,
        num_classes: int | None = None,
        starting_bias: Sequence[float] | None = None,
        seed: int = 0,
        name: str = "sparse_calibrated_categorical_log_loss",
        dtype: Any = None,
    ) -> None:
        super().__init__(
            num_folds,
            bias_fraction,
            correction,
            from_logits,
            num_classes,
            starting_bias,
            seed,
            name=name,
            dtype=dtype,
        )

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds rows.

        Args:
            y_true: Class numbers in [0, K), any dtype (n,) or (n, 1).
            y_pred: Probabilities, or logits with `from_logits=True` (n, K).
            sample_weight: Weights, not negative (n,) or (n, 1), or None.
        """
        classes = ops.convert_to_tensor(y_true)
        shape = tuple(classes.shape)
        if len(shape) not in (1, 2) or (len(shape) == 2 and shape[1] != 1):
            raise ValueError(
                f"Expected class numbers of shape (n,) or (n, 1). Received: labels of shape {shape}"
                ". For one-hot labels, use CalibratedCategoricalLogLoss."
            )
        y_pred = ops.convert_to_tensor(y_pred)
        num_classes = y_pred.shape[-1] if len(y_pred.shape) == 2 else 0
        # A label that is no class number equals none, and its row of zeros becomes NaN.
        numbers = ops.arange(num_classes or 0, dtype=self.dtype)
        one_hot = ops.reshape(ops.cast(classes, self.dtype), (-1, 1)) == numbers
        super().update_state(one_hot, y_pred, sample_weight)
