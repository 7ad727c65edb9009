"""FieldECE: the field-level expected calibration error."""

from collections.abc import Sequence
from typing import Any

import keras

from keras_calibration.metrics.field_error import FieldError
from keras_calibration.ops.field_sums import field_ece


@keras.saving.register_keras_serializable(package="keras_calibration")
class FieldECE(FieldError):
    """Field-level expected calibration error: `(1/n) Σ_z |Σ_{i: z_i = z} (y_i - p_i)|`.

    How far the sum of the predictions is from the sum of the labels in each segment, added up over
    the segments, per row. With weights, every sum and n is weighted. A model that is exactly right
    does not reach 0: chance alone makes sums differ, the more so with many values of few rows; see
    `noise_floor`.

    Args:
        num_values: Number of field values; ids beyond count as one value "other". A tuple for a
            cross of fields, whose `field=` is a tuple of ids.
        name: Name of the metric.
        dtype: Dtype of the state and the result; float64 by default where the backend has it.

    Raises:
        ValueError: If an argument is out of its range, the field is missing, or rows do not align.

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
        self, num_values: int | Sequence[int], name: str = "field_ece", dtype: Any = None
    ) -> None:
        super().__init__(num_values, name=name, dtype=dtype)

    def error(self, sums: Any) -> Any:
        """Field-ECE of field sums, a scalar in units of probability."""
        return field_ece(sums)
