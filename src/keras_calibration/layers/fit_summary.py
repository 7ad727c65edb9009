"""FitSummary: the figures of a direct fit."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Self

import numpy as np

from calibration_records._text import ShownAsText
from keras_calibration._rows.rows import Rows
from keras_calibration._solvers.softmax_fit import log_losses
from keras_calibration.layers.fit_text import report_text, verdict_text


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

    `fit_head` compares the fit with the previous head and scores each row by a fit that did not see
    it. Its summary prints this cross-fitted log loss as the one after the fit. `Head.fit` makes one
    fit without a comparison, and its summary prints the log loss on the rows of the fit, which is
    too low for new rows.

    A head with a network or with trees has cross-fitted figures too, for rows to which neither the
    inner head nor the network or trees were fitted. The figures of a network are for a single
    member, and slightly optimistic, because each fold chose its own best epoch. Those of trees are
    not: the number of trees was chosen on other rows. All are NaN if the fit tried neither.

    Args:
        num_rows: Number of rows of the fit; with counts as weights, their sum.
        log_loss_before: Log loss of the previous head; from `Head.fit`, that of the uncalibrated
            probabilities σ(l).
        log_loss_in_sample: Log loss on the rows of the fit, which have decided the fit.
        num_iterations: Number of steps of the fit, of the epochs of all folds, or of trees; 0 if it
            has a closed form.
        converged: Whether the optimum was reached.
        cross_fitted_head: Cross-fitted log loss of the inner head alone.
        cross_fitted_both: Cross-fitted log loss with the network or the trees.
        standard_error: Standard error of the difference between the two.
        epochs: The best epoch of each fold, of a network.
        network_kept: Whether the network was kept; otherwise it is 0.
        cross_fitted_logits: Cross-fitted calibrated logits of each row with a weight above 0 (n,),
            in the order in which they were passed, the mean for a row that counts in several folds;
            empty if there are none, and from `calibrate`, whose `report.cross_fitted` has them.
        fitted_at: Time of the fit in UTC; by default now.
        logits: The distribution of the base logits, from `fit_head` and `calibrate`, else None.
            `refresh_savedmodel` uses it to distinguish logits from probabilities.
        change: From `fit_head`: cross-fitted log loss minus that of the previous head on the same
            rows. NaN if the previous head was fitted to these rows, or if there are too few rows
            for folds.
        change_error: Standard error of `change`.
        is_used: Whether the head uses the fit. If not, `fit_head` kept the previous head, because
            `change` is not below 0, or `calibrate` found none better than the model as it was.
        means: From `fit_head`: the mean prediction on the rows of the fit, `"before"` and
            `"after"`, and the mean label, `"observed"`; each a list with one number, or one for
            each class. Else None.

    Example:
        >>> print(FitSummary(1000, 0.31, 0.2875, 5, True))
        The head is fitted, without a comparison on new rows.
        Log loss on the rows of the fit: 0.31000 before, 0.28750 with the fit (-0.02250).
        1,000 rows; the fit converged in 5 steps.
        >>> print(FitSummary(1000, 0.31, 0.2875, 5, True, change=-0.02, change_error=0.004))
        The head changes: the fit predicts new rows better.
        Log loss: 0.3100 before, 0.2900 with the fit, cross-fitted (-0.0200 ± 0.0040).
        1,000 rows; the fit converged in 5 steps.
        >>> print(FitSummary(900, 0.31, 0.28, 40, True, 0.3, 0.29, 0.002))
        The head is fitted, without a comparison on new rows.
        Log loss on the rows of the fit: 0.31000 before, 0.28000 with the fit (-0.03000).
        900 rows; the fit converged in 40 steps.
        The trees are kept: cross-fitted log loss 0.3000 without, 0.2900 with them (-0.0100 ±
          0.0020).
    """

    num_rows: int
    log_loss_before: float
    log_loss_in_sample: float
    num_iterations: int
    converged: bool
    cross_fitted_head: float = float("nan")
    cross_fitted_both: float = float("nan")
    standard_error: float = float("nan")
    epochs: tuple[int, ...] = ()
    network_kept: bool = False
    change: float = float("nan")
    change_error: float = float("nan")
    is_used: bool = True
    cross_fitted_logits: np.ndarray = field(
        default_factory=lambda: np.empty(0), repr=False, compare=False
    )
    means: Mapping[str, list[float]] | None = field(default=None, repr=False, compare=False)
    fitted_at: str = field(default_factory=utc_now, repr=False, compare=False)
    logits: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(
        cls,
        rows: Rows,
        logits: np.ndarray,
        num_iterations: int = 1,
        converged: bool = True,
    ) -> Self:
        """The figures of a fit with these calibrated logits (n,) or (n, K) of its rows."""
        before, after = (
            float(np.average(log_losses(rows.labels, values), weights=rows.weights))
            for values in (rows.logits, logits)
        )
        return cls(rows.num_meant, before, after, num_iterations, converged)

    @property
    def log_loss_after(self) -> float:
        """Cross-fitted log loss, `log_loss_before + change`; NaN without a comparison."""
        return self.log_loss_before + self.change

    def to_dict(self) -> dict[str, Any]:
        """All figures by name, `log_loss_after` among them, but no arrays by row."""
        figures = asdict(self) | {"log_loss_after": self.log_loss_after}
        return {n: figure for n, figure in figures.items() if not isinstance(figure, np.ndarray)}

    @classmethod
    def from_dict(cls, figures: Mapping[str, Any]) -> Self:
        """The summary of `to_dict`, also after it was JSON."""
        # JSON has lists in place of tuples, and `to_dict` also gives figures that are computed.
        given = {f.name: figures[f.name] for f in fields(cls) if f.name in figures}
        return cls(**given | {"epochs": tuple(given["epochs"])})

    def of_given(self, apart: Rows, numbers: np.ndarray, source: np.ndarray) -> FitSummary:
        """The summary of a fit to separate rows (`rows_apart`), for the rows that were passed.

        A passed row of count k was k separate rows, perhaps in different folds: it gets the mean of
        their cross-fitted logits.
        """
        if not len(self.cross_fitted_logits):
            return self
        # Sum weights and weighted logits of the separate rows by the number of the passed row.
        # Equal passed rows may have been added up into one, their `source`.
        totals = np.bincount(numbers, apart.row_weights, len(source))[source]
        columns = self.cross_fitted_logits.reshape(len(apart), -1).T
        sums = [np.bincount(numbers, apart.row_weights * c, len(source))[source] for c in columns]
        means = (np.stack(sums) / totals).T
        shape = (len(source), *self.cross_fitted_logits.shape[1:])
        return replace(self, cross_fitted_logits=means.reshape(shape))

    def __str__(self) -> str:
        return report_text(verdict_text(self), self)
