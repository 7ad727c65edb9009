"""FieldError: what Field-ECE and Field-RCE share."""

from typing import Any

import numpy as np
from keras import ops

from keras_calibration.metrics.additive_metric import AdditiveMetric
from keras_calibration.metrics.rows import flat_rows, nan_outside_unit_interval
from keras_calibration.ops.field_sums import field_sums


class FieldError(AdditiveMetric):
    """Base of the field errors: sums of `y - p`, of y and of rows for every field value.

    The field of each row comes with `update_state(..., field=ids)`. In `compile`, give field
    metrics to `field_metrics=` of a `FieldMetricsModel` or a `CalibratedModel`, which hands them
    the feature of that name: `field_metrics={"site_id": [FieldECE(5000)]}`. Ids must mean the same
    in every batch.

    An id outside [0, num_values) counts as one shared further value, "other". A label or prediction
    outside [0, 1] (logits, most often) makes the result NaN, NaN and a negative weight too, and so
    does a result over no rows.

    Args:
        num_values: Number of field values.
        name: Name of the metric.
        dtype: Dtype of the state and the result; float64 by default where the backend has it.

    Raises:
        ValueError: If an argument is out of its range, the field is missing, or rows do not align.
    """

    def __init__(self, num_values: int, name: str, dtype: Any = None) -> None:
        super().__init__(name=name, dtype=dtype)
        if not isinstance(num_values, int | np.integer) or num_values < 1:
            raise ValueError(
                f"Argument `num_values` must be a whole number of at least 1. "
                f"Received: num_values={num_values!r}."
            )
        self.num_values = int(num_values)
        self._sums = self.add_sum((self.num_values + 1, 3), name="field_sums")

    def update_state(
        self, y_true: Any, y_pred: Any, sample_weight: Any = None, field: Any = None
    ) -> None:
        """Adds rows.

        Args:
            y_true: Labels in [0, 1] (n,) or (n, 1).
            y_pred: Probabilities (n,) or (n, 1).
            sample_weight: Weights, not negative (n,) or (n, 1), or None.
            field: Field values, whole numbers (n,) or (n, 1).
        """
        if field is None:
            raise ValueError(
                f"{type(self).__name__} needs the field value of every row: "
                "update_state(y_true, y_pred, field=ids). Received: field=None. In `compile`, give "
                "it to `field_metrics=` of a FieldMetricsModel or CalibratedModel rather than to "
                "`metrics=`."
            )
        labels, probabilities, weights = flat_rows(y_true, y_pred, sample_weight, self.dtype)
        probabilities = nan_outside_unit_interval(probabilities)
        ids = ops.reshape(ops.convert_to_tensor(field), (-1,))
        num_ids, num_rows = ids.shape[0], labels.shape[0]
        if num_ids is not None and num_rows is not None and num_ids != num_rows:
            raise ValueError(
                f"Expected one field value a row. Received: {num_ids} field values and "
                f"{num_rows} rows."
            )
        self._sums.add(field_sums(labels, probabilities, weights, ids, self.num_values))

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor, as plain Python values."""
        return {"num_values": self.num_values, "name": self.name, "dtype": self.dtype}
