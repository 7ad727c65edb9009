"""FitSummary: the figures of a direct fit; NeuralFitSummary: those of a head with a network."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from calibration_records._text import ShownAsText
from keras_calibration._rows.rows import Rows
from keras_calibration._solvers.softmax_fit import SoftmaxFit, mean_class_log_loss


def utc_now() -> str:
    """The current time in UTC, in ISO 8601 format, to the second.

    Example:
        >>> utc_now().endswith("+00:00")
        True
    """
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class FitSummary(ShownAsText):
    """The figures of a direct fit, returned by `Head.fit` and `fit_head`.

    The log losses are weighted means over the rows of the fit, in nats per row, without the terms
    of a prior: `Σ w [softplus(η(l)) - y η(l)] / Σ w`.

    `fit_head` compares with the model as it was, with its head as it was trained, and scores each
    row by a fit that did not see it: its summary prints this cross-fitted loss. `Head.fit` makes
    one fit, and its summary prints the loss on the rows of the fit, which is too low.

    Args:
        num_rows: Number of rows of the fit, without those of weight 0.
        log_loss_before: Log loss of the head as it was before the fit; from `Head.fit`, that of the
            uncalibrated probabilities σ(l).
        log_loss_after: Log loss of the fit on its own rows.
        num_iterations: Number of steps of the fit; 0 if it has a closed form.
        converged: Whether the optimum was reached.
        fitted_at: Time of the fit in UTC; by default now.
        logits: The distribution of the rows' base logits, from `fit_head`, else None.
            `refresh_savedmodel` uses it to tell logits from probabilities.
        change: From `fit_head`: cross-fitted log loss minus that of the head as it was on the same
            rows. NaN if it was not computed: for a head that was fitted to these rows, and where
            the rows are too few to fit the head to parts of them.
        change_error: Standard error of `change`.
        is_used: Whether the head has the fit. If not, `fit_head` left the head as it was, because
            `change` is above 0.
        cross_fitted_logits: Of a head whose fit is cross-fitted itself: the logits of each row,
            (n,) or (n, K), by fits that did not see it; else empty.

    Example:
        >>> print(FitSummary(1000, 0.31, 0.2875, 5, True))
        1,000 rows: log loss 0.310000 before, 0.287500 after (-0.022500); converged in 5 steps
        >>> print(FitSummary(1000, 0.31, 0.2875, 5, True, change=-0.02, change_error=0.004))
        1,000 rows: log loss 0.310000 before, 0.290000 after, cross-fitted (-0.020000 ± 0.004000);
        converged in 5 steps
    """

    num_rows: int
    log_loss_before: float
    log_loss_after: float
    num_iterations: int
    converged: bool
    fitted_at: str = field(default_factory=utc_now, repr=False, compare=False, kw_only=True)
    logits: Mapping[str, Any] | None = field(default=None, repr=False, compare=False, kw_only=True)
    change: float = field(default=float("nan"), kw_only=True)
    change_error: float = field(default=float("nan"), kw_only=True)
    is_used: bool = field(default=True, kw_only=True)
    cross_fitted_logits: np.ndarray = field(
        default_factory=lambda: np.empty(0), repr=False, compare=False, kw_only=True
    )

    def of_rows(self, numbers: np.ndarray, num_rows: int) -> Self:
        """The summary for all rows, of a fit to those with the given numbers, some several times.

        Of a row that is there several times, it has the mean of the cross-fitted logits.
        """
        logits = _means_of_rows(self.cross_fitted_logits, numbers, num_rows)
        num_distinct = int(np.count_nonzero(np.bincount(numbers)))
        return replace(self, num_rows=num_distinct, cross_fitted_logits=logits)

    def __str__(self) -> str:
        change, how, error = self.log_loss_after - self.log_loss_before, "", ""
        if not np.isnan(self.change):
            change, how, error = self.change, ", cross-fitted", f" ± {self.change_error:.6f}"
        end = "converged in" if self.converged else "NOT converged after"
        steps = "step" if self.num_iterations == 1 else "steps"
        return (
            f"{self.num_rows:,} rows: log loss {self.log_loss_before:.6f} before, "
            f"{self.log_loss_before + change:.6f} after{how} ({change:+.6f}{error}); "
            f"{end} {self.num_iterations} {steps}"
            f"{'' if self.is_used else '; the head stays as it was'}"
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

    Example:
        >>> print(NeuralFitSummary(900, 0.31, 0.28, 9, True, 0.3, 0.29, 0.002, (2, 3, 4), True))
        900 rows: log loss 0.310000 before, 0.280000 after (-0.030000); converged in 9 steps;
        cross-fitted log loss 0.300000 without and 0.290000 with the network (-0.010000 ± 0.002000):
        the network is kept
    """

    cross_fitted_curve: float = float("nan")
    cross_fitted_both: float = float("nan")
    standard_error: float = float("nan")
    epochs: tuple[int, ...] = ()
    network_kept: bool = False

    def __str__(self) -> str:
        if not self.epochs:
            return super().__str__()
        gain = self.cross_fitted_both - self.cross_fitted_curve
        return (
            f"{super().__str__()}; cross-fitted log loss {self.cross_fitted_curve:.6f} without and "
            f"{self.cross_fitted_both:.6f} with the network ({gain:+.6f} ± "
            f"{self.standard_error:.6f}): the network is "
            f"{'kept' if self.network_kept else 'left out'}"
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

    Example:
        >>> print(BoostedFitSummary(900, 0.31, 0.28, 40, True, 0.3, 0.29, 0.002))
        900 rows: log loss 0.310000 before, 0.280000 after (-0.030000); converged in 40 steps;
        cross-fitted log loss 0.300000 without and 0.290000 with trees (-0.010000 ± 0.002000)
    """

    cross_fitted_head: float = float("nan")
    cross_fitted_both: float = float("nan")
    standard_error: float = float("nan")

    def __str__(self) -> str:
        if np.isnan(self.cross_fitted_both):
            return super().__str__()
        gain = self.cross_fitted_both - self.cross_fitted_head
        left_out = "" if self.num_iterations else ": the trees are left out"
        return (
            f"{super().__str__()}; cross-fitted log loss {self.cross_fitted_head:.6f} without and "
            f"{self.cross_fitted_both:.6f} with trees ({gain:+.6f} ± {self.standard_error:.6f})"
            f"{left_out}"
        )


def _means_of_rows(logits: np.ndarray, numbers: np.ndarray, num_rows: int) -> np.ndarray:
    """The mean logit of each row (n, …), of logits of the rows with the given numbers (m, …)."""
    if not len(logits):
        return logits
    times = np.bincount(numbers, minlength=num_rows)
    columns = logits.reshape(len(logits), -1).T
    sums = [np.bincount(numbers, column, minlength=num_rows) for column in columns]
    with np.errstate(invalid="ignore"):  # a row of weight 0 has none
        means = np.stack(sums, axis=1) / times[:, None]
    return means.reshape(num_rows, *logits.shape[1:])


def class_fit_summary(rows: Rows, fit: SoftmaxFit) -> FitSummary:
    """The figures of a fit to class rows."""
    return FitSummary(
        num_rows=len(rows),
        log_loss_before=mean_class_log_loss(rows, np.ones(()), np.zeros(())),
        log_loss_after=fit.log_loss,
        num_iterations=fit.num_iterations,
        converged=fit.converged,
    )
