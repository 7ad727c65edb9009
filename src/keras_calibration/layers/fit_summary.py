"""FitSummary: the figures of a direct fit; NeuralFitSummary: those of a head with a network."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field, replace

import numpy as np

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
        num_rows: Number of rows of the fit, without those of weight 0.
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

    def in_order(self, order: np.ndarray) -> FitSummary:
        """The summary of rows that were taken by `order`, with what it has of each row put back."""
        return self

    def __str__(self) -> str:
        change = self.log_loss_after - self.log_loss_before
        end = "converged in" if self.converged else "NOT converged after"
        steps = "step" if self.num_iterations == 1 else "steps"
        return (
            f"{self.num_rows:,} rows: log loss {self.log_loss_before:.6f} before, "
            f"{self.log_loss_after:.6f} after ({change:+.6f}); {end} {self.num_iterations} {steps}"
        )


@dataclass(frozen=True)
class NeuralFitSummary(FitSummary):
    """The figures of a Neural Calibration `fit`: a `FitSummary` and the cross-fitted results.

    `num_iterations` counts the epochs of all folds. The cross-fitted log losses are computed on
    rows to which neither η nor the network was fitted: that of one network, of which the head keeps
    one per member. It is slightly optimistic, because each fold chose its own best epoch. Both are
    NaN if no network was tried.

    Args:
        cross_fitted_curve: Cross-fitted log loss of η alone.
        cross_fitted_both: Cross-fitted log loss of η + g.
        standard_error: Standard error of the difference between the two.
        epochs: The best epoch of each fold.
        network_kept: Whether g was kept; otherwise it is 0.
        cross_fitted_logits: Cross-fitted `η + g` of each row, (n,) or (n, K); empty if no network
            was tried.

    Example:
        >>> print(NeuralFitSummary(900, 0.31, 0.28, 9, True, 0.3, 0.29, 0.002, (2, 3, 4), True))
        900 rows: log loss 0.310000 before, 0.280000 after (-0.030000); converged in 9 steps;
        cross-fitted log loss 0.300000 without and 0.290000 with the network (-0.010000 ± 0.002000):
        kept
    """

    cross_fitted_curve: float = float("nan")
    cross_fitted_both: float = float("nan")
    standard_error: float = float("nan")
    epochs: tuple[int, ...] = ()
    network_kept: bool = False
    cross_fitted_logits: np.ndarray = field(
        default_factory=lambda: np.empty(0), repr=False, compare=False
    )

    def in_order(self, order: np.ndarray) -> NeuralFitSummary:
        """The summary with the logits of each row put back."""
        return replace(self, cross_fitted_logits=_put_back(self.cross_fitted_logits, order))

    def __str__(self) -> str:
        if not self.epochs:
            return super().__str__()
        gain = self.cross_fitted_both - self.cross_fitted_curve
        return (
            f"{super().__str__()}; cross-fitted log loss {self.cross_fitted_curve:.6f} without and "
            f"{self.cross_fitted_both:.6f} with the network ({gain:+.6f} ± "
            f"{self.standard_error:.6f}): {'kept' if self.network_kept else 'left out'}"
        )


@dataclass(frozen=True)
class BoostedFitSummary(FitSummary):
    """The figures of a fit of boosted trees: a `FitSummary` and the cross-fitted results.

    `num_iterations` is the number of rounds. The cross-fitted log losses are computed on rows to
    which neither the inner head nor the trees were fitted, with a number of rounds that was chosen
    on other rows. Both are NaN if no trees were tried.

    Args:
        cross_fitted_head: Cross-fitted log loss of the inner head alone.
        cross_fitted_both: Cross-fitted log loss with trees.
        standard_error: Standard error of the difference between the two.
        cross_fitted_logits: Cross-fitted calibrated logits of each row, (n,) or (n, K); empty if no
            trees were tried.

    Example:
        >>> print(BoostedFitSummary(900, 0.31, 0.28, 40, True, 0.3, 0.29, 0.002))
        900 rows: log loss 0.310000 before, 0.280000 after (-0.030000); converged in 40 steps;
        cross-fitted log loss 0.300000 without and 0.290000 with trees (-0.010000 ± 0.002000)
    """

    cross_fitted_head: float = float("nan")
    cross_fitted_both: float = float("nan")
    standard_error: float = float("nan")
    cross_fitted_logits: np.ndarray = field(
        default_factory=lambda: np.empty(0), repr=False, compare=False
    )

    def in_order(self, order: np.ndarray) -> BoostedFitSummary:
        """The summary with the logits of each row put back."""
        return replace(self, cross_fitted_logits=_put_back(self.cross_fitted_logits, order))

    def __str__(self) -> str:
        if np.isnan(self.cross_fitted_both):
            return super().__str__()
        gain = self.cross_fitted_both - self.cross_fitted_head
        left_out = "" if self.num_iterations else ": left out"
        return (
            f"{super().__str__()}; cross-fitted log loss {self.cross_fitted_head:.6f} without and "
            f"{self.cross_fitted_both:.6f} with trees ({gain:+.6f} ± {self.standard_error:.6f})"
            f"{left_out}"
        )


def _put_back(values: np.ndarray, order: np.ndarray) -> np.ndarray:
    if not len(values):
        return values
    back = np.empty_like(values)
    back[order] = values
    return back
