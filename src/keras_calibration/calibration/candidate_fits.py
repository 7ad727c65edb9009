"""Cross-fits the candidates of `calibrate`."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from calibration_records._progress import ProgressBar
from calibration_records._warn import warn, warnings_of
from keras_calibration._rows.rows import Rows
from keras_calibration._solvers.repeated_rows import clusters_of
from keras_calibration._solvers.standard_errors import mean_and_error
from keras_calibration.calibration.candidates import IDENTITY, NEURAL, Candidate
from keras_calibration.calibration.splits import Splits
from keras_calibration.layers.boosted_trees import BoostedTrees
from keras_calibration.layers.cross_fitting import cross_fitted, enough_for
from keras_calibration.layers.fit_settings import FitSettings
from keras_calibration.layers.fits import remember_fit
from keras_calibration.layers.head import Head
from keras_calibration.layers.head_logits import head_log_losses

# Warning of candidates that read the scores as logits, although scores may have another unit.
_UNIT_WARNING = "(TemperatureScaling|BetaCalibration): the best scale of the logit"


@dataclass(frozen=True)
class CandidateFit:
    """The result of cross-fitting a candidate.

    Args:
        logits: Calibrated logits of the scored rows (m,) or (m, K), or None if there are none.
        cross_fit: The logits and effects of all rows, from `cross_fitted`.
        head: A head fitted to all rows, if cross-fitting produced one.
        part_head: The head that was fitted to the parts one after the other.
        seconds: Time of all fits, in seconds.
        failure: Why there are no logits; empty if there are.
        is_left_out: Whether the candidate gains nothing, or the rows are too few to try it. Without
            logits, it is otherwise one whose fit has failed.
    """

    logits: np.ndarray | None = None
    cross_fit: Any = None
    head: Head | None = None
    part_head: Head | None = None
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
        self._candidates: dict[str, Candidate] = {}

    def run(self, candidates: Sequence[Candidate], forced: str | None) -> None:
        """Cross-fits the candidates; a failure is recorded unless the candidate is forced.

        Raises a `ValueError` if every fit fails, and warns if some do.
        """
        for candidate in candidates:
            start, is_forced = time.perf_counter(), candidate.name == forced
            spent = self._seconds()
            self._candidates[candidate.name] = candidate
            try:
                with warnings.catch_warnings():
                    if not is_forced:  # the user has not asked for this candidate
                        warnings.filterwarnings("ignore", _UNIT_WARNING, UserWarning)
                    fit = self._fit(candidate, is_forced)
            except (ValueError, ImportError) as error:
                if is_forced:
                    raise
                fit = CandidateFit(failure=str(error), is_left_out=isinstance(error, _LeftOut))
            # Without the fit of another candidate to all rows, which `head_of` adds to that one.
            seconds = time.perf_counter() - start - (self._seconds() - spent)
            self.fits[candidate.name] = replace(fit, seconds=seconds)
            self.progress.add()
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

    def head_of(self, name: str) -> Head:
        """A head of the candidate that is fitted to all rows; its time is added to `seconds`."""
        candidate, fit, start = self._candidates[name], self.fits[name], time.perf_counter()
        head = fit.head or fit.part_head or self._new_head(candidate)
        if fit.head is None and name != IDENTITY:
            head.fit_checked(self.rows)
        seconds = fit.seconds + time.perf_counter() - start
        self.fits[name] = replace(fit, head=head, seconds=seconds)
        # Numbered like a new one: two heads of one model, of two outputs, must differ in name.
        head.name = candidate.make_head().name
        return head

    def _seconds(self) -> float:
        return sum(fit.seconds for fit in self.fits.values())

    def _new_head(self, candidate: Candidate, *bases: Head) -> Head:
        head = candidate.make_head(*bases)
        # A call would build it too, and take longer.
        head.ensure_built(features_shape={name: x.shape for name, x in self.rows.features.items()})
        return head

    def _fit(self, candidate: Candidate, is_forced: bool) -> CandidateFit:
        if candidate.name == IDENTITY:
            return CandidateFit(self._identity[self.splits.scored])
        if candidate.bases:
            return self._fit_trees(candidate, is_forced)
        if candidate.name == NEURAL and not self.splits.is_forward:
            return self._fit_network(candidate)
        head, full_head = self._new_head(candidate), None
        if head.starts_from_whole:
            # Fits to parts of the rows take less time from a fit to all rows.
            full_head = self._new_head(candidate)
            full_head.fit_checked(self.rows)
        with warnings_of(self.splits.part):
            cross_fit = cross_fitted(head, self.rows, self.splits.parts, full_head)
        return CandidateFit(cross_fit[0][self.splits.scored], cross_fit, full_head, head)

    def _fit_network(self, candidate: Candidate) -> CandidateFit:
        """Fits the network on the folds: each fold chooses its epochs and gives a member."""
        if not enough_for(self.splits.num_folds, self.rows):
            raise _LeftOut("The network needs at least ten rows of each class per fold.")
        head = candidate.make_head()
        summary = head.fit_checked(self.rows, FitSettings(folds=self.splits.fold))
        return CandidateFit(summary.cross_fitted_logits, head=head)

    def _fit_trees(self, candidate: Candidate, is_forced: bool) -> CandidateFit:
        """Trees on top of the fits of another candidate, to the folds and to all rows."""
        base = self._best_of(candidate.bases)
        base_fit = self.fits[base]
        if base_fit.logits is None:
            raise _LeftOut(base_fit.failure)
        if not enough_for(self.splits.num_folds, self.rows):
            raise _LeftOut("Trees need at least ten rows of each class per fold.")
        head = cast(BoostedTrees, self._new_head(candidate, self._candidates[base].make_head()))
        boosting = head.fit_trees(
            self.rows,
            self.splits.parts,
            (cast(Head, base_fit.part_head), base_fit.head),
            base_fit.cross_fit,
            FitSettings(),
            self.splits.fold if self.splits.in_order else None,
        )
        if not boosting.num_rounds and not is_forced:
            change = boosting.log_loss_with - boosting.log_loss_without
            figures = f" by a standard error: {change:+.6f} ± {boosting.standard_error:.6f}"
            raise _LeftOut(
                f"On top of {base!r}, no number of trees lowers the cross-fitted log "
                f"loss{figures if change else ''}."
            )
        head.head.set_weights(self.head_of(base).get_weights())
        remember_fit(head, head.keep_trees(boosting, self.rows))
        return CandidateFit(boosting.logits[self.splits.scored], head=head)

    def _best_of(self, names: Sequence[str]) -> str:
        """The first of the candidates, unless a later one is better by a standard error."""
        rows = self.splits.weighted(self.rows)
        fitted = {name: logits for name in names if (logits := self.fits[name].logits) is not None}
        losses = {name: head_log_losses(rows.labels, logits) for name, logits in fitted.items()}
        best = next(iter(losses), names[0])
        for name, loss in losses.items():
            clusters = self.splits.clusters, clusters_of(rows)
            change, error = mean_and_error(loss - losses[best], rows.weights, *clusters)
            best = name if change < -error else best
        return best
