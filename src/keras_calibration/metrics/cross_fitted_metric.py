"""CrossFittedMetric: a metric that corrects on some rows and scores others."""

from typing import Any

from keras import ops

from keras_calibration.metrics.additive_metric import AdditiveMetric
from keras_calibration.ops.folds import fitting_sums, row_groups, scored_sums


class CrossFittedMetric(AdditiveMetric):
    """Base of the calibrated losses: shares the rows out among those that correct and are scored.

    Three ways:

    - `num_folds=2` (default): cross-fitted. Every row is scored, with the correction of the other
      folds.
    - `bias_fraction=0.1`: the papers' hold-out. The correction comes from that share of the rows,
      the loss from the rest. It has more variance.
    - `num_folds=1`: in-sample. Correction and loss come from all rows; never above the plain loss.

    Rows go to folds by a hash of their running number since `reset_state`, so that the result does
    not depend on the batch size, nor on a periodic order.

    Sums are kept for each group of rows, the group first in their shape: a subclass makes them with
    `add_sum((self.num_groups, …))`, asks `next_groups` for the groups of a batch, and `result` for
    `fitting_sums` and `scored_sums`.

    Args:
        num_folds: Number of folds, at least 1.
        bias_fraction: Share of the rows that the correction is fitted on, in (0, 1); None for
            folds.
        seed: Seed of the hash that shares out the rows.
        name: Name of the metric and key of the logs.
        dtype: Dtype of the state and the result; float64 by default where the backend has it.

    Raises:
        ValueError: If an argument is out of its range.
    """

    def __init__(
        self,
        num_folds: int = 2,
        bias_fraction: float | None = None,
        seed: int = 0,
        name: str = "cross_fitted",
        dtype: Any = None,
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        if not isinstance(num_folds, int) or num_folds < 1:
            raise ValueError(
                f"Argument `num_folds` must be a whole number of at least 1. "
                f"Received: num_folds={num_folds!r}."
            )
        if bias_fraction is not None and not 0 < bias_fraction < 1:
            raise ValueError(
                "Argument `bias_fraction` must be between 0 and 1, the share of the rows that the "
                f"bias is fitted on, or None. Received: bias_fraction={bias_fraction!r}."
            )
        self.num_folds = num_folds
        self.bias_fraction = bias_fraction
        self.seed = seed
        self.num_groups = num_folds if bias_fraction is None else 2
        # It may wrap around: only the hash reads it.
        self._num_rows = self.add_variable((), "zeros", dtype="int32", name="num_rows")

    def count_rows(self, num_rows: Any) -> Any:
        """Counts the next rows; returns the running number of the first of them, an int32."""
        first_row = ops.convert_to_tensor(self._num_rows) + 0
        self._num_rows.assign_add(num_rows)
        return first_row

    def next_groups(self, num_rows: Any) -> Any:
        """Groups of the next rows (num_rows,), int32 in [0, num_groups); counts these rows."""
        row_number = self.count_rows(num_rows) + ops.arange(num_rows, dtype="int32")
        return row_groups(row_number, self.num_folds, self.bias_fraction, self.seed)

    @property
    def held_out(self) -> bool:
        """Whether the correction comes from rows that are not scored."""
        return self.bias_fraction is not None

    def fitting_sums(self, sums: Any) -> Any:
        """Sums (num_groups, …) over the rows that each correction is fitted on (corrections, …)."""
        return fitting_sums(sums, self.held_out)

    def scored_sums(self, sums: Any) -> Any:
        """Sums (num_groups, …) over the rows that each correction is scored on (corrections, …)."""
        return scored_sums(sums, self.held_out)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor, as plain Python values."""
        return {
            "num_folds": self.num_folds,
            "bias_fraction": self.bias_fraction,
            "seed": self.seed,
            "name": self.name,
            "dtype": self.dtype,
        }
