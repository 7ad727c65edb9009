"""Totals: predicted against observed, after a fit, and of scores that are calibrated already."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from calibration_records._warn import warn
from keras_calibration._rows.rows import Rows
from keras_calibration._rows.weights import are_counts
from keras_calibration.layers.head_logits import outcome_columns

# A total is far off if it is off by this many standard errors and by this share of the smaller
# class; it is right within this many errors or this share.
_FAR_ERRORS, _FAR_SHARE = 4.0, 0.2
_RIGHT_ERRORS, _RIGHT_SHARE = 3.0, 0.05
# After a fit, means differ if they do by more than this many errors and this share.
_BIAS_ERRORS, _BIAS_SHARE = 4.0, 0.01
# Scores that this head has calibrated have moved by at least this share of its correction.
_MOVED_SHARE = 0.25


class Totals(NamedTuple):
    """Means over rows, (C,): one number for a binary model, else one per class.

    Args:
        predicted: Mean predictions.
        observed: Mean labels.
        errors: Standard errors of their difference, if the predictions are right.
    """

    predicted: np.ndarray
    observed: np.ndarray
    errors: np.ndarray

    @property
    def differences(self) -> np.ndarray:
        """How far predicted and observed means are apart."""
        return np.abs(self.predicted - self.observed)

    def share(self, part: float) -> np.ndarray:
        """A part of the rate of each class, or of its complement if that is smaller."""
        return part * np.minimum(self.observed, 1 - self.observed)


def totals_of(logits: np.ndarray, rows: Rows) -> Totals:
    """The mean predictions and mean labels of rows with these calibrated logits."""
    outcomes, predictions = outcome_columns(rows.labels, logits)
    weights = rows.row_weights
    # The variance of Σ w y is Σ w² p (1 - p) for independent rows. A count w stands for w rows,
    # each with the variance p (1 - p).
    squares = weights if are_counts(weights) else weights**2
    errors = np.sqrt(squares @ (predictions * (1 - predictions))) / weights.sum()
    predicted, observed = (
        np.average(columns, axis=0, weights=weights) for columns in (predictions, outcomes)
    )
    return Totals(predicted, observed, errors)


def warn_of_bias(totals: Totals) -> None:
    """Warns if mean prediction and mean label differ by more than chance, for any class."""
    is_small = totals.differences <= totals.share(_BIAS_SHARE)
    num_errors = np.where(is_small, 0.0, totals.differences / np.maximum(totals.errors, 1e-300))
    # NaN is the largest number for `argmax`, and not below any limit: NaN gives a warning too.
    column = int(np.argmax(num_errors))
    if num_errors[column] <= _BIAS_ERRORS:
        return
    which = f" of class {column}" if len(totals.predicted) > 1 else ""
    warn(
        f"The mean prediction{which} is {totals.predicted[column]:.4g} and the mean label "
        f"{totals.observed[column]:.4g} on the rows of the fit, {num_errors[column]:.3g} standard "
        "errors apart: the model is not calibrated even on average. Either the head cannot shift "
        "the mean (TemperatureScaling cannot), or its fit did not converge. Use a head that shifts "
        "the logits, such as PlattScaling, or VectorScaling for classes."
    )


def warn_of_calibrated_scores(
    rows: Rows, calibrated: np.ndarray, before: Mapping[str, Any] | None
) -> None:
    """Warns if a head is right in total without its correction, and far off with it.

    The scores may then be probabilities that this head has calibrated, which it corrects once more.

    Args:
        rows: The rows, with the scores that the head gets as logits.
        calibrated: The logits after the head.
        before: The distribution of the scores of the last fit, from `describe_logits`, if known.
            Calibrated scores differ from it in the direction of the correction. If they do not, the
            rates have changed.
    """
    corrected, alone = (totals_of(logits, rows) for logits in (calibrated, rows.logits))
    # Bernstein's inequality adds a term for the largest row to the variance: a normal error would
    # be too small where few positives are expected.
    one_row = rows.row_weights.max() / rows.row_weights.sum()
    errors = np.sqrt(corrected.errors**2 + corrected.differences * one_row / 3)
    # Chance must not explain the difference, and it must be large enough to matter.
    far = np.maximum(_FAR_ERRORS * errors, alone.share(_FAR_SHARE))
    right = np.maximum(_RIGHT_ERRORS * alone.errors, alone.share(_RIGHT_SHARE))
    is_right_alone = bool((alone.differences <= right).all())
    if not (is_right_alone and (corrected.differences > far).any()):
        return
    if before and rows.logits.ndim == 1 and before["num_rows"]:
        move = np.average(calibrated - rows.logits, weights=rows.weights)
        # The head moves the mean logit by `move`; the scores have moved by `moved` since its fit.
        # If these are calibrated scores, both have the same sign and a similar size.
        moved = np.average(rows.logits, weights=rows.weights) - before["mean"]
        if moved * move <= _MOVED_SHARE * move**2:
            return
    worst = int(np.argmax(corrected.differences))
    warn(
        f"The head as it was predicts a mean of {corrected.predicted[worst]:.4g} for these rows, "
        f"where {alone.observed[worst]:.4g} is observed. The scores that it gets are right without "
        f"it: their mean is {alone.predicted[worst]:.4g}. They seem to be calibrated already, such "
        "as a served `probability` in place of the `uncalibrated_probability`: a head that is "
        "fitted to them leaves the scores of the base model uncorrected. Pass what the base model "
        "predicts. If you did, it needs no correction any more."
    )
