"""refit: fits the head of a model to new rows, and compares the fit with the head as it is."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from calibration_records._figures import with_error
from calibration_records._warn import warn
from keras_calibration._rows.rows import Rows, describe_logits
from keras_calibration._solvers.repeated_rows import (
    clusters_of,
    num_independent,
    with_copies_grouped,
)
from keras_calibration._solvers.row_folds import (
    blocks_of_time,
    fold_of_rows,
    refuse_divided_groups,
)
from keras_calibration._solvers.row_order import rows_apart
from keras_calibration._solvers.standard_errors import mean_and_error
from keras_calibration.layers.cross_fitting import cross_fitted, parts_of
from keras_calibration.layers.fit import Fit
from keras_calibration.layers.fit_settings import FitSettings
from keras_calibration.layers.fit_summary import FitSummary
from keras_calibration.layers.fits import draws_by_chance, fit_to, is_as_fitted
from keras_calibration.layers.head import Head
from keras_calibration.layers.head_logits import head_log_losses, head_logits
from keras_calibration.layers.totals import totals_of, warn_of_bias, warn_of_calibrated_scores
from keras_calibration.layers.unknown_values import warn_of_unknown

_NUM_FOLDS = 3
# The log loss of a fit to the same rows, in another order or in batches, differs by rounding.
_ROUNDING = 1e-6


def refit(
    head: Head,
    rows: Rows,
    settings: FitSettings | None = None,
    only_if_better: bool = True,
    scores_before: Mapping[str, Any] | None = None,
) -> Fit:
    """Fits a head to rows by its direct fit, and compares the fit with the head as it is.

    The fit is scored on rows that it did not see: each third of the rows by a fit to the other two;
    for a head that follows time, the latest of eight blocks by a fit to the earlier ones. If that
    log loss is not below the one of the present head, on the same rows, the fit is not used. There
    is no comparison if the rows are too few for folds, or if the present head was fitted to these
    very rows: it would win because it has seen them. `refit` does not change the head: see
    `assign_all`.

    Args:
        head: The head.
        rows: Checked rows, with the features that the head reads.
        settings: How to train the head's network, if it has one.
        only_if_better: Whether not to use the fit if it predicts worse. Otherwise, the fit is used,
            with a warning if it is worse by more than the standard error.
        scores_before: The distribution of the logits that the head was made for, from
            `describe_logits`; None takes that of its last fit.

    Returns:
        The fit. In its summary, `log_loss_before` is the log loss of the present head. If `is_used`
        is false, keep the present head.
    """
    refuse_divided_groups(settings and settings.folds, rows)
    if not draws_by_chance(head):
        return _refit_rows(head, rows, settings, only_if_better, scores_before)
    # A fit that draws folds has cross-fitted logits of separate rows. So compare on separate rows
    # too, and average the logits of each passed row at the end.
    apart, *places = rows_apart(rows, settings and settings.folds)
    fit = _refit_rows(head, apart, settings, only_if_better, scores_before)
    return replace(fit, summary=fit.summary.of_given(apart, *places))


def _refit_rows(
    head: Head,
    rows: Rows,
    settings: FitSettings | None,
    only_if_better: bool,
    scores_before: Mapping[str, Any] | None,
) -> Fit:
    """`refit`, with the cross-fitted logits of the summary in the order of these rows."""
    rows = with_copies_grouped(rows)
    present = head_logits(head, rows.logits, rows.features)
    losses = head_log_losses(rows.labels, present)
    is_known = is_fitted_to(head, rows)
    warn_of_calibrated_scores(
        rows, present, scores_before or getattr(head.fit_summary, "logits", None)
    )
    fit = fit_to(head, rows, settings)
    warn_of_unknown(head, rows, fit)
    before, after = (totals_of(logits, rows) for logits in (present, fit.logits(rows)))
    means = {"before": before.predicted, "after": after.predicted, "observed": before.observed}
    summary = replace(
        fit.summary,
        log_loss_before=float(np.average(losses, weights=rows.weights)),
        # The next fit and the refresh of an export compare their scores with these.
        logits=describe_logits(rows.logits, "fit", rows.weights),
        means={name: mean.tolist() for name, mean in means.items()},
    )
    changed = None if is_known else _measure_change(head, rows, losses, settings, fit)
    if changed is not None:
        summary = _weigh_change(summary, *changed, only_if_better)
    # A head that follows time predicts the level to come, which may differ from the mean label.
    if summary.is_used and not head.follows_time:
        warn_of_bias(after)
    return replace(fit, summary=summary)


def _weigh_change(
    summary: FitSummary, change: float, error: float, only_if_better: bool
) -> FitSummary:
    """The summary with the change of the log loss, and whether the fit is used.

    A fit that predicts new rows no better is not used. There is a warning if it is worse; if the
    caller wants it anyway, only if it is worse beyond chance.
    """
    # Without a difference beyond rounding, as of a head that has nothing to fit, nothing changes.
    change = 0.0 if abs(change) <= _ROUNDING * summary.log_loss_before else change
    is_kept = only_if_better and change >= 0
    if change > error or (is_kept and change):
        then = (
            "The head stays as it was; to use the fit anyway, pass only_if_better=False."
            if is_kept
            else "The fit is used all the same. With only_if_better=True, the head would stay."
        )
        warn(
            "The fit of the head predicts new rows worse than the head as it was: by "
            f"{with_error(change, error)} nats per row, cross-fitted on {summary.num_rows:,} rows. "
            f"{then}"
        )
    return replace(summary, change=change, change_error=error, is_used=not is_kept)


def is_fitted_to(head: Head, rows: Rows) -> bool:
    """Whether the last direct fit of a head was to these very rows, with their features.

    The rows of a fit are not stored. They are taken to be the same if the head has the weights of
    the fit, and the number of rows and their log loss are those in its summary.
    """
    summary = head.fit_summary
    if (
        summary is None
        or not summary.is_used
        or summary.num_rows != rows.num_meant
        or not is_as_fitted(head)
    ):
        return False
    losses = head_log_losses(rows.labels, head_logits(head, rows.logits, rows.features))
    loss = float(np.average(losses, weights=rows.weights))
    return math.isclose(loss, summary.log_loss_in_sample, rel_tol=_ROUNDING, abs_tol=_ROUNDING)


def _measure_change(
    head: Head, rows: Rows, before: np.ndarray, settings: FitSettings | None, fit: Fit
) -> tuple[float, float] | None:
    """The change of the log loss by the direct fit on rows that it did not see, and its error.

    None if there are too few rows for folds, or the fit to a part of them fails.
    """
    # A head with a network, trees or a blend has cross-fitted its fit already.
    if len(fit.summary.cross_fitted_logits):
        losses = head_log_losses(rows.labels, fit.summary.cross_fitted_logits)
        return mean_and_error(losses - before, rows.weights, clusters_of(rows))
    # Separate rows, so that random folds do not depend on the form of the rows.
    apart, numbers, _ = rows_apart(rows)
    fold, scored = _draw_folds(apart, head.follows_time)
    if not scored:
        return None
    parts = parts_of(fold, scored, head.follows_time)
    try:
        with warnings.catch_warnings():  # the fit to all rows has warned
            warnings.simplefilter("ignore")
            logits, _ = cross_fitted(head, apart, parts, settings=settings)
    except ValueError:  # a part of the rows has no fit
        return None
    changes = head_log_losses(apart.labels, logits) - before[numbers]
    is_scored = np.isin(fold, scored)
    scored_rows = apart.take(is_scored)
    return mean_and_error(changes[is_scored], scored_rows.weights, clusters_of(scored_rows))


def _draw_folds(rows: Rows, follows_time: bool) -> tuple[np.ndarray, list[int]]:
    """The fold of each row (n,), and the scored folds: all, or with time the last."""
    if rows.times is not None and follows_time:
        # Score only the last block of time, by a fit to all earlier ones: a level over time is used
        # to predict what comes after it.
        fold = blocks_of_time(rows.times)
        last = int(fold.max())
        num_classes = np.count_nonzero(rows.take(fold < last).shares.any(axis=0))
        return fold, [last] if num_classes > 1 else []
    counts = num_independent(rows)
    # The rarest class must have a row, or a group, in every fold; else a fit could lack a class.
    number = min(_NUM_FOLDS, int(counts[counts > 0].min()))
    if number < 2:
        return np.zeros(len(rows), int), []
    return fold_of_rows(number, rows, seed=0), list(range(number))
