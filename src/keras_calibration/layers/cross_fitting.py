"""Cross-fits a calibrator and a network: how long to train, and whether the network helps."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import keras
import numpy as np

from calibration_records._progress import ProgressBar
from keras_calibration._rows.rows import Rows
from keras_calibration._rows.weights import are_counts
from keras_calibration._solvers.logistic_fit import row_log_losses
from keras_calibration._solvers.offset_histogram import offset_histogram
from keras_calibration._solvers.reference_line import bins_of
from keras_calibration._solvers.repeated_rows import clusters_of
from keras_calibration._solvers.standard_errors import mean_and_error
from keras_calibration._solvers.total_bias import bias_of_total
from keras_calibration.layers.fit import Fit
from keras_calibration.layers.fit_settings import FitSettings
from keras_calibration.layers.fits import fit_to
from keras_calibration.layers.head import Head
from keras_calibration.layers.histogram_head import FittedCurve
from keras_calibration.layers.ilps import ILPS
from keras_calibration.layers.network_trainer import NetworkTrainer, Weights

# Numbers of the rows to fit, and of those to score.
Parts: TypeAlias = Sequence[tuple[np.ndarray, np.ndarray]]
_ROWS_OF_OTHER_CLASSES = 10  # in each fold


@dataclass(frozen=True)
class CrossFit:
    """The result of `cross_fit`.

    Args:
        weights: Network weights, one set per fold; empty if the network does not help.
        figures: The figures of a `FitSummary`; its logits are `η + g`, or η if the network does not
            help. Empty without a network or with too few rows.
        corrections: Cross-fitted g of each row (n,), if refitting η under it lowers the
            cross-fitted log loss; else None.
    """

    weights: Sequence[Weights] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)
    corrections: np.ndarray | None = None


def enough_for(num_folds: int, rows: Rows) -> bool:
    """Whether there are ten rows per fold outside the most frequent class.

    Example:
        >>> enough_for(2, Rows(np.zeros(40), np.arange(40) % 2, None))
        True
    """
    # A count of k is k rows, but a row of a large importance is only one.
    weights = rows.row_weights if are_counts(rows.weights) else np.ones(len(rows))
    totals = weights @ rows.shares
    others = float(totals.sum() - totals.max())
    return others >= _ROWS_OF_OTHER_CLASSES * num_folds


def parts_of(fold: np.ndarray, scored: Iterable[int], is_forward: bool = False) -> Parts:
    """The parts that score some folds: by a fit to all others, or to the earlier ones.

    Example:
        >>> [(a.tolist(), b.tolist()) for a, b in parts_of(np.array([0, 1, 0]), range(2))]
        [([1], [0, 2]), ([0, 2], [1])]
    """
    return [
        (np.flatnonzero(fold < n if is_forward else fold != n), np.flatnonzero(fold == n))
        for n in scored
    ]


class CrossFitted(NamedTuple):
    """Logits (n,) or (n, K), and effects (n, E), of rows from fits that did not see them."""

    logits: np.ndarray
    effects: np.ndarray


def cross_fitted(
    head: Head,
    rows: Rows,
    parts: Parts,
    start: Fit | None = None,
    settings: FitSettings | None = None,
) -> CrossFitted:
    """Logits and effects of the scored rows of each part, from fits to its other rows.

    Rows that no part scores keep their logits, and have effects of 0. `start` is a fit to all rows,
    see `Head.fitted`. The head stays as it is.
    """
    logits = rows.logits.copy()
    effects = np.zeros((len(rows), len(head.effect_names)))
    for fitted, scored in parts:
        fit = fit_to(head, rows.take(fitted), settings, start)
        scored_rows = rows.take(scored)
        logits[scored] = fit.logits(scored_rows)
        if fit.effects is not None:
            effects[scored] = fit.effects(scored_rows)
    return CrossFitted(logits, effects)


def cross_fit(
    calibrator: Head | None,
    network: keras.layers.Layer,
    rows: Rows,
    folds: np.ndarray,
    settings: FitSettings,
) -> CrossFit:
    """For each fold, fits η and the network on the other folds and scores both on this one."""
    trainer = NetworkTrainer(network, rows, settings)
    num_folds = int(folds.max()) + 1
    weights = rows.row_weights
    curves = np.empty(len(rows))
    both = np.empty(len(rows))
    trained: list[tuple[int, list[np.ndarray]]] = []  # best epoch and weights, by fold
    progress = ProgressBar(num_folds, "folds", settings.verbose)
    for fold in range(num_folds):
        fitted = np.flatnonzero(folds != fold)
        held_out = np.flatnonzero(folds == fold)
        # η, like the network, must not see the labels of the fold that it is scored on.
        curve = rows.logits
        if calibrator is not None:
            curve = fit_to(calibrator, rows.take(fitted)).logits(rows)
        epoch, both[held_out], member = trainer.train(curve, fitted, held_out)
        curves[held_out] = trainer.curve[held_out, 0]
        trained.append((epoch, member))
        progress.add()
    curve_loss, both_loss = (row_log_losses(rows.labels, eta) for eta in (curves, both))
    change, standard_error = mean_and_error(both_loss - curve_loss, weights, clusters_of(rows))
    # The network is kept if it lowers the cross-fitted log loss by more than one standard error.
    helps = change < -standard_error
    corrections = None
    if helps and isinstance(calibrator, ILPS):
        # η was fitted without g. Fit it once more under the cross-fitted g, and keep that if the
        # cross-fitted log loss falls.
        refitted = _cross_fit_under(calibrator, rows, both - curves, folds)
        refitted_loss = row_log_losses(rows.labels, refitted)
        if weights @ refitted_loss < weights @ both_loss:
            corrections, both, both_loss = both - curves, refitted, refitted_loss
    if helps:
        # The network of each fold has its own error of the mean. One bias for all rows gives the
        # cross-fitted predictions the total of the labels.
        both = both + bias_of_total(both, rows)
        both_loss = row_log_losses(rows.labels, both)
    figures = {
        "cross_fitted_head": float(np.average(curve_loss, weights=weights)),
        "cross_fitted_both": float(np.average(both_loss, weights=weights)),
        "standard_error": standard_error,
        "epochs": tuple(epoch for epoch, _ in trained),
        "network_kept": helps,
        "cross_fitted_logits": both if helps else curves,
    }
    return CrossFit([member for _, member in trained] if helps else [], figures, corrections)


def fit_under(curve: ILPS, rows: Rows, corrections: np.ndarray) -> FittedCurve:
    """The η in `η(l) + g(x)` for given corrections g.

    g was trained on top of a calibrated η. If g moves some logits more than others, η is no longer
    optimal. Pass cross-fitted g: on its own training rows, a network is overconfident, and η would
    adapt to that.
    """
    bins = bins_of(rows.logits, rows.weights)
    return curve.fit_curve(
        offset_histogram(rows.logits, rows.labels, rows.row_weights, corrections, bins)
    )


def _cross_fit_under(
    calibrator: ILPS, rows: Rows, corrections: np.ndarray, folds: np.ndarray
) -> np.ndarray:
    """Cross-fitted `η + g` of each row (n,), with η fitted under the given g."""
    logits = corrections.copy()
    for fold in range(int(folds.max()) + 1):
        is_fitted = folds != fold
        curve = fit_under(calibrator, rows.take(is_fitted), corrections[is_fitted])
        logits[~is_fitted] += curve.at(rows.logits[~is_fitted])
    return logits
