"""Fits a head directly, then by training, which is kept only if it improves on the direct fit."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from calibration_records._warn import warn
from keras_calibration._rows.class_rows import (
    absent_classes,
    named_classes,
    present_classes,
    warn_of_absent_classes,
)
from keras_calibration._rows.data_checks import warn_of_contradicted_ends, warn_of_probabilities
from keras_calibration._solvers.logit_histogram import LARGEST_LOGIT
from keras_calibration._solvers.standard_errors import mean_and_error
from keras_calibration.layers.cross_fitting import enough_for
from keras_calibration.layers.fit_settings import FitSettings
from keras_calibration.layers.fit_summary import FitSummary
from keras_calibration.layers.head import Head
from keras_calibration.layers.head_logits import (
    head_log_losses,
    head_logits,
    outcome_columns,
)
from keras_calibration.layers.network_trainer import weights_of
from keras_calibration.layers.streaming_calibrator import StreamingCalibrator
from keras_calibration.models.head_rows import HeadRows
from keras_calibration.models.logit_range import describe_logits
from keras_calibration.models.model_fit_summary import ModelFitSummary

_HELD_OUT_SHARE = 0.2
# Training is kept if it gains more than this many standard errors. With one, small development
# sets kept training that had gained by chance, and ended worse than the direct fit to all rows.
_GAIN_IN_ERRORS = 3.0
# The means of labels and predictions may differ by chance by this many standard errors; a
# difference below this share of either class is ignored.
_STANDARD_ERRORS, _SMALLEST_SHARE = 4.0, 0.01
_OF_FIT = (
    "The head cannot correct the mean, as TemperatureScaling cannot, or its fit did not converge. "
    "Use a head that shifts the logits, such as PlattScaling, or VectorScaling for classes."
)
_OF_TRAINING = (
    "Training ended too early, diverged, or did not minimize the log loss. Use "
    'initialize="exact", which starts from the direct fit, or use more epochs, another learning '
    'rate and loss="log_loss".'
)


def fit_exactly(
    head: Head, rows: HeadRows, verbose: bool = False, settings: FitSettings | None = None
) -> FitSummary:
    """Fits a head by its direct fit, to rows about which `check_development_rows` has warned."""
    checked = head.check_rows(rows.logits, rows.labels, rows.weights)
    checked = replace(checked, unit=rows.unit)
    return head.fit_checked(checked, rows.features, settings, int(verbose))


def check_development_rows(rows: HeadRows, is_trained: bool) -> None:
    """Warns of suspicious rows, once for all fits; refuses training without rows of a class."""
    flat = rows.flat
    absent = absent_classes(flat)
    if absent and is_trained:
        raise ValueError(
            "Training by gradient needs rows of every class: it drives the probability of a class "
            f"without rows to 0. Received: no rows of {named_classes(absent)}. Add rows of these "
            "classes, or use the direct fit alone, with epochs=0."
        )
    warn_of_probabilities(flat.logits, flat.labels)
    warn_of_absent_classes(flat)
    warn_of_contradicted_ends(flat)


def split_off(rows: HeadRows, seed: int = 0) -> tuple[HeadRows, HeadRows]:
    """Splits rows at random into fit rows and a held-out fifth.

    A fifth of the positives and a fifth of the negatives (or of each class) are held out, rounded
    down, so that at least one of each is left to fit. Rows of weight 0 are not held out.
    """
    generator = np.random.default_rng(seed)
    flat = rows.flat
    has_classes = flat.labels.ndim == 2
    classes = flat.labels.argmax(axis=1) if has_classes else flat.labels > 0.5
    held_out = np.zeros(len(rows), bool)
    for stratum in np.unique(classes)[::-1]:
        numbers = np.flatnonzero((flat.row_weights > 0) & (classes == stratum))
        held_out[generator.permutation(numbers)[: int(_HELD_OUT_SHARE * len(numbers))]] = True
    return rows.take(np.flatnonzero(~held_out)), rows.take(np.flatnonzero(held_out))


def train_from_exact(
    head: Head,
    rows: HeadRows,
    held_out: HeadRows | None,
    num_epochs: int,
    train: Callable[[HeadRows, Callable[[], bool]], None],
    verbose: bool = False,
) -> ModelFitSummary:
    """Trains a head from its direct fit, and keeps the training if held-out rows improve.

    Without `held_out`, a random fifth of the rows decides, which neither the direct fit nor the
    training saw. `train(rows, decide)` trains the head and then calls `decide`, which returns
    whether the training is kept, and otherwise restores the direct fit.
    """
    if held_out is not None:
        _check_deciding(head, held_out)
    fitted, deciding = split_off(rows) if held_out is None else (rows, held_out)
    exact = fit_exactly(head, fitted, verbose)
    weights, before = weights_of(head), _log_losses(head, deciding)
    if not head.is_adapted:
        head.adapt(fitted.logits, fitted.labels, fitted.features, fitted.weights)
    figures: dict[str, Any] = {}

    def decide() -> bool:
        nonlocal exact
        change = error = float("nan")
        weights_of_rows = deciding.flat.row_weights
        if weights_of_rows.any():
            change, error = mean_and_error(_log_losses(head, deciding) - before, weights_of_rows)
        kept = bool(change < -_GAIN_IN_ERRORS * error and enough_for(1, deciding.flat))
        if not kept and held_out is None:
            exact = fit_exactly(head, rows, verbose)
        elif not kept:
            head.set_weights(weights)
        figures.update(training_kept=kept, held_out_change=change, held_out_error=error)
        return kept

    train(fitted, decide)
    return model_summary(
        head, rows, exact, num_epochs=num_epochs, num_held_out=len(deciding), **figures
    )


def model_summary(
    head: Head, rows: HeadRows, exact: FitSummary | None, **figures: Any
) -> ModelFitSummary:
    """The summary of a finished fit; warns if mean prediction and mean label differ.

    A head with `update` also stores the histogram of the rows, so that `update` works however it
    was fitted.
    """
    flat = rows.flat
    logits = head_logits(head, flat.logits, rows.features)
    # A curve that was trained by gradient alone has seen any logit. No histogram can hold all.
    is_summable = flat.logits.ndim == 1 and np.abs(flat.logits).max(initial=0.0) <= LARGEST_LOGIT
    if isinstance(head, StreamingCalibrator) and is_summable:
        head.remember_rows(flat)
    is_direct = exact is not None and not figures.get("num_epochs")
    _warn_of_bias(logits, flat.labels, flat.row_weights, _OF_FIT if is_direct else _OF_TRAINING)
    with np.errstate(invalid="ignore"):
        before, after = (
            float(np.average(head_log_losses(flat.labels, each), weights=flat.weights))
            for each in (flat.logits, logits)
        )
    return ModelFitSummary(
        num_rows=len(rows),
        log_loss_before=before,
        log_loss_after=after,
        num_iterations=0 if exact is None else exact.num_iterations,
        converged=exact is not None and exact.converged,
        exact=exact,
        logits=describe_logits(flat.logits, "fit", flat.row_weights),
        **figures,
    )


def log_loss_of(head: Head, rows: HeadRows) -> float:
    """Mean log loss of a head in nats per row, weighted."""
    return float(np.average(_log_losses(head, rows), weights=rows.flat.weights))


def _check_deciding(head: Head, held_out: HeadRows) -> None:
    """Raises if validation data cannot decide whether training has helped."""
    try:
        head.check_rows(held_out.logits, held_out.labels, held_out.weights)
    except ValueError as error:
        raise ValueError(
            "The validation data must hold both classes, because they decide whether the trained "
            f"head is kept. {error} Otherwise, pass epochs=0 or initialize=None."
        ) from error


def _log_losses(head: Head, rows: HeadRows) -> np.ndarray:
    flat = rows.flat
    with np.errstate(invalid="ignore"):  # training may have diverged
        return head_log_losses(flat.labels, head_logits(head, flat.logits, rows.features))


def _warn_of_bias(logits: np.ndarray, labels: np.ndarray, weights: np.ndarray, remedy: str) -> None:
    """Warns if mean prediction and mean label differ by more than chance, for any class."""
    classes = np.arange(1)
    if labels.ndim == 2:
        # Of a class without rows, only the other classes' shares among themselves are known.
        classes = np.flatnonzero(present_classes(labels, weights))
        labels, logits = labels[:, classes], logits[:, classes]
    outcomes, predictions = outcome_columns(labels, logits)
    total = weights.sum()
    predicted, observed = weights @ predictions / total, weights @ outcomes / total
    errors = np.sqrt(weights**2 @ (predictions * (1 - predictions))) / total
    differences = np.abs(predicted - observed)
    is_small = differences <= _SMALLEST_SHARE * np.minimum(observed, 1 - observed)
    num_errors = np.where(is_small, 0.0, differences / np.maximum(errors, 1e-300))
    # Predictions that are NaN warn too.
    column = int(np.argmax(num_errors))
    if num_errors[column] <= _STANDARD_ERRORS:
        return
    which = f" of class {classes[column]}" if len(predicted) > 1 else ""
    warn(
        f"The mean prediction{which} is {predicted[column]:.4g} and the mean label "
        f"{observed[column]:.4g} on the rows of the fit, {num_errors[column]:.3g} standard errors "
        f"apart: the model is not calibrated even on average. {remedy}",
    )
