"""ModelFitSummary: what the fit of a calibrated model says about itself."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from keras_calibration.layers.fit_summary import FitSummary


@dataclass(frozen=True)
class ModelFitSummary(FitSummary):
    """What `CalibratedModel.fit` did: the direct fit of the head, and whether training improved it.

    The log losses are of the rows that the head was fitted to. Where there was a direct fit,
    `num_iterations` and `converged` are its own.

    Args:
        exact: What the head's direct fit said; None where there was none.
        num_epochs: Epochs of training that were run.
        training_kept: Whether the head is the trained one.
        num_held_out: Held-out rows that decided on it; 0 where none did.
        held_out_change: Their log loss after training less that of the direct fit; NaN without
            them.
        held_out_error: Standard error of this difference.
        logits: The distribution of the base logits of the rows, by which an export's refresh tells
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
