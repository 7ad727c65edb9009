"""FieldError: the base class of Field-ECE and Field-RCE."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from calibration_records._check import integer, refused
from calibration_records._columns import warn_of_other_order
from calibration_records.statistics.field_noise import drawn_field_sums, jeffreys_interval
from keras_calibration._ops.compiled import compiled, filled_up, runs_on_gpu
from keras_calibration._ops.field_sums import field_sums, ids_outside
from keras_calibration._rows.metric_rows import (
    aligned_rows,
    flat_ids,
    nan_outside_unit_interval,
    refuse_ids_outside,
    rows_or_nan,
)
from keras_calibration._typing import Tensor
from keras_calibration.metrics.additive_metric import AdditiveMetric, checked_result

_LARGEST_NUM_VALUES = 2**31 - 2  # ids are int32, and "other" takes one of them
# Field values of all draws whose errors are computed at once.
_VALUES_TOGETHER = 1 << 20


class FieldError(AdditiveMetric):
    """Base class of the field errors: seven sums over the rows of each field value.

    The field value of each row is passed as `update_state(..., field=ids)`. In `compile`, pass
    field metrics to `field_metrics=` of a `FieldMetricsModel` or a `CalibratedModel`, which gives
    them the feature of that name: `field_metrics={"site_id": [FieldECE(5000)]}`. An id must mean
    the same in every batch.

    For a cross of fields, pass ids of the pairs, for example `site * 12 + device` with 12 devices.

    The id -1 (or NaN) is one more value, "other", for missing values and for values without an id.
    Any other id outside [0, num_values) is an error, because the errors of values that share an id
    would cancel. A compiled step cannot raise: the result is then NaN, with a warning. It is also
    NaN if there are no rows, if a label or prediction is NaN or outside [0, 1] (most often a logit
    without `from_logits=True`), or if a weight is negative. Rows of weight 0 are ignored, whatever
    their label, prediction and id.

    The state is 56 bytes per field value in float64, 56 MB for a million values.

    A subclass defines `error`, which computes the result from the sums.

    Args:
        num_values: Number of field values.
        name: Name of the metric, and its key in the logs.
        from_logits: Whether predictions are logits.
        dtype: Dtype of state and result. The default is float64 where the backend supports it.
        **arguments: As for `AdditiveMetric`.

    Raises:
        ValueError: If an argument is invalid, `field` is missing or holds invalid ids, or arrays
            differ in length.

    Example:
        >>> class LargestFieldError(FieldError):
        ...     def error(self, sums):
        ...         return ops.max(ops.abs(ops.divide_no_nan(sums[:, 0], sums[:, 2])))
        >>> metric = LargestFieldError(2, name="largest_field_error")
        >>> metric.update_state([1, 0, 1, 1], [0.5, 0.5, 0.5, 0.5], field=[0, 0, 1, 1])
        >>> float(metric.result())
        0.5
    """

    num_values: int

    def __init__(
        self,
        num_values: int,
        name: str,
        from_logits: bool = False,
        dtype: str | None = None,
        **arguments: Any,
    ) -> None:
        num_values = integer("num_values", num_values, 1)
        if num_values > _LARGEST_NUM_VALUES:
            raise refused(
                "num_values",
                f"at most {_LARGEST_NUM_VALUES}",
                num_values,
                "Hash more ids into fewer values.",
            )
        super().__init__(name, dtype, **arguments, num_values=num_values, from_logits=from_logits)
        self._sums = self.add_sum((num_values + 1, 7), name="field_sums")

    def update_state(
        self,
        y_true: Tensor,
        y_pred: Tensor,
        sample_weight: Tensor | None = None,
        field: Tensor | None = None,
    ) -> None:
        """Adds rows.

        Args:
            y_true: Labels in [0, 1], shape `(n,)` or `(n, 1)`.
            y_pred: Probabilities, or logits with `from_logits=True`, shape `(n,)` or `(n, 1)`.
            sample_weight: Non-negative weights, shape `(n,)` or `(n, 1)`, or None.
            field: Ids of field values, whole numbers from -1 ("other") to `num_values - 1`, shape
                `(n,)` or `(n, 1)`.
        """
        if field is None:
            raise ValueError(
                "Argument `field` must be the field value of every row: update_state(y_true, "
                "y_pred, field=ids). Received: field=None. In `compile`, pass it to "
                "`field_metrics=` of a FieldMetricsModel or CalibratedModel, not to `metrics=`."
            )
        warn_of_other_order(y_true=y_true, y_pred=y_pred, field=field)
        labels, predictions, weights = aligned_rows(y_true, y_pred, sample_weight)
        if self.from_logits:
            predictions = ops.sigmoid(ops.cast(predictions, self.dtype))
        rows = labels, predictions, weights, flat_ids(field, weights, self.num_values)
        settings = self.num_values, self.dtype, sample_weight is not None
        if runs_on_gpu():
            self._sums.add(_sum_batch(*settings, *rows))
        else:
            self._sums.add(_compiled_sums(*settings, *filled_up(*rows)))
        self._add_scale(y_true, y_pred, sample_weight)

    def check_ids(self, field: Any) -> None:
        """Raises if an array holds ids that `update_state` does not allow.

        A compiled `update_state` cannot raise: its result would be NaN.

        Args:
            field: As for `update_state`.
        """
        refuse_ids_outside(field, self.num_values, f"The field values of {self.name}")

    def error(self, sums: Tensor) -> Tensor:
        """The error computed from the sums. A subclass defines it.

        Args:
            sums: The sums of each field value, "other" last, `(num_values + 1, 7)`: `Σ w (y - p)`,
                `Σ w y`, `Σ w`, `Σ w²`, `Σ w² p (1 - p)`, `Σ p` and `Σ p²`. `noise_floor` passes the
                first three columns of several draws, `(num_draws, values with rows, 3)`.

        Returns:
            A scalar, or the error of each draw.
        """
        raise NotImplementedError

    @checked_result
    def result(self) -> Tensor:
        """The error of the rows since `reset_state`, a scalar."""
        return self.error(self._sums.value())

    def per_field(self, confidence: float = 0.95) -> dict[str, np.ndarray]:
        """A table of the field values that have rows; `is_off` marks errors beyond chance.

        A field value is off beyond chance if its mean prediction is outside the Jeffreys interval
        of its observed rate. If all predictions are right, a share of `1 - confidence` of the
        values is still flagged, by default 50 of 1000: raise `confidence` for many values. Weighted
        rows count as `(Σ w)² / Σ w²` rows, so a common factor of all weights changes nothing. If
        predictions differ within a field value, or labels are soft, the interval is wider than
        necessary.

        Args:
            confidence: Coverage of the intervals, in (0, 1).

        Returns:
            A dict of columns for `pandas.DataFrame`, with one entry for each field value that has
            rows: `value` (the id; -1 for "other", which comes last), `rows` (total weight),
            `observed_rate`, `mean_prediction`, `ratio` (predicted / observed, NaN without
            positives), `residual` (`Σ w (y - p)`), `lower` and `upper` (ends of the interval),
            `is_off` (whether off beyond chance). If a row of the field value is invalid, its
            numbers are NaN and `is_off` is False.

        Raises:
            ValueError: If `confidence` is not between 0 and 1.
        """
        sums = np.asarray(self._sums.value()).astype(np.float64)
        cells = np.flatnonzero(sums[:, 2] != 0)  # NaN too
        residual, positives, rows, squares = sums[cells, :4].T
        # Σ w p = Σ w y - Σ w (y - p).
        predicted = positives - residual
        observed_rate = np.clip(positives / rows, 0, 1)
        mean_prediction = np.clip(predicted / rows, 0, 1)
        # The Jeffreys interval is that of (Σ w)² / Σ w² rows of equal weight.
        # In float32, the square of a weight below 1e-19 is 0, and that of one above 1e19 infinite.
        effective_rows = rows**2 / np.where((squares > 0) & np.isfinite(squares), squares, np.nan)
        lower, upper = jeffreys_interval(effective_rows * observed_rate, effective_rows, confidence)
        return {
            "value": np.where(cells == self.num_values, -1, cells),
            "rows": rows,
            "observed_rate": observed_rate,
            "mean_prediction": mean_prediction,
            "ratio": predicted / np.where(positives > 0, positives, np.nan),
            "residual": residual,
            "lower": lower,
            "upper": upper,
            "is_off": (mean_prediction < lower) | (mean_prediction > upper),
        }

    def noise_floor(self, num_draws: int = 200, seed: int = 0) -> tuple[float, float]:
        """Mean and standard deviation of the error that a calibrated model would have by chance.

        Labels are drawn from the predictions many times, and the error of each draw is computed.
        Even a calibrated model has an error above 0, especially with many field values of few rows.
        Only the part above the floor is due to the model. The draws use the sums of each field
        value, so the time grows with `num_draws` times the number of values that have rows. Drawn
        labels are 0 or 1: for soft labels, the floor is too high. Weights must not depend on the
        label: with weights 1/r of negatives that were kept with rate r, and rare positives, the
        floor is too high too.

        Args:
            num_draws: Number of draws of all labels, at least 2.
            seed: Seed of the draws.

        Returns:
            Mean and standard deviation of the error. NaN if the error is NaN, and in float32 for
            weights below 1e-19 or above 1e19, whose squares it cannot hold. Otherwise, a common
            factor of the weights changes nothing.

        Raises:
            ValueError: If `num_draws` is below 2.
        """
        return noise_floors_of(
            [self], self._sums.value(), integer("num_draws", num_draws, 2), seed
        )[0]


def noise_floors_of(
    metrics: Sequence[FieldError], sums: Tensor, num_draws: int, seed: int = 0
) -> list[tuple[float, float]]:
    """The noise floor of each metric for the same field sums, from the same draws."""
    sums = np.asarray(sums)
    sums = sums[sums[:, 2] != 0]  # NaN too
    # Without the squares of the weights, which float32 may not hold, the noise is unknown.
    if not len(sums) or not np.isfinite(sums).all() or not sums[:, 3].all():
        return [(math.nan, math.nan)] * len(metrics)
    # A parametric bootstrap: draw the labels of each value from its predictions, and compute the
    # error of each draw. Draws are stacked, so that one call computes many.
    draws = drawn_field_sums(sums, num_draws, seed)
    size = max(1, _VALUES_TOGETHER // len(sums))
    errors = [
        [np.asarray(m.error(ops.cast(np.stack(part), m.dtype))) for m in metrics]
        for part in iter(lambda: list(itertools.islice(draws, size)), [])
    ]
    metric_errors = np.concatenate(errors, axis=1).astype("float64")
    return [(float(values.mean()), float(values.std(ddof=1))) for values in metric_errors]


def _sum_batch(
    num_values: int,
    dtype: str,
    is_weighted: bool,
    labels: Tensor,
    predictions: Tensor,
    weights: Tensor,
    ids: Tensor,
) -> Tensor:
    """The sums of a batch."""
    labels, predictions, weights = rows_or_nan(labels, predictions, weights, dtype)
    predictions = nan_outside_unit_interval(predictions)
    # A row of weight 0 may have any id; 0 is valid. Other invalid ids make the result NaN.
    ids = ops.where(weights != 0, ids, ops.zeros_like(ids))
    predictions = ops.where(ids_outside(ids, num_values), float("nan"), predictions)
    return field_sums(labels, predictions, weights, ids, num_values, is_weighted)


_compiled_sums = compiled(_sum_batch)
