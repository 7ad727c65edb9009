"""FieldRCE: the field-level relative calibration error."""

import math
from typing import Any

import keras

from keras_calibration.metrics.field_error import FieldError
from keras_calibration.ops.field_sums import field_rce


@keras.saving.register_keras_serializable(package="keras_calibration")
class FieldRCE(FieldError):
    """Field-level relative calibration error: `(1/n) Σ_z N_z |Σ (y - p)| / Σ (y + ε)`.

    The inner sums run over the rows of the value z; N_z is their number. It is the error of each
    segment relative to its own clicks. With weights, every sum, N_z and n is weighted. A value
    without clicks has the denominator ε N_z: such values can hold most of the error, and reward a
    model that predicts too little; read it beside the log loss.

    Args:
        num_values: Number of field values; ids beyond count as one value "other".
        epsilon: ε > 0, the paper's 0.01.
        name: Name of the metric.
        dtype: Dtype of the state and the result; float64 by default where the backend has it.

    Raises:
        ValueError: If an argument is out of its range, the field is missing, or rows do not align.

    Example:
        >>> metric = FieldRCE(num_values=2)
        >>> metric.update_state([1, 0, 1, 1], [0.5, 0.5, 0.5, 0.5], field=[0, 0, 1, 1])
        >>> round(float(metric.result()), 4)
        0.2475

    Reference:
        Pan et al., *Field-aware Calibration*, WWW 2020, eq. 6.
    """

    def __init__(
        self,
        num_values: int,
        epsilon: float = 0.01,
        name: str = "field_rce",
        dtype: Any = None,
    ) -> None:
        super().__init__(num_values, name=name, dtype=dtype)
        if not 0 < epsilon < math.inf:
            raise ValueError(
                "Argument `epsilon` must be a finite number above 0. "
                f"Received: epsilon={epsilon!r}."
            )
        self.epsilon = float(epsilon)

    def result(self) -> Any:
        """Field-RCE of all rows since `reset_state`, a scalar without unit."""
        return field_rce(self._sums.value(), self.epsilon)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor, as plain Python values."""
        return {**super().get_config(), "epsilon": self.epsilon}
