"""FieldECE: the field-level expected calibration error."""

from __future__ import annotations

import keras

from keras_calibration._ops.field_sums import field_ece_from_sums
from keras_calibration._typing import Tensor
from keras_calibration.metrics.field_error import FieldError


@keras.saving.register_keras_serializable(package="keras_calibration")
class FieldECE(FieldError):
    """Field-level expected calibration error: `(1/n) Σ_z |Σ_{i: z_i = z} (y_i - p_i)|`.

    For each field value z, it takes the absolute difference between the sum of the labels and the
    sum of the predictions. It adds these up and divides by the number of rows n. With weights,
    every sum and n is weighted. By chance, a calibrated model does not reach 0, above all with many
    field values of few rows; `noise_floor` estimates its error.

    Args:
        num_values: Number of field values. Ids must be in [0, num_values), or -1 for "other".
        from_logits: Whether predictions are logits.
        name: Name of the metric, and its key in the logs.
        dtype: Dtype of state and result. The default is float64 where the backend supports it.

    Raises:
        ValueError: If an argument is invalid, `field` is missing or holds invalid ids, or arrays
            differ in length.

    Example:
        >>> metric = FieldECE(num_values=2)
        >>> metric.update_state([1, 0, 1, 1], [0.5, 0.5, 0.5, 0.5], field=[0, 0, 1, 1])
        >>> float(metric.result())
        0.25
        >>> table = metric.per_field()
        >>> table["value"].tolist(), table["observed_rate"].tolist(), table["is_off"].tolist()
        ([0, 1], [0.5, 1.0], [False, False])
        >>> mean, standard_deviation = metric.noise_floor()
        >>> round(mean, 2), round(standard_deviation, 2)
        (0.25, 0.18)

    Reference:
        Pan et al., *Field-aware Calibration*, WWW 2020, eq. 5.
    """

    def __init__(
        self,
        num_values: int,
        from_logits: bool = False,
        name: str = "field_ece",
        dtype: str | None = None,
    ) -> None:
        super().__init__(num_values, name=name, from_logits=from_logits, dtype=dtype)

    def error(self, sums: Tensor) -> Tensor:
        """Field-ECE from the sums by field value, a scalar in units of probability."""
        return field_ece_from_sums(sums)
