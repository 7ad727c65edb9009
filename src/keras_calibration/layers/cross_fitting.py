"""Cross-fitting of a curve and a network: how long to train, and whether it helps at all."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calibration.layers.calibrator import Calibrator
from keras_calibration.layers.head_logits import head_log_losses
from keras_calibration.layers.network_training import (
    NetworkTrainer,
    TrainingRows,
    copy_of,
    weights_of,
)
from keras_calibration.ops.data_checks import Rows

_ROWS_OF_OTHER_CLASSES = 10  # in each fold


@dataclass(frozen=True)
class CrossFit:
    """What `cross_fit` found.

    Args:
        log_loss_curve: Cross-fitted log loss of η alone.
        log_loss_both: Cross-fitted log loss of η and the network.
        standard_error: Standard error of the difference.
        epochs: The best epoch of each fold.
        weights: The weights of one network for each fold, or of one for all rows; none where the
            network does not help.
        logits: `η + g` of each row by a fit without its fold, (n,) or (n, K).
    """

    log_loss_curve: float
    log_loss_both: float
    standard_error: float
    epochs: tuple[int, ...]
    weights: list[list[np.ndarray]]
    logits: np.ndarray

    def figures(self) -> dict[str, Any]:
        """The arguments of `NeuralFitSummary` that tell of the folds."""
        return {
            "cross_fitted_curve": self.log_loss_curve,
            "cross_fitted_both": self.log_loss_both,
            "standard_error": self.standard_error,
            "epochs": self.epochs,
            "network_kept": bool(self.weights),
            "cross_fitted_logits": self.logits,
        }


def enough_for(num_folds: int, rows: Rows) -> bool:
    """Whether each fold would hold ten rows that are not of the most frequent class.

    Args:
        num_folds: Number of folds.
        rows: Logits, labels and weights.

    Returns:
        Whether it would.

    Example:
        >>> enough_for(2, Rows(np.zeros(40), np.arange(40) % 2, None))
        True
    """
    labels = rows.labels[rows.row_weights > 0]
    shares = labels if labels.ndim == 2 else np.stack([1 - labels, labels], axis=1)
    others = len(shares) - float(shares.sum(axis=0).max())
    return others >= _ROWS_OF_OTHER_CLASSES * num_folds


def cross_fit(
    calibrator: Calibrator | None,
    network: Any,
    rows: Rows,
    columns: Mapping[str, np.ndarray],
    *,
    folds: np.ndarray,
    refit: bool,
    max_epochs: int,
    patience: int,
    learning_rate: float,
    batch_size: int | None,
    seed: int | None,
    verbose: int,
) -> CrossFit:
    """Fits η and network on all folds but one, for each, and scores them on that one.

    Args:
        calibrator: η; it is only copied from. None leaves the logits as they are.
        network: g; it is only copied from.
        rows: Logits, labels of more than one class and weights (or None) of n rows.
        columns: Feature name → array with n rows.
        folds: The fold of each row, 0, 1 … (n,).
        refit: Whether to train one network on all rows, for the median of the best epochs.
        max_epochs: Largest number of epochs of a fold.
        patience: Epochs without a gain after which a fold ends.
        learning_rate: Adam's learning rate.
        batch_size: Rows of a batch; None chooses.
        seed: Seed of the folds and of the order of the rows.
        verbose: 1 shows a progress bar.

    Returns:
        The cross-fitted log losses and the weights. The network helps if it lowers the log loss by
        more than a standard error.
    """
    num_rows = len(rows.logits)
    # Of one column where the logits are binary.
    logits, labels = (each.reshape(num_rows, -1) for each in (rows.logits, rows.labels))
    weights = rows.row_weights
    training = TrainingRows(
        curve=np.empty(logits.shape, "float32"),
        features=columns,
        labels=labels.astype("float32"),
        # Of mean 1, which the prior of the network and the learning rate are made for.
        weights=(weights / weights.mean()).astype("float32"),
    )
    trainer = NetworkTrainer(network, training, learning_rate, batch_size, seed)
    num_folds = int(folds.max()) + 1
    cross_fitted = np.empty(logits.shape)
    curve_loss, both_loss = np.empty(num_rows), np.empty(num_rows)
    epochs, members = [], []
    progress = keras.utils.Progbar(num_folds + refit, verbose=verbose, unit_name="fold")
    for fold in range(num_folds):
        fitted, held_out = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
        training.curve[:] = _fitted_curve(calibrator, rows, fitted)
        epoch, both, learnt = trainer.train(fitted, held_out, max_epochs, patience)
        for losses, calibrated in ((curve_loss, training.curve[held_out]), (both_loss, both)):
            losses[held_out] = head_log_losses(labels[held_out], calibrated.astype("float64"))
        cross_fitted[held_out] = both
        epochs.append(epoch)
        members.append(learnt)
        progress.update(fold + 1, [("log_loss", both_loss[held_out].mean())])
    total = weights.sum()
    difference = weights * (both_loss - curve_loss)
    gain = difference.sum() / total
    standard_error = float(np.sqrt(np.sum((difference - weights * gain) ** 2)) / total)
    helps = gain < -standard_error
    if refit and helps:
        everything = np.arange(num_rows)
        training.curve[:] = _fitted_curve(calibrator, rows, everything)
        trainer.restart(everything)
        for _ in range(round(float(np.median(epochs)))):
            trainer.train_epoch(everything)
        members = [weights_of(trainer.network)]
    if refit:
        progress.update(num_folds + 1)
    return CrossFit(
        log_loss_curve=float(weights @ curve_loss / total),
        log_loss_both=float(weights @ both_loss / total),
        standard_error=standard_error,
        epochs=tuple(epochs),
        weights=members if helps else [],
        logits=cross_fitted.reshape(rows.logits.shape),
    )


def _fitted_curve(calibrator: Calibrator | None, rows: Rows, fitted: np.ndarray) -> np.ndarray:
    """η of all rows (n, 1) or (n, K), fitted on some."""
    logits = rows.logits.reshape(len(rows.logits), -1)
    if calibrator is None:
        return logits
    curve = copy_of(calibrator)
    curve.fit(
        rows.logits[fitted],
        rows.labels[fitted],
        None if rows.weights is None else rows.weights[fitted],
    )
    return ops.convert_to_numpy(curve(logits))
