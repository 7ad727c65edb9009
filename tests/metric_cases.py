"""Every metric with its reference in NumPy, for many rows, few and hostile ones."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass

import keras
import numpy as np

import metric_references as references
from backends import digits
from keras_calibration import metrics

# Base classes, which a user does not make.
ABSTRACT = {"AdditiveMetric", "CrossFittedMetric", "FieldError"}
MODES = ({"num_folds": 1}, {}, {"num_folds": 5, "seed": 7}, {"bias_fraction": 0.3, "seed": 3})


@dataclass(frozen=True)
class Case:
    """A metric and its reference."""

    make: Callable  # takes `from_logits`, unless it is a metric of regression
    reference: Callable  # from `Rows` to the result, or to the result and its tolerance
    takes: str = "one"  # what rows hold: one probability, "classes" or "real" numbers
    tolerance: float = 1e-12  # relative and absolute, in float64
    on_few: float = 1e-9  # the same on few rows, of which a fit may go far out
    has_field: bool = False
    # On hostile rows: relative to the result and the scale, and where NaN is a result too.
    on_hostile: float = 1e-9
    scale: Callable = lambda rows: 0.0
    may_be_nan: Callable = lambda rows: False


def public_metrics():
    """The names of all metrics that a user makes."""
    members = inspect.getmembers(metrics, inspect.isclass)
    return {n for n, kind in members if issubclass(kind, keras.metrics.Metric)} - ABSTRACT


def scored_metrics():
    """Metrics that `score` computes for arrays and for logs."""
    return [
        metrics.LogLoss(),
        metrics.NormalizedEntropy(),
        metrics.CalibrationRatio(),
        metrics.CalibratedLogLoss(),
        metrics.CalibratedLogLoss(num_folds=3, seed=5, name="of_three"),
        metrics.CalibratedLogLoss(bias_fraction=0.3, name="held_out"),
    ]


def edged_error(rows, num_bins):
    dtype = "float64" if rows.from_logits else rows.dtype
    edges = (np.arange(num_bins + 1) / num_bins).astype(dtype).astype(float)
    return references.equal_width_error(rows, num_bins, edges)


def area(rows):
    auc, in_one_bin = references.auc(rows)
    if rows.from_logits and references.share_of_pairs_beyond(rows) > 1e-3:
        auc = np.nan
    return auc, in_one_bin + digits(1e-9)


def mean_of_sums(rows):
    """What residuals are differences of."""
    total = rows.weights.sum()
    return (rows.weights * (rows.labels + rows.probabilities)).sum() / total if total else 0.0


def is_far(rows):
    """The documentation promises no result beyond ±88, nor where all predictions are 0 or 1."""
    return bool((np.abs(rows.logits) >= 80).any())


def cross_fitted(kind, reference, **more):
    return {
        f"{kind.__name__} {mode}": Case(
            functools.partial(kind, **mode), functools.partial(reference, **mode), **more
        )
        for mode in MODES
    }


def of_field(kind, **named):
    reference = functools.partial(references.field_error, num_values=3, **named)
    times = 1 if kind is metrics.FieldECE else 100
    return Case(
        functools.partial(kind, 3, **named),
        reference,
        has_field=True,
        scale=lambda rows: times * mean_of_sums(rows),
    )


CASES = {
    "LogLoss": Case(metrics.LogLoss, references.log_loss),
    "NormalizedEntropy": Case(metrics.NormalizedEntropy, references.normalized_entropy),
    "CalibrationRatio": Case(metrics.CalibrationRatio, references.calibration_ratio),
    "LogitAUC": Case(metrics.LogitAUC, area),
    **{
        f"ExpectedCalibrationError {num}": Case(
            functools.partial(metrics.ExpectedCalibrationError, num),
            functools.partial(edged_error, num_bins=num),
            tolerance=1e-11,
            scale=mean_of_sums,
        )
        for num in (1, 10, 100)
    },
    "FieldECE": of_field(metrics.FieldECE),
    "FieldRCE": of_field(metrics.FieldRCE, epsilon=0.01),
    "FieldRCE 0.5": of_field(metrics.FieldRCE, epsilon=0.5),
    **cross_fitted(
        metrics.CalibratedLogLoss,
        references.calibrated_log_loss,
        tolerance=1e-7,
        on_few=1e-6,
        on_hostile=3e-6,
        may_be_nan=is_far,
    ),
    **cross_fitted(
        metrics.CalibratedCategoricalLogLoss,
        references.calibrated_class_loss,
        takes="classes",
        tolerance=1e-8,
        on_few=1e-5,
        on_hostile=1e-6,
        scale=lambda rows: 0.02,
    ),
    **cross_fitted(
        metrics.CalibratedQuadraticLoss,
        references.calibrated_quadratic_loss,
        takes="real",
        on_few=1e-7,
        scale=lambda rows: np.square([rows.labels, rows.predictions]).max(initial=0),
    ),
}
