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
from keras_calibration._solvers.standard_errors import mean_and_error
from keras_calibration.calibration.candidates import IDENTITY, NEURAL, Candidate
from keras_calibration.calibration.splits import Splits
from keras_calibration.layers.boosted_trees import BoostedTrees
from keras_calibration.layers.cross_fitting import cross_fitted, enough_for
from keras_calibration.layers.fit_settings import FitSettings
from keras_calibration.layers.fits import remember_fit
from keras_calibration.layers.head import Head
from keras_calibration.layers.head_logits import head_log_losses

# Of candidates that take the scores as logits: they need not be.
_OF_OTHER_UNITS = "(TemperatureScaling|BetaCalibration): the best scale of the logit"


@dataclass(frozen=True)
class CandidateFit:
    """The result of cross-fitting a candidate.

    Args:
        logits: Calibrated logits of the scored rows (m,) or (m, K), or None if there are none.
        crossed: The logits and effects of all rows, from `cross_fitted`.
        head: A head fitted to all rows, if cross-fitting produced one.
        part_head: The head that was fitted to the parts one after the other.
        seconds: Time of all fits, in seconds.
        failure: Why there are no logits; empty if there are.
        is_lost: Whether the candidate was left out because it gains nothing, or the rows are too
            few to try it. Otherwise, its fit has failed.
    """

    logits: np.ndarray | None = None
    crossed: Any = None
    head: Head | None = None
    part_head: Head | None = None
    seconds: float = 0.0
    failure: str = ""
    is_lost: bool = False


class _Lost(ValueError):
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

    def run(self, tried: Sequence[Candidate], forced: str | None) -> None:
        """Cross-fits the candidates; a failure is recorded unless the candidate is forced.

        Raises a `ValueError` if every fit fails, and warns if some do.
        """
        for candidate in tried:
            start, is_forced = time.perf_counter(), candidate.name == forced
            self._candidates[candidate.name] = candidate
            try:
                with warnings.catch_warnings():
                    if not is_forced:  # nobody has asked how this one does
                        warnings.filterwarnings("ignore", _OF_OTHER_UNITS, UserWarning)
                    fit = self._fit(candidate, is_forced)
            except (ValueError, ImportError) as error:
                if is_forced:
                    raise
                fit = CandidateFit(failure=str(error), is_lost=isinstance(error, _Lost))
            self.fits[candidate.name] = replace(fit, seconds=time.perf_counter() - start)
            self.progress.add()
        failed = {n: f.failure for n, f in self.fits.items() if f.failure and not f.is_lost}
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
        """A head of the candidate that is fitted to all rows."""
        candidate, fit = self._candidates[name], self.fits[name]
        head = fit.head or fit.part_head or self._new_head(candidate)
        if fit.head is None and name != IDENTITY:
            head.fit_checked(self.rows)
        self.fits[name] = replace(fit, head=head)
        # Numbered like a new one: two heads of one model, of two outputs, must differ in name.
        head.name = candidate.make_head().name
        return head

    def _new_head(self, candidate: Candidate, *bases: Head) -> Head:
        head = candidate.make_head(*bases)
        # A call would build it too, and take longer.
        head.ensure_built(features_shape={n: c.shape for n, c in self.rows.features.items()})
        return head

    def _fit(self, candidate: Candidate, is_forced: bool) -> CandidateFit:
        if candidate.name == IDENTITY:
            return CandidateFit(self._identity[self.splits.scored])
        if candidate.bases:
            return self._fit_trees(candidate, is_forced)
        if candidate.name == NEURAL and not self.splits.is_forward:
            return self._fit_network(candidate)
        head, whole = self._new_head(candidate), None
        if head.starts_from_whole:
            # From a fit to all rows, those to parts of them are found in less time.
            whole = self._new_head(candidate)
            whole.fit_checked(self.rows)
        with warnings_of(self.splits.part):
            crossed = cross_fitted(head, self.rows, self.splits.parts, whole)
        return CandidateFit(crossed[0][self.splits.scored], crossed, whole, head)

    def _fit_network(self, candidate: Candidate) -> CandidateFit:
        """On these folds, the network chooses its epochs, and keeps a member of each."""
        if not enough_for(self.splits.num_folds, self.rows):
            raise _Lost("The network needs at least ten rows of each class per fold.")
        head = candidate.make_head()
        summary = head.fit_checked(self.rows, FitSettings(folds=self.splits.fold))
        return CandidateFit(summary.cross_fitted_logits, head=head)

    def _fit_trees(self, candidate: Candidate, is_forced: bool) -> CandidateFit:
        """Trees on top of the fits of another candidate, to the folds and to all rows."""
        base = self._best_of(candidate.bases)
        fits = self.fits[base]
        if fits.logits is None:
            raise _Lost(fits.failure)
        if not enough_for(self.splits.num_folds, self.rows):
            raise _Lost("Trees need at least ten rows of each class per fold.")
        head = cast(BoostedTrees, self._new_head(candidate, self._candidates[base].make_head()))
        boosting = head.fit_trees(
            self.rows,
            self.splits.parts,
            (cast(Head, fits.part_head), fits.head),
            fits.crossed,
            FitSettings(),
            self.splits.fold if self.splits.in_order else None,
        )
        if not boosting.num_rounds and not is_forced:
            change = boosting.log_loss_with - boosting.log_loss_without
            figures = f" by a standard error: {change:+.6f} ± {boosting.standard_error:.6f}"
            raise _Lost(
                f"On top of {base!r}, no number of trees lowers the cross-fitted log "
                f"loss{figures if change else ''}."
            )
        head.head.set_weights(self.head_of(base).get_weights())
        remember_fit(head, head.keep_trees(boosting, self.rows))
        return CandidateFit(boosting.logits[self.splits.scored], head=head)

    def _best_of(self, names: Sequence[str]) -> str:
        """The first of the candidates, unless a later one is better by a standard error."""
        rows = self.splits.weighted(self.rows)
        fitted = {n: f for n in names if (f := self.fits[n].logits) is not None}
        losses = {name: head_log_losses(rows.labels, logits) for name, logits in fitted.items()}
        best = next(iter(losses), names[0])
        for name, loss in losses.items():
            change, error = mean_and_error(loss - losses[best], rows.weights, self.splits.clusters)
            best = name if change < -error else best
        return best
