"""CrossFittedMetric: the base class of metrics that fit a correction on other rows."""

from __future__ import annotations

from typing import Any

from keras import ops

from calibration_records._check import integer, refused, share
from keras_calibration._ops.folds import num_groups_of, row_groups
from keras_calibration._typing import Tensor
from keras_calibration.metrics.additive_metric import AdditiveMetric


class CrossFittedMetric(AdditiveMetric):
    """Base class of the calibrated losses: decides which rows to fit on and which to score.

    The rows are divided in one of three ways:

    - `num_folds=2` (default): cross-fitted. Every row is scored with the correction of the other
      folds.
    - `bias_fraction=0.1`: hold-out, as in the papers. The correction is fitted on that share of the
      rows and the loss is computed on the rest. Its variance is higher.
    - `num_folds=1`: in-sample. Correction and loss use all rows. It is never above the plain loss.

    Rows are assigned by a hash of their number since `reset_state`, so neither the batch size nor a
    periodic order of the rows changes the result. Rows of weight 0 are not numbered. Another order
    of the rows gives other folds, and by chance another result: do not shuffle the validation rows.

    A subclass keeps one sum per group of rows, `add_sum((self.num_groups, …))`. It asks
    `next_groups` for the groups of a batch, and computes its result from `fitting_sums` and
    `scored_sums`.

    Args:
        num_folds: Number of folds, at least 1.
        bias_fraction: Share of the rows that the correction is fitted on, in (0, 1), or None to use
            folds.
        seed: Seed of the hash that assigns the rows.
        name: Name of the metric, and its key in the logs.
        dtype: Dtype of state and result. The default is float64 where the backend supports it.
        **arguments: As for `AdditiveMetric`.

    Raises:
        ValueError: If an argument is invalid.

    Example:
        >>> metric = CrossFittedMetric(num_folds=3)
        >>> print(metric.next_groups(ops.ones(4)).numpy())
        [0 0 0 1]
    """

    def __init__(
        self,
        num_folds: int = 2,
        bias_fraction: float | None = None,
        seed: int = 0,
        name: str = "cross_fitted",
        dtype: str | None = None,
        **arguments: Any,
    ) -> None:
        num_folds = integer("num_folds", num_folds, 1)
        if bias_fraction is not None:
            rest = " or None: it is the share of the rows on which the correction is fitted"
            share("bias_fraction", bias_fraction, also=rest)
            if num_folds != 2:
                raise refused("num_folds", "left at 2 with `bias_fraction`", num_folds)
        super().__init__(
            name, dtype, num_folds=num_folds, bias_fraction=bias_fraction, seed=seed, **arguments
        )
        self.num_groups = num_groups_of(num_folds, bias_fraction)
        # The number may overflow and wrap around, because only a hash of it is used.
        self._num_rows = self.add_variable((), "zeros", dtype="int32", name="num_rows")

    def count_rows(self, weights: Tensor) -> Tensor:
        """Counts the next rows and returns the number of the first of them, an int32 scalar."""
        # `+ 0` copies the number before the next line adds to the variable.
        first_row = ops.convert_to_tensor(self._num_rows) + 0
        self.add_row_count(ops.sum(ops.cast(weights != 0, "int32")))
        return first_row

    def add_row_count(self, num_rows: Tensor | int) -> None:
        """Counts rows whose sums were computed elsewhere."""
        self._num_rows.assign_add(num_rows)

    def next_groups(self, weights: Tensor, all_count: bool = False) -> Tensor:
        """Counts the next rows and returns the group of each, int32 in [0, num_groups)."""
        row_number = self.count_rows(weights) + numbers_of_rows(weights, all_count)
        return row_groups(row_number, self.num_folds, self.bias_fraction, self.seed)

    @property
    def held_out(self) -> bool:
        """Whether corrections are fitted on rows that are not scored themselves."""
        return self.bias_fraction is not None


def numbers_of_rows(weights: Tensor, all_count: bool = False) -> Tensor:
    """The row numbers of a batch from 0, int32; rows of weight 0 have arbitrary numbers.

    Args:
        weights: Weights, shape `(n,)`.
        all_count: Whether no weight is 0, except at the end. The weights are then not read: the
            sum over all earlier rows takes half of the time of an update on a CPU.

    Example:
        >>> print(ops.convert_to_numpy(numbers_of_rows(ops.array([1.0, 0.0, 2.0, 1.0]))))
        [0 0 1 2]
    """
    if all_count:
        return ops.arange(ops.shape(weights)[0], dtype="int32")
    return ops.maximum(ops.cumsum(ops.cast(weights != 0, "int32")) - 1, 0)
