"""FitSummary: what the direct fit of a calibrator says about itself."""

import datetime
from dataclasses import dataclass, field


def utc_now() -> str:
    """The time in UTC, as ISO 8601 has it, in seconds.

    Example:
        >>> utc_now().endswith("+00:00")
        True
    """
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class FitSummary:
    """The figures of a direct fit, as `Calibrator.fit` returns them.

    The log losses are weighted means over the rows of the fit, in nats a row, without the terms of
    a prior: `Σ w [softplus(η(l)) - y η(l)] / Σ w`.

    Args:
        num_rows: Number of rows that the fit rests on, rows of weight 0 included.
        log_loss_before: Log loss of the uncalibrated probabilities σ(l).
        log_loss_after: Log loss of the calibrated ones.
        num_iterations: Steps that the fit took; 0 where it has a closed form.
        converged: Whether the optimum was reached.
        fitted_at: When it was fitted, in UTC; by default now.

    Example:
        >>> print(FitSummary(1000, 0.31, 0.2875, 5, True))
        1,000 rows: log loss 0.310000 before, 0.287500 after (-0.022500); converged in 5 steps
    """

    num_rows: int
    log_loss_before: float
    log_loss_after: float
    num_iterations: int
    converged: bool
    fitted_at: str = field(default_factory=utc_now, repr=False, compare=False, kw_only=True)

    def __str__(self) -> str:
        change = self.log_loss_after - self.log_loss_before
        end = "converged in" if self.converged else "NOT converged after"
        steps = "step" if self.num_iterations == 1 else "steps"
        return (
            f"{self.num_rows:,} rows: log loss {self.log_loss_before:.6f} before, "
            f"{self.log_loss_after:.6f} after ({change:+.6f}); {end} {self.num_iterations} {steps}"
        )
