"""ModelFitSummary: the figures of a fit of a calibrated model."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from keras_calibration.layers.fit_summary import FitSummary


@dataclass(frozen=True)
class ModelFitSummary(FitSummary):
    """The figures of `CalibratedModel.fit`: the direct fit, and whether training improved it.

    The log losses are over the rows to which the head was fitted. After a direct fit,
    `num_iterations` and `converged` are those of the direct fit.

    Args:
        exact: The summary of the head's direct fit, or None.
        num_epochs: Number of training epochs.
        training_kept: Whether the trained head was kept.
        num_held_out: Number of held-out rows that decided; 0 if none.
        held_out_change: Log loss of the held-out rows after training minus after the direct fit;
            NaN without held-out rows.
        held_out_error: Standard error of `held_out_change`.
        logits: The distribution of the rows' base logits; `refresh_savedmodel` uses it to tell
            logits from probabilities.

    Example:
        >>> exact = FitSummary(900, 0.31, 0.28, 4, True)
        >>> print(ModelFitSummary(900, 0.31, 0.28, 4, True, exact, 5, False, 180, 0.001, 0.002))
        900 rows: log loss 0.310000 before, 0.280000 after (-0.030000); 5 epochs of training changed
        the log loss of 180 held-out rows by +0.001000 ± 0.002000: not kept
    """

    exact: FitSummary | None = None
    num_epochs: int = 0
    training_kept: bool = False
    num_held_out: int = 0
    held_out_change: float = float("nan")
    held_out_error: float = float("nan")
    logits: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        if self.exact is not None and not self.num_epochs:
            return str(self.exact)
        change = self.log_loss_after - self.log_loss_before
        epochs = f"{self.num_epochs} epoch{'' if self.num_epochs == 1 else 's'} of training"
        text = (
            f"{self.num_rows:,} rows: log loss {self.log_loss_before:.6f} before, "
            f"{self.log_loss_after:.6f} after ({change:+.6f}); {epochs}"
        )
        if self.exact is None:
            return text
        return (
            f"{text} changed the log loss of {self.num_held_out:,} held-out rows by "
            f"{self.held_out_change:+.6f} ± {self.held_out_error:.6f}: "
            f"{'kept' if self.training_kept else 'not kept'}"
        )
