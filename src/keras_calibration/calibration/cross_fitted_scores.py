"""Scores the candidates of `calibrate` on cross-fitted logits and chooses one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from keras import ops

from keras_calibration._typing import Features, Tensor
from keras_calibration.calibration.calibration_report import CandidateScore
from keras_calibration.metrics.field_ece import FieldECE
from keras_calibration.metrics.field_rce import FieldRCE
from keras_calibration.metrics.logit_auc import LogitAUC
from keras_calibration.models.development_set import as_numpy
from keras_calibration.ops.field_sums import field_sums
from keras_calibration.solvers.data_checks import Rows
from keras_calibration.solvers.logistic_fit import sigmoid
from keras_calibration.solvers.standard_errors import mean_and_error

_NUM_DRAWS = 100
_SHARE_OF_GAIN = 0.01


def simplest_within_error(
    losses: Mapping[str, np.ndarray],
    weights: np.ndarray | None,
    clusters: np.ndarray | None = None,
) -> tuple[str, str]:
    """The simplest candidate within one standard error of the best, and why.

    Also accepted is a candidate within a hundredth of the best one's gain: between two nearly equal
    calibrations, even a negligible difference can be significant.

    Example:
        >>> losses = {"a": np.array([1.0, 1.2]), "b": np.array([0.9, 1.2]), "c": np.zeros(2)}
        >>> simplest_within_error(losses, None)[0]
        'c'
    """
    best = min(losses, key=lambda name: float(np.average(losses[name], weights=weights)))
    changes = {
        name: mean_and_error(loss - losses[best], weights, clusters)
        for name, loss in losses.items()
    }
    first_change, _ = next(iter(changes.values()))
    name = next(
        name
        for name, (change, error) in changes.items()
        if change <= max(error, _SHARE_OF_GAIN * first_change)
    )
    change, error = changes[name]
    if name == best:
        return name, (
            "It has the lowest log loss, and no simpler candidate is within one standard "
            "error of it."
        )
    return name, (
        f"It is the simplest candidate that is not clearly worse than {best!r}, which has the "
        f"lowest log loss (lower by {change:.6f} ± {error:.6f})."
    )


def scores_of(
    rows: Rows,
    fitted: Mapping[str, np.ndarray],
    losses: Mapping[str, np.ndarray],
    fields: Features,
    seconds: Mapping[str, float],
    clusters: np.ndarray | None = None,
) -> tuple[CandidateScore, ...]:
    """The figures of each candidate."""
    identity = next(iter(fitted))
    probabilities = {name: sigmoid(eta) for name, eta in fitted.items()}
    squares = {name: (rows.labels - each) ** 2 for name, each in probabilities.items()}
    errors = {
        field: _errors_by_candidate(rows, list(probabilities.values()), values)
        for field, values in fields.items()
    }
    scores = []
    for place, (name, eta) in enumerate(fitted.items()):
        auc = LogitAUC(from_logits=True)
        auc.update_state(rows.labels, eta, rows.weights)
        log_loss_change, log_loss_error = mean_and_error(
            losses[name] - losses[identity], rows.weights, clusters
        )
        _, brier_error = mean_and_error(squares[name] - squares[identity], rows.weights, clusters)
        scores.append(
            CandidateScore(
                name=name,
                log_loss=float(np.average(losses[name], weights=rows.weights)),
                log_loss_change=log_loss_change,
                log_loss_change_error=log_loss_error,
                brier=float(np.average(squares[name], weights=rows.weights)),
                brier_change_error=brier_error,
                auc=float(auc.result()),
                field_ece={field: float(ece[place]) for field, (ece, _) in errors.items()},
                field_rce={field: float(rce[place]) for field, (_, rce) in errors.items()},
                calibration_ratio=float(
                    np.average(probabilities[name], weights=rows.weights)
                    / np.average(rows.labels, weights=rows.weights)
                ),
                seconds=seconds[name],
            )
        )
    return tuple(scores)


def noise_floors(
    rows: Rows, logits: np.ndarray, fields: Features
) -> dict[str, tuple[float, float, float, float]]:
    """Mean and standard deviation of Field-ECE and Field-RCE if the probabilities were true."""
    floors = {}
    for field, values in fields.items():
        ids, num_values = _ids(values)
        ece, rce = FieldECE(num_values), FieldRCE(num_values)
        for metric in (ece, rce):
            metric.update_state(rows.labels, sigmoid(logits), rows.weights, field=ids)
        floors[field] = (*ece.noise_floor(_NUM_DRAWS), *rce.noise_floor(_NUM_DRAWS))
    return floors


def _errors_by_candidate(
    rows: Rows, probabilities: Sequence[np.ndarray], values: Tensor
) -> tuple[np.ndarray, np.ndarray]:
    """Field-ECE and Field-RCE of all candidates, each (candidates,)."""
    ids, num_values = _ids(values)
    sums = ops.stack(
        [field_sums(rows.labels, each, rows.row_weights, ids, num_values) for each in probabilities]
    )
    # The errors depend on the sums alone, not on the size of a metric's own state.
    ece, rce = (metric.error(sums) for metric in (FieldECE(1), FieldRCE(1)))
    return ops.convert_to_numpy(ece), ops.convert_to_numpy(rce)


def _ids(values: Tensor) -> tuple[np.ndarray, int]:
    distinct, ids = np.unique(as_numpy(values).reshape(-1), return_inverse=True)
    return ids.astype("int32"), len(distinct)
