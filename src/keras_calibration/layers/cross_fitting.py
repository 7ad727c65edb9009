"""Cross-fits a calibrator and a network: how long to train, and whether the network helps."""

from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import ops
from scipy import special

from keras_calibration._rows.labels import keep_absent_classes, present_classes
from keras_calibration._rows.rows import Rows
from keras_calibration._rows.weights import are_counts
from keras_calibration._solvers.offset_histogram import offset_histogram
from keras_calibration._solvers.reference_line import bins_of
from keras_calibration._solvers.standard_errors import mean_and_error
from keras_calibration.layers.field_network import FieldNetwork
from keras_calibration.layers.field_network_trainer import FieldNetworkTrainer
from keras_calibration.layers.fit_settings import FitSettings
from keras_calibration.layers.head import Head
from keras_calibration.layers.head_logits import head_log_losses
from keras_calibration.layers.ilps import ILPS
from keras_calibration.layers.keras_trainer import KerasTrainer
from keras_calibration.layers.network_trainer import NetworkTrainer, TrainingRows, copy_of

_ROWS_OF_OTHER_CLASSES = 10  # in each fold


@dataclass(frozen=True)
class CrossFit:
    """The result of `cross_fit`.

    Args:
        log_loss_curve: Cross-fitted log loss of η alone.
        log_loss_both: Cross-fitted log loss of η and the network.
        standard_error: Standard error of the difference.
        epochs: The best epoch of each fold.
        weights: Network weights, one set per fold; empty if the network does not help.
        logits: Cross-fitted logits of each row, (n,) or (n, K): `η + g`, or η if the network does
            not help.
        corrections: Cross-fitted g of each row (n,), if refitting η under it lowers the
            cross-fitted log loss; else None.
    """

    log_loss_curve: float
    log_loss_both: float
    standard_error: float
    epochs: tuple[int, ...]
    weights: list[list[np.ndarray]]
    logits: np.ndarray
    corrections: np.ndarray | None

    def figures(self) -> dict[str, Any]:
        """The cross-fitting arguments of `NeuralFitSummary`."""
        return {
            "cross_fitted_curve": self.log_loss_curve,
            "cross_fitted_both": self.log_loss_both,
            "standard_error": self.standard_error,
            "epochs": self.epochs,
            "network_kept": bool(self.weights),
            "cross_fitted_logits": self.logits,
        }


def enough_for(num_folds: int, rows: Rows) -> bool:
    """Whether there are ten rows per fold outside the most frequent class.

    Example:
        >>> enough_for(2, Rows(np.zeros(40), np.arange(40) % 2, None))
        True
    """
    weights = rows.row_weights if are_counts(rows.weights) else np.ones(len(rows))
    totals = weights @ rows.shares
    others = float(totals.sum() - totals.max())
    return others >= _ROWS_OF_OTHER_CLASSES * num_folds


def cross_fit(
    calibrator: Head | None,
    network: keras.layers.Layer,
    rows: Rows,
    folds: np.ndarray,
    settings: FitSettings,
    *,
    verbose: int,
) -> CrossFit:
    """For each fold, fits η and the network on the other folds and scores both on this one."""
    num_rows, weights = len(rows.logits), rows.row_weights
    # Binary logits have one column.
    logits, labels = rows.logits.reshape(num_rows, -1), _trained_labels(calibrator, rows)
    trainer = _trainer_of(network, rows, labels, settings)
    training = trainer.rows
    num_folds = int(folds.max()) + 1
    curves, cross_fitted = np.empty(logits.shape), np.empty(logits.shape)
    curve_loss, both_loss = np.empty(num_rows), np.empty(num_rows)
    epochs, members = [], []
    progress = keras.utils.Progbar(num_folds, verbose=verbose, unit_name="fold")
    for fold in range(num_folds):
        fitted, held_out = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
        training.curve[:] = _fitted_curve(calibrator, rows, fitted)
        epoch, both, learnt = trainer.train(fitted, held_out)
        curves[held_out], cross_fitted[held_out] = training.curve[held_out], both
        curve_loss[held_out] = head_log_losses(labels[held_out], curves[held_out])
        both_loss[held_out] = head_log_losses(labels[held_out], both)
        epochs.append(epoch)
        members.append(learnt)
        progress.update(fold + 1, [("log_loss", both_loss[held_out].mean())])
    change, standard_error = mean_and_error(both_loss - curve_loss, weights)
    helps = change < -standard_error
    corrections = None
    if helps and isinstance(calibrator, ILPS):
        g = (cross_fitted - curves)[:, 0]
        again = _cross_fitted_under(calibrator, rows, g, folds)
        again_loss = head_log_losses(rows.labels, again)
        if weights @ again_loss < weights @ both_loss:
            corrections, cross_fitted, both_loss = g, again, again_loss
    return CrossFit(
        log_loss_curve=float(np.average(curve_loss, weights=weights)),
        log_loss_both=float(np.average(both_loss, weights=weights)),
        standard_error=standard_error,
        epochs=tuple(epochs),
        weights=members if helps else [],
        logits=(cross_fitted if helps else curves).reshape(rows.logits.shape),
        corrections=corrections,
    )


def fold_logits(
    calibrator: Head | None,
    network: keras.layers.Layer,
    rows: Rows,
    is_held_out: np.ndarray,
    settings: FitSettings,
) -> np.ndarray:
    """`η + g` of the held-out rows, (m,) or (m, K), fitted on the other rows."""
    trainer = _trainer_of(network, rows, _trained_labels(calibrator, rows), settings)
    fitted, held_out = np.flatnonzero(~is_held_out), np.flatnonzero(is_held_out)
    trainer.rows.curve[:] = _fitted_curve(calibrator, rows, fitted)
    _, both, _ = trainer.train(fitted, held_out)
    return both.reshape(rows.logits[held_out].shape)


def fit_under(curve: ILPS, rows: Rows, corrections: np.ndarray) -> None:
    """Fits η in `η(l) + g(x)` for given corrections g.

    g was trained on top of a calibrated η. If g moves some logits more than others, η is no longer
    optimal. g must be cross-fitted: on its own training rows it is overconfident, and η would adapt
    to that.
    """
    curve.ensure_built()
    columns = rows.logits, rows.labels, rows.row_weights, corrections
    curve.fit_curve(offset_histogram(*columns, bins_of(rows.logits, rows.weights)))


def _trainer_of(
    network: keras.layers.Layer,
    rows: Rows,
    labels: np.ndarray,
    settings: FitSettings,
) -> NetworkTrainer:
    """What trains the network on top of η, which is still to be set."""
    weights = rows.row_weights
    training = TrainingRows(
        curve=np.empty(labels.shape, "float32"),
        features=rows.features,
        labels=labels.astype("float32"),
        # Mean weight 1: the prior of the network and the learning rate assume it.
        weights=(weights / weights.mean()).astype("float32"),
    )
    # A subclass may compute anything.
    trainer_class = FieldNetworkTrainer if type(network) is FieldNetwork else KerasTrainer
    return trainer_class(network, training, settings)


def _cross_fitted_under(
    calibrator: ILPS, rows: Rows, corrections: np.ndarray, folds: np.ndarray
) -> np.ndarray:
    """Cross-fitted `η + g` of each row (n,), with η fitted under the given g."""
    logits = corrections.copy()
    for fold in range(int(folds.max()) + 1):
        curve, fitted = copy_of(calibrator), folds != fold
        fit_under(curve, rows.take(fitted), corrections[fitted])
        logits[~fitted] += ops.convert_to_numpy(curve(rows.logits[~fitted]))
    return logits


def _trained_labels(calibrator: Head | None, rows: Rows) -> np.ndarray:
    """The labels (n, 1) or (n, K), in which classes without rows keep the share that η gives."""
    if rows.labels.ndim == 1:
        return rows.labels.reshape(-1, 1)
    present = present_classes(rows.labels)
    if present.all():
        return rows.labels
    curve = _fitted_curve(calibrator, rows, np.arange(len(rows.labels)))
    return keep_absent_classes(rows.labels, special.softmax(curve, axis=1), present)


def _fitted_curve(calibrator: Head | None, rows: Rows, fitted: np.ndarray) -> np.ndarray:
    """η of all rows, (n, 1) or (n, K), fitted to the rows with the given numbers."""
    logits = rows.logits.reshape(len(rows.logits), -1)
    if calibrator is None:
        return logits
    curve = copy_of(calibrator)
    curve.fit_checked(rows.take(fitted))
    return ops.convert_to_numpy(curve(logits))
