"""Scores the candidates of `calibrate` on cross-fitted logits and chooses one."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from keras_calibration._typing import Features, Tensor
from keras_calibration.calibration.calibration_report import CandidateScore
from keras_calibration.metrics.field_ece import FieldECE
from keras_calibration.metrics.field_rce import FieldRCE
from keras_calibration.metrics.logit_auc import LogitAUC
from keras_calibration.models.development_set import as_numpy
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
    squares = {name: (rows.labels - sigmoid(eta)) ** 2 for name, eta in fitted.items()}
    ids = {name: _ids(values) for name, values in fields.items()}
    scores = []
    for name, eta in fitted.items():
        auc = LogitAUC(from_logits=True)
        auc.update_state(rows.labels, eta, rows.weights)
        probabilities = sigmoid(eta)
        by_field = {field: _field_errors(rows, probabilities, *ids[field]) for field in ids}
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
                field_ece={f: float(ece.result()) for f, (ece, _) in by_field.items()},
                field_rce={f: float(rce.result()) for f, (_, rce) in by_field.items()},
                calibration_ratio=float(
                    np.average(probabilities, weights=rows.weights)
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
        ece, rce = _field_errors(rows, sigmoid(logits), *_ids(values))
        floors[field] = (*ece.noise_floor(_NUM_DRAWS), *rce.noise_floor(_NUM_DRAWS))
    return floors


def _field_errors(
    rows: Rows, probabilities: np.ndarray, ids: np.ndarray, num_values: int
) -> tuple[FieldECE, FieldRCE]:
    metrics = FieldECE(num_values), FieldRCE(num_values)
    for metric in metrics:
        metric.update_state(rows.labels, probabilities, rows.weights, field=ids)
    return metrics


def _ids(values: Tensor) -> tuple[np.ndarray, int]:
    distinct, ids = np.unique(as_numpy(values).reshape(-1), return_inverse=True)
    return ids.astype("int32"), len(distinct)
