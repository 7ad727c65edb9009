"""Cross-fits the candidates of `calibrate`."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from keras import ops

from keras_calibration._typing import Features, Tensor
from keras_calibration.calibration.candidates import IDENTITY, Candidate
from keras_calibration.calibration.fit_progress import FitProgress
from keras_calibration.calibration.splits import Splits
from keras_calibration.layers.fit_settings import FitSettings
from keras_calibration.layers.fit_summary import NeuralFitSummary
from keras_calibration.layers.head import Head
from keras_calibration.layers.head_logits import head_logits
from keras_calibration.solvers.data_checks import Rows

REPORT = "report"
# Seconds of a row and column in the report, on the machine of the candidates' seconds.
_SECONDS_OF_A_VALUE = 2e-6


@dataclass(frozen=True)
class CandidateFit:
    """The result of cross-fitting a candidate.

    Args:
        logits: Calibrated logits of the scored rows (m,) or (m, K), or None if the fit failed.
        head: A head fitted to all rows, if cross-fitting produced one.
        seconds: Time of all fits, in seconds.
        failure: Why the fit failed; empty if it did not.
    """

    logits: np.ndarray | None = None
    head: Head | None = None
    seconds: float = 0.0
    failure: str = ""


def fit_candidates(
    tried: list[Candidate],
    rows: Rows,
    features: Features,
    splits: Splits,
    seed: int,
    forced: str | None,
    progress: FitProgress,
) -> dict[str, CandidateFit]:
    """Cross-fits the candidates; a failure is recorded unless `methods` asked for the candidate."""
    fits: dict[str, CandidateFit] = {}
    for candidate in tried:
        start = time.perf_counter()
        try:
            if candidate.parts:
                head, logits = None, _mean_logits([fits[part] for part in candidate.parts])
            else:
                head, logits = _scored_logits(candidate, rows, features, splits, seed, progress)
            seconds = time.perf_counter() - start
            fits[candidate.name] = CandidateFit(logits, head, seconds)
        except ValueError as error:
            if candidate.name == forced:
                raise
            fits[candidate.name] = CandidateFit(failure=str(error))
            progress.skip(candidate.name)
    return fits


def pieces_of_work(
    tried: list[Candidate], splits: Splits, num_columns: int
) -> list[tuple[str, float]]:
    """The fits of `fit_candidates`, the report, and the longest last fit, for `FitProgress`."""
    num_rows = len(splits.fold)
    sizes = [len(fitted) for fitted, _ in splits.parts()]
    pieces, last = [], []
    for candidate in tried:
        if candidate.parts or candidate.name == IDENTITY:
            continue
        costs = [candidate.cost(size, num_columns) for size in sizes]
        if _cross_fits_itself(candidate, splits):
            pieces.append((candidate.name, sum(costs)))
        else:
            pieces += [(candidate.name, cost) for cost in costs]
            last.append((candidate.name, candidate.cost(num_rows, num_columns)))
    report = 0.1 + _SECONDS_OF_A_VALUE * num_rows * num_columns
    return [*pieces, (REPORT, report), *sorted(last, key=lambda piece: piece[1])[-1:]]


def fitted_head(candidate: Candidate, rows: Rows, features: Features, seed: int) -> Head:
    """A new head of a candidate without parts, fitted to the rows."""
    head = candidate.make_head()
    if candidate.name == IDENTITY:
        return head
    settings = FitSettings(seed=seed)
    head.fit_checked(rows, features, settings)
    return head


def take(values: Tensor, rows: np.ndarray) -> Tensor:
    """The rows of an array or tensor with the given numbers."""
    if values is None:
        return None
    return ops.take(values, rows, axis=0) if ops.is_tensor(values) else values[rows]


def _mean_logits(parts: list[CandidateFit]) -> np.ndarray:
    logits = [part.logits for part in parts if part.logits is not None]
    if len(logits) < len(parts):
        raise ValueError(next(part.failure for part in parts if part.failure))
    return np.mean(logits, axis=0)


def _scored_logits(
    candidate: Candidate,
    rows: Rows,
    features: Features,
    splits: Splits,
    seed: int,
    progress: FitProgress,
) -> tuple[Head | None, np.ndarray]:
    """A head fitted to all rows, if available, and the cross-fitted logits of the scored rows."""
    if candidate.name == IDENTITY:
        return None, rows.logits[splits.scored]
    if _cross_fits_itself(candidate, splits):
        # On these folds, to choose the number of epochs.
        head = candidate.make_head()
        settings = FitSettings(folds=splits.fold, seed=seed)
        summary = head.fit_checked(rows, features, settings)
        if not (isinstance(summary, NeuralFitSummary) and len(summary.cross_fitted_logits)):
            raise ValueError("The network needs at least ten rows of each class per fold.")
        progress.end_piece(candidate.name)
        return head, summary.cross_fitted_logits
    calibrated = np.empty(rows.logits.shape)
    for fitted, scored in splits.parts():
        fitted_features = {name: take(column, fitted) for name, column in features.items()}
        head = fitted_head(candidate, rows.take(fitted), fitted_features, seed)
        scored_features = {name: take(column, scored) for name, column in features.items()}
        calibrated[scored] = head_logits(head, rows.logits[scored], scored_features)
        progress.end_piece(candidate.name)
    return None, calibrated[splits.scored]


def _cross_fits_itself(candidate: Candidate, splits: Splits) -> bool:
    return candidate.name == "neural" and not splits.is_forward
