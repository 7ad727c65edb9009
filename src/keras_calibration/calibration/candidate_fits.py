"""Cross-fits the candidates of `calibrate`, costly ones only as long as they can win."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from calibration_records._progress import ProgressBar
from calibration_records._warn import warn
from keras_calibration._rows.rows import Rows
from keras_calibration._solvers.stacking import stacked_weights
from keras_calibration._solvers.standard_errors import mean_and_error
from keras_calibration.calibration.aging import Aging, aging_of
from keras_calibration.calibration.candidates import IDENTITY, Candidate
from keras_calibration.calibration.splits import Splits
from keras_calibration.layers.boosted_trees import BoostedTrees
from keras_calibration.layers.cross_fitting import enough_for
from keras_calibration.layers.fit_settings import FitSettings
from keras_calibration.layers.fits import remember_fit
from keras_calibration.layers.head import Head
from keras_calibration.layers.head_logits import head_log_losses, head_logits
from keras_calibration.layers.neural_calibration import NeuralCalibration

# Of candidates that take the scores as logits: they need not be.
_OF_OTHER_UNITS = "(TemperatureScaling|BetaCalibration): the best scale of the logit"
# A costly candidate ends after the first fold if it is unlikely to add as much on such a fold: its
# gain there, in nats, and a standard error are less.
_LEAST_GAIN = 1.0


@dataclass(frozen=True)
class CandidateFit:
    """The result of cross-fitting a candidate.

    Args:
        logits: Calibrated logits of the scored rows (m,) or (m, K), or None if there are none.
        head: A head fitted to all rows, if cross-fitting produced one.
        fold_heads: The heads that were fitted for the folds, in their order.
        seconds: Time of all fits, in seconds.
        failure: Why there are no logits; empty if there are.
        is_lost: Whether the candidate was left out because it gains nothing, or the rows are too
            few to try it. Otherwise, its fit has failed.
    """

    logits: np.ndarray | None = None
    head: Head | None = None
    fold_heads: Sequence[Head] = ()
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
        seed: Seed of training.
        progress: The progress bar, over the fits.
        identity: The logits of the model as it was passed; those of `rows` by default.

    Attributes:
        fits: Name of each candidate so far → its `CandidateFit`.
    """

    def __init__(
        self,
        rows: Rows,
        splits: Splits,
        seed: int,
        progress: ProgressBar,
        identity: np.ndarray | None = None,
    ) -> None:
        self.rows, self.splits = rows, splits
        self._identity = rows.logits if identity is None else identity
        self.seed, self.progress = seed, progress
        self.fits: dict[str, CandidateFit] = {}
        self._candidates: dict[str, Candidate] = {}

    def run(self, tried: Sequence[Candidate], forced: str | None) -> None:
        """Cross-fits the candidates; a failure is recorded unless the candidate is forced.

        Raises a `ValueError` if every fit fails, and warns if some do.
        """
        num_fits = 0
        for candidate in tried:
            start = time.perf_counter()
            self._candidates[candidate.name] = candidate
            try:
                with warnings.catch_warnings():
                    if candidate.name != forced:  # nobody has asked how this one does
                        warnings.filterwarnings("ignore", _OF_OTHER_UNITS, UserWarning)
                    fit = self._fit(candidate, is_forced=candidate.name == forced)
            except (ValueError, ImportError) as error:
                if candidate.name == forced:
                    raise
                fit = CandidateFit(failure=str(error), is_lost=isinstance(error, _Lost))
            self.fits[candidate.name] = replace(fit, seconds=time.perf_counter() - start)
            # Also those that a candidate was spared.
            num_fits += num_fits_of(candidate, self.splits)
            self.progress.show(num_fits)
        self._check_failures()

    def _check_failures(self) -> None:
        changes = [fit for name, fit in self.fits.items() if name != IDENTITY]
        failed = {n: f.failure for n, f in self.fits.items() if f.failure and not f.is_lost}
        if not failed:
            return
        reasons = " ".join(f"{name!r}: {reason}" for name, reason in failed.items())
        if all(fit.failure for fit in changes):
            raise ValueError(
                "None of the candidates can be fitted to these rows, which is no reason to leave "
                f"the model as it is. {reasons}"
            )
        warn(f"Of the candidates, {', '.join(map(repr, failed))} could not be fitted. {reasons}")

    def head_of(self, candidate: Candidate) -> Head:
        """A head of the candidate that is fitted to all rows."""
        head = self.fits[candidate.name].head
        if head is None:
            head = _fitted_head(candidate, self.rows, self.seed)
            self.fits[candidate.name] = replace(self.fits[candidate.name], head=head)
        # Numbered like a new one: two heads of one model, of two outputs, must differ in name.
        head.name = candidate.make_head().name
        return head

    def aging(self, weights: Mapping[str, float]) -> Aging | None:
        """What the fits of the heaviest candidate lose as they age; of trees, those below them."""
        for name in sorted(weights, key=weights.__getitem__, reverse=True):
            if bases := self._candidates[name].bases:
                name = self._best_of(bases)
            if heads := self.fits[name].fold_heads:
                return aging_of(name, heads, self.rows, self.splits)
        return None

    def _fit(self, candidate: Candidate, is_forced: bool) -> CandidateFit:
        if candidate.name == IDENTITY:
            return CandidateFit(self._identity[self.splits.scored])
        if candidate.bases:
            return self._fit_trees(candidate, is_forced)
        if _cross_fits_itself(candidate, self.splits):
            return self._fit_network(candidate, is_forced)
        parts = list(self.splits.parts())
        # From a fit to all rows, those to parts of them are found in less time.
        whole: Head | None = None
        if candidate.make_head().starts_from_whole:
            whole = _fitted_head(candidate, self.rows, self.seed)
        heads: dict[int, Head] = {}
        logits = np.empty(self.rows.logits.shape)
        # The last first: of blocks of time, it has the most rows.
        for number in reversed(range(len(parts))):
            fitted, scored = parts[number]
            rows = self.rows.take(fitted).as_given()
            head = heads[number] = _fitted_head(candidate, rows, self.seed, whole)
            rows = self.rows.take(scored)
            logits[scored] = head_logits(head, rows.logits, rows.features)
            self.progress.add()
            is_first = number == len(parts) - 1
            if is_first and candidate.is_costly and not is_forced:
                self._check_gain(scored, logits[scored])
        fold_heads = [heads[number] for number in range(len(parts))]
        return CandidateFit(logits[self.splits.scored], whole, fold_heads)

    def _fit_network(self, candidate: Candidate, is_forced: bool) -> CandidateFit:
        """On these folds, the network chooses its epochs, and keeps a member of each."""
        head = cast(NeuralCalibration, candidate.make_head())
        settings = FitSettings(folds=self.splits.fold, seed=self.seed)
        if not enough_for(self.splits.num_folds, self.rows):
            raise _Lost("The network needs at least ten rows of each class per fold.")
        if not is_forced:
            is_last = self.splits.fold == self.splits.num_folds - 1
            logits = head.logits_of_fold(self.rows, is_last, settings)
            self._check_gain(np.flatnonzero(is_last), logits)
        summary = head.fit_checked(self.rows, settings)
        return CandidateFit(summary.cross_fitted_logits, head)

    def _fit_trees(self, candidate: Candidate, is_forced: bool) -> CandidateFit:
        """Trees on top of the fits of another candidate, to the folds and to all rows."""
        base = self._best_of(candidate.bases)
        below = self._candidates[base].make_head()
        fits = self.fits[base]
        if fits.logits is None:
            raise _Lost(fits.failure)
        if not enough_for(self.splits.num_folds, self.rows):
            raise _Lost("Trees need at least ten rows of each class per fold.")
        head = cast(BoostedTrees, candidate.make_head(below))
        first = self.rows.take(np.arange(1))
        head(first.logits, first.features)  # builds the head
        head.head.set_weights(self.head_of(self._candidates[base]).get_weights())
        summary = head.fit_trees(
            self.rows,
            list(self.splits.parts()),
            fits.fold_heads,
            FitSettings(seed=self.seed),
            self.splits.fold if self.splits.in_order else None,
            self.head_of(self._candidates[base]),
        )
        if not summary.num_iterations and not is_forced:
            change = summary.cross_fitted_both - summary.cross_fitted_head
            figures = f" by a standard error: {change:+.6f} ± {summary.standard_error:.6f}"
            raise _Lost(
                f"On top of {base!r}, no number of trees lowers the cross-fitted log "
                f"loss{figures if change else ''}."
            )
        remember_fit(head, summary)
        return CandidateFit(summary.cross_fitted_logits[self.splits.scored], head)

    def _best_of(self, names: Sequence[str]) -> str:
        """The first of the candidates, unless a later one is better by a standard error."""
        rows = self.splits.weighted(self.rows)
        losses = {
            name: head_log_losses(rows.labels, logits)
            for name in names
            if (logits := self.fits[name].logits) is not None
        }
        best = next(iter(losses), names[0])
        for name, loss in losses.items():
            change, error = mean_and_error(loss - losses[best], rows.weights, self.splits.clusters)
            best = name if change < -error else best
        return best

    def _check_gain(self, numbers: np.ndarray, logits: np.ndarray) -> None:
        """Raises if a candidate with these logits of a fold adds nothing to those before it."""
        places = np.searchsorted(self.splits.scored, numbers)
        others = [fit.logits[places] for fit in self.fits.values() if fit.logits is not None]
        rows = self.rows.take(numbers)
        losses = []
        for columns in (others, [*others, logits]):
            shares = stacked_weights(columns, rows)
            combined = np.tensordot(shares, np.stack(columns), axes=1)
            losses.append(head_log_losses(rows.labels, combined))
        gain, error = rows.num_effective * np.array(
            mean_and_error(losses[0] - losses[1], rows.weights)
        )
        if gain + error < _LEAST_GAIN:
            raise _Lost(
                f"It ended after one fold, in which it added {gain:.1f} ± {error:.1f} nats to what "
                f"the others gain together on {len(numbers):,} rows."
            )


def num_fits_of(candidate: Candidate, splits: Splits) -> int:
    """The number of fits of a candidate in `Race`."""
    if candidate.name == IDENTITY:
        return 0
    if candidate.bases or _cross_fits_itself(candidate, splits):
        return 1
    return splits.num_parts


def _fitted_head(candidate: Candidate, rows: Rows, seed: int, like: Head | None = None) -> Head:
    """A new head of a candidate, fitted to the rows; `like` is one fitted to all rows."""
    head = candidate.make_head()
    if candidate.name != IDENTITY:
        head.fit_checked(rows, FitSettings(seed=seed), like=like)
    return head


def _cross_fits_itself(candidate: Candidate, splits: Splits) -> bool:
    return candidate.name == "neural" and not splits.is_forward
