"""FieldRCE: the field-level relative calibration error."""

import math
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_calibration.metrics.field_error import FieldError
from keras_calibration.ops.field_sums import field_rce, without_positives


@keras.saving.register_keras_serializable(package="keras_calibration")
class FieldRCE(FieldError):
    """Field-level relative calibration error: `(1/n) Σ_z N_z |Σ (y - p)| / Σ (y + ε)`.

    The inner sums run over the rows of the value z; N_z is their number. It is the error of each
    segment relative to its own positives. With weights, every sum, N_z and n is weighted. A value
    without positives has the denominator ε N_z: such values can hold most of the error, and reward
    a model that predicts too little; read it beside the log loss.

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
        >>> mean, standard_deviation = metric.noise_floor()
        >>> mean > float(metric.result())  # nothing here that chance could not do
        True

    Reference:
        Pan et al., *Field-aware Calibration*, WWW 2020, eq. 6.
    """

    def __init__(
        self,
        num_values: int | Sequence[int],
        epsilon: float = 0.01,
        skip_without_positives: bool = False,
        name: str = "field_rce",
        dtype: Any = None,
    ) -> None:
        super().__init__(num_values, name=name, dtype=dtype)
        is_zero_allowed = skip_without_positives and epsilon == 0
        if not (0 < epsilon < math.inf or is_zero_allowed):
            raise ValueError(
                "Argument `epsilon` must be a finite number above 0 (or 0 where field values "
                f"without positives are skipped). Received: epsilon={epsilon!r}, "
                f"skip_without_positives={skip_without_positives!r}."
            )
        self.epsilon = float(epsilon)
        self.skip_without_positives = bool(skip_without_positives)

    def error(self, sums: Any) -> Any:
        """Field-RCE of field sums, a scalar without unit."""
        return field_rce(sums, self.epsilon, self.skip_without_positives)

    @property
    def skipped_share(self) -> float:
        """Share of the rows' weight that is left out of the result: 0 for the paper's form.

        NaN where there is no row, or a bad one.
        """
        sums = self._sums.value()
        rows = sums[:, 2]
        is_skipped = without_positives(sums) if self.skip_without_positives else False
        return float(ops.sum(ops.where(is_skipped, rows, 0.0)) / ops.sum(rows))

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor, as plain Python values."""
        return {
            **super().get_config(),
            "epsilon": self.epsilon,
            "skip_without_positives": self.skip_without_positives,
        }
