"""Cross-fits the candidates of `calibrate`."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from calibration_records._figures import with_error
from calibration_records._progress import ProgressBar
from calibration_records._warn import warn, warnings_of
from keras_calibration._rows.rows import Rows
from keras_calibration._solvers.repeated_rows import clusters_of
from keras_calibration._solvers.standard_errors import mean_and_error
from keras_calibration.calibration.candidates import IDENTITY, NEURAL, Candidate
from keras_calibration.calibration.splits import Splits
from keras_calibration.layers.boosted_trees import BoostedTrees
from keras_calibration.layers.cross_fitting import CrossFitted, cross_fitted, enough_for
from keras_calibration.layers.fit import Fit
from keras_calibration.layers.fit_settings import FitSettings
from keras_calibration.layers.fits import fit_to
from keras_calibration.layers.head import Head
from keras_calibration.layers.head_logits import head_log_losses

# Warning of candidates that read the scores as logits, although scores may have another unit.
_UNIT_WARNING = "(TemperatureScaling|BetaCalibration): the best scale of the logit"


@dataclass(frozen=True)
class CandidateFit:
    """The result of cross-fitting a candidate.

    Args:
        logits: Calibrated logits of the scored rows (m,) or (m, K), or None if there are none.
        crossed: The logits and effects of all rows, from `cross_fitted`.
        fit: The fit to all rows; None for the model as it is, and for a failed candidate.
        make_head: Creates a new head of the candidate, to which the fit can be assigned.
        seconds: Time of all fits, in seconds.
        failure: Why there are no logits; empty if there are.
        is_left_out: Whether the candidate gains nothing, or the rows are too few to try it. A
            candidate without logits that is not left out has failed.
    """

    logits: np.ndarray | None = None
    crossed: CrossFitted | None = None
    fit: Fit | None = None
    make_head: Callable[[], Head] | None = None
    seconds: float = 0.0
    failure: str = ""
    is_left_out: bool = False


class _LeftOut(ValueError):
    """A candidate gains nothing, or the rows are too few to try it."""


class Race:
    """Cross-fits candidates one after the other.

    Args:
        rows: The rows, with their features.
        splits: The folds.
        progress: The progress bar, over the candidates.
        identity: The logits of the model as it was passed.

    Attributes:
        fits: Name of each candidate so far → its `CandidateFit`.
    """

    def __init__(
        self, rows: Rows, splits: Splits, progress: ProgressBar, identity: np.ndarray
    ) -> None:
        self.rows, self.splits, self.progress = rows, splits, progress
        self._identity = identity
        self.fits: dict[str, CandidateFit] = {}

    def run(self, candidates: Sequence[Candidate], forced: str | None) -> None:
        """Cross-fits the candidates; a failure is recorded unless the candidate is forced.

        Raises a `ValueError` if every fit fails, and warns if some do.
        """
        for candidate in candidates:
            start, is_forced = time.perf_counter(), candidate.name == forced
            try:
                # Candidates that expect true logits warn of scores in another unit.
                with warnings.catch_warnings():
                    if not is_forced:  # a warning would be about a method nobody asked for
                        warnings.filterwarnings("ignore", _UNIT_WARNING, UserWarning)
                    fit = self._fit(candidate, is_forced)
            except (ValueError, ImportError) as error:
                if is_forced:
                    raise
                fit = CandidateFit(failure=str(error), is_left_out=isinstance(error, _LeftOut))
            self.fits[candidate.name] = replace(fit, seconds=time.perf_counter() - start)
            self.progress.add()
        # A candidate may fail for rows that suit others, but if all fail, the rows are to blame.
        failed = {n: f.failure for n, f in self.fits.items() if f.failure and not f.is_left_out}
        if not failed:
            return
        reasons = " ".join(f"{name!r}: {reason}" for name, reason in failed.items())
        if all(fit.failure for name, fit in self.fits.items() if name != IDENTITY):
            raise ValueError(
                "None of the candidates can be fitted to these rows, which is no reason to leave "
                f"the model as it is. {reasons}"
            )
        warn(f"Of the candidates, {', '.join(map(repr, failed))} could not be fitted. {reasons}")

    def _fit(self, candidate: Candidate, is_forced: bool) -> CandidateFit:
        make = candidate.make_head
        if candidate.name == IDENTITY:
            return CandidateFit(self._identity[self.splits.scored], make_head=make)
        if candidate.bases:
            return self._fit_trees(candidate, is_forced)
        head = make()
        if candidate.name == NEURAL and not self.splits.is_forward:
            # The network cross-fits itself: each fold chooses its epochs and trains a member, and
            # the members predict the rows that they did not see.
            if not enough_for(self.splits.num_folds, self.rows):
                raise _LeftOut("The network needs at least ten rows of each class per fold.")
            fit = fit_to(head, self.rows, FitSettings(folds=self.splits.fold))
            return CandidateFit(fit.summary.cross_fitted_logits, fit=fit, make_head=make)
        # The fit to all rows comes first: the fits to the folds start from it, which saves time.
        fit = fit_to(head, self.rows)
        # Prefix warnings of these fits, so that users do not take them for warnings of the model.
        with warnings_of(self.splits.part):
            crossed = cross_fitted(head, self.rows, self.splits.parts, fit)
        return CandidateFit(crossed.logits[self.splits.scored], crossed, fit, make)

    def _fit_trees(self, candidate: Candidate, is_forced: bool) -> CandidateFit:
        """Trees on top of the fits of another candidate, to the folds and to all rows."""
        base = self._pick_best(candidate.bases)
        below = self.fits[base]
        if below.fit is None:
            raise _LeftOut(below.failure)
        if not enough_for(self.splits.num_folds, self.rows):
            raise _LeftOut("Trees need at least ten rows of each class per fold.")

        def make() -> BoostedTrees:
            return cast(BoostedTrees, candidate.make_head(cast(Any, below.make_head)()))

        head = make()
        # Trees start from the cross-fitted logits of the base: logits of a fit to the same rows are
        # too good, and would leave too little to learn.
        boosting = head.boosted(
            self.rows,
            self.splits.parts,
            below.fit,
            cast(CrossFitted, below.crossed),
            FitSettings(),
            self.splits.fold if self.splits.in_order else None,
        )
        if not boosting.num_rounds and not is_forced:
            # A change of exactly 0 means that 0 rounds are best: there is no figure to show.
            change = boosting.log_loss_with - boosting.log_loss_without
            figures = f" by a standard error: {with_error(change, boosting.standard_error, '+')}"
            raise _LeftOut(
                f"On top of {base!r}, no number of trees lowers the cross-fitted log "
                f"loss{figures if change else ''}."
            )
        fit = head.with_trees(self.rows, below.fit, boosting)
        return CandidateFit(boosting.logits[self.splits.scored], fit=fit, make_head=make)

    def _pick_best(self, names: Sequence[str]) -> str:
        """The first of the candidates, unless a later one is better by a standard error."""
        rows = self.splits.weighted(self.rows)
        fitted = {name: logits for name in names if (logits := self.fits[name].logits) is not None}
        losses = {name: head_log_losses(rows.labels, logits) for name, logits in fitted.items()}
        best = next(iter(losses), names[0])
        # Later bases are more flexible, so they must win by more than chance.
        for name, loss in losses.items():
            clusters = self.splits.clusters, clusters_of(rows)
            change, error = mean_and_error(loss - losses[best], rows.weights, *clusters)
            best = name if change < -error else best
        return best
