"""FitSummary: the figures of a direct fit."""

import datetime
from dataclasses import dataclass, field

from keras_calibration._text import ShownAsText


def utc_now() -> str:
    """The current time in UTC, in ISO 8601 format, to the second.

    Example:
        >>> utc_now().endswith("+00:00")
        True
    """
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class FitSummary(ShownAsText):
    """The figures of a direct fit, returned by `Head.fit`.

    The log losses are weighted means over the rows of the fit, in nats per row, without the terms
    of a prior: `Σ w [softplus(η(l)) - y η(l)] / Σ w`.

    Args:
        num_rows: Number of rows of the fit, including rows of weight 0.
        log_loss_before: Log loss of the uncalibrated probabilities σ(l).
        log_loss_after: Log loss of the calibrated probabilities.
        num_iterations: Number of steps of the fit; 0 if it has a closed form.
        converged: Whether the optimum was reached.
        fitted_at: Time of the fit in UTC; by default now.

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
