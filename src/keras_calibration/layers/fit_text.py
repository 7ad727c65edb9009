"""The figures of a fit as sentences, for `FitSummary` and for refreshes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from calibration_records._figures import decimals_of, significant, to_error, with_error
from calibration_records._text import counted, wrap

if TYPE_CHECKING:
    # A summary prints itself with this module.
    from keras_calibration.layers.fit_summary import FitSummary

NO_COMPARISON = "the head before was fitted to these very rows, or they are too few"


def verdict_text(summary: FitSummary) -> str:
    """Whether the head changes, and the rule that decided it."""
    if math.isnan(summary.change):
        # `Head.fit` never compares, and has no means either.
        why = "" if summary.means is None else f": {NO_COMPARISON}"
        return f"The head is fitted, without a comparison on new rows{why}."
    fit = f"the fit predicts new rows {how_good(summary)}"
    if not summary.is_used:
        return f"The head stays as it was, because {fit}."
    # Only a caller who asks for it gets a fit that is worse.
    asked = f", although {fit}, because only_if_better=False."
    return f"The head changes{asked if summary.change > 0 else f': {fit}.'}"


def how_good(summary: FitSummary) -> str:
    """How a fit compares with the head before it, in a word, and whether chance may explain it."""
    word = "worse" if summary.change > 0 else "better" if summary.change < 0 else "as well"
    is_within = 0 < abs(summary.change) <= summary.change_error
    return word + ", but only within the standard error" * is_within


def report_text(verdict: str, summary: FitSummary) -> str:
    """The verdict, the figure that decided it, and the rest, in at most 100 columns."""
    end = "converged in" if summary.converged else "has NOT converged after"
    rows = f"{summary.num_rows:,} rows; the fit {end} {counted(summary.num_iterations, 'step')}."
    lines = [
        verdict,
        _describe_losses(summary),
        _describe_means(summary),
        rows,
        _describe_gain(summary),
    ]
    return "\n".join(part for line in lines if line for part in wrap(line))


def _describe_losses(summary: FitSummary) -> str:
    """The log loss before the fit and with it, and the change."""
    before = summary.log_loss_before
    if math.isnan(summary.change):
        after = summary.log_loss_in_sample
        # No error says how many digits count.
        places = decimals_of(min(before, after), 5)
        return (
            f"Log loss on the rows of the fit: {before:.{places}f} before, {after:.{places}f} with "
            f"the fit ({after - before:+z.{places}f})."
        )
    error = summary.change_error
    return (
        f"Log loss: {to_error(before, error)} before, {to_error(summary.log_loss_after, error)} "
        f"with the fit, cross-fitted ({with_error(summary.change, error, '+')})."
    )


def _describe_means(summary: FitSummary) -> str:
    """The mean prediction before the fit and with it, beside the mean label; empty if unknown."""
    if summary.means is None:
        return ""
    # Of several classes, the one whose mean the fit moves most.
    columns = (summary.means[name] for name in ("before", "after", "observed"))
    classes = list(zip(*columns, strict=True))
    most = max(classes, key=lambda means: abs(means[1] - means[0]))
    which = f" of class {classes.index(most)}" if len(classes) > 1 else ""
    before, after, observed = (significant(mean, 4) for mean in most)
    return f"Mean prediction{which}: {before} before, {after} with the fit; {observed} is observed."


def _describe_gain(summary: FitSummary) -> str:
    """What the network or the trees add to the head that they stand on; empty without them."""
    without, both = summary.cross_fitted_head, summary.cross_fitted_both
    if math.isnan(both):
        return ""
    error = summary.standard_error
    added, them = ("The network is", "it") if summary.epochs else ("The trees are", "them")
    is_kept = summary.network_kept if summary.epochs else bool(summary.num_iterations)
    return (
        f"{added} {'kept' if is_kept else 'left out'}: cross-fitted log loss "
        f"{to_error(without, error)} without, {to_error(both, error)} with {them} "
        f"({with_error(both - without, error, '+')})."
    )
