"""FieldRCE: the field-level relative calibration error."""

from __future__ import annotations

import keras

from calibration_records._check import positive
from keras_calibration._ops.field_sums import field_rce_from_sums
from keras_calibration._typing import Tensor
from keras_calibration.metrics.field_error import FieldError


@keras.saving.register_keras_serializable(package="keras_calibration")
class FieldRCE(FieldError):
    """Field-level relative calibration error: `(1/n) Σ_z N_z |Σ (y - p)| / Σ (y + ε)`.

    The inner sums run over the N_z rows of the field value z: the error of each field value is
    divided by its positives. With weights, every sum, N_z and n is weighted. A field value without
    positives has the denominator ε N_z. Such values can make up most of the error, and they favour
    models that predict too low: read this metric together with the log loss.

    Args:
        num_values: Number of field values. Ids must be in [0, num_values), or -1 for "other".
        epsilon: ε > 0; 0.01 in the paper.
        from_logits: Whether predictions are logits.
        name: Name of the metric, and its key in the logs.
        dtype: Dtype of state and result. The default is float64 where the backend supports it.

    Raises:
        ValueError: If an argument is invalid, `field` is missing or holds invalid ids, or arrays
            differ in length.

    Example:
        >>> metric = FieldRCE(num_values=2)
        >>> metric.update_state([1, 0, 1, 1], [0.5, 0.5, 0.5, 0.5], field=[0, 0, 1, 1])
        >>> round(float(metric.result()), 4)
        0.2475
        >>> mean, standard_deviation = metric.noise_floor()
        >>> mean > float(metric.result())  # no more than chance would give
        True

    Reference:
        Pan et al., *Field-aware Calibration*, WWW 2020, eq. 6.
    """

    def __init__(
        self,
        num_values: int,
        epsilon: float = 0.01,
        from_logits: bool = False,
        name: str = "field_rce",
        dtype: str | None = None,
    ) -> None:
        positive("epsilon", epsilon)
        super().__init__(num_values, name, from_logits, dtype, epsilon=float(epsilon))

    def error(self, sums: Tensor) -> Tensor:
        """Field-RCE from the sums by field value, a scalar."""
        return field_rce_from_sums(sums, self.epsilon)
