"""Scores the candidates of `calibrate` on cross-fitted logits and weighs them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from keras import ops
from scipy import special, stats

from keras_calibration._ops.field_sums import field_sums
from keras_calibration._rows.columns import as_array
from keras_calibration._rows.rows import Rows
from keras_calibration._rows.weights import are_counts
from keras_calibration._solvers.rank_auc import rank_auc
from keras_calibration._solvers.stacking import SMALLEST_WEIGHT, cross_fitted_weights, mean_weights
from keras_calibration._solvers.standard_errors import mean_and_error
from keras_calibration._typing import Tensor
from keras_calibration.calibration.calibration_report import CandidateScore
from keras_calibration.calibration.candidates import IDENTITY
from keras_calibration.layers.head_logits import head_log_losses, outcome_columns
from keras_calibration.metrics.field_ece import FieldECE
from keras_calibration.metrics.field_error import noise_floors_of
from keras_calibration.metrics.field_rce import FieldRCE
from keras_calibration.scoring.multicalibration_error import SegmentErrors, multicalibration_error

_NUM_DRAWS = 100
# Significance level that a change must reach. In 900 simulated tables, a level of 5 % made models
# worse if there were few rows. Squares in place of cubes (James and Stein) shrank certain changes.
_LEVEL = 0.01
# Blocks of time are too few to ask for more.
_LEVEL_OF_BLOCKS = 0.05
# Level of the test of all segments together.
_SIGNIFICANCE = 0.05
# Each pair of columns takes a sort of all rows.
_MOST_COLUMNS_IN_PAIRS = 10


@dataclass(frozen=True)
class Choice:
    """The candidates that are used, with their weights and cross-fitted logits.

    Args:
        weights: Name of each candidate with a weight → its weight.
        reason: Why they were chosen, in one sentence.
        logits: Weighted means of their logits: each fold with the weights of the other folds.
        error: The uncertainty of the choice, as a standard error of the log loss.
        by_chance: The part of the gain of these logits that counts as chance, in nats per row.
        smallest_gain: If there is no evidence for a change: the gain that these rows could have
            shown, in nats per row. Otherwise 0.
    """

    weights: dict[str, float]
    reason: str
    logits: np.ndarray
    error: float = 0.0
    by_chance: float = 0.0
    smallest_gain: float = 0.0


def combined(
    fitted: Mapping[str, np.ndarray],
    rows: Rows,
    fold: np.ndarray,
    clusters: np.ndarray | None = None,
) -> Choice:
    """Weighs the candidates by `cross_fitted_weights`, or chooses no change.

    The weights are multiplied by the share of the change for which there is evidence
    (`_share_of_change`). The model as it is gets the rest.

    Args:
        fitted: Cross-fitted logits of the candidates, the identity first.
        rows: The same rows: labels and weights.
        fold: The fold of each row: whole numbers from 0. No fold is empty.
        clusters: Which rows belong together.
    """
    columns = np.stack(list(fitted.values()))
    by_fold = cross_fitted_weights(list(columns), rows, fold, clusters)
    mean = mean_weights(by_fold, rows, fold)
    logits = np.einsum("nm,mn...->n...", by_fold[fold], columns)
    error = _choice_error(columns, rows, by_fold)
    share, by_chance = _share_of_change(logits, columns[0], rows, clusters, error)
    if mean[0] == 1 or share == 0:
        return _no_change(columns, rows, clusters)
    mean = share * mean + (1 - share) * np.eye(len(mean))[0]
    weights = {name: float(part) for name, part in zip(fitted, mean, strict=True) if part > 0}
    reason = "Each fold is scored with the weights of the other folds; the model uses their mean."
    if len(weights) == 1:
        reason = "It alone predicts best, whichever fold is left out."
    logits = columns[0] + share * (logits - columns[0])
    # The part of a gain that is chance is itself uncertain.
    return Choice(weights, reason, logits, float(np.hypot(share * error, by_chance)), by_chance)


def _share_of_change(
    logits: np.ndarray,
    identity: np.ndarray,
    rows: Rows,
    clusters: np.ndarray | None,
    choice_error: float,
) -> tuple[float, float]:
    """The share of a change of logits to use, in [0, 1], and the part of its gain that is chance.

    The gain of a share κ of the change d depends on the labels only through `κ B`, where
    `B = E[(y - p) d]`. The change was chosen for a large B, so B is too large by chance. It is
    shrunk towards 0, its value for a model that is right, by the factor `κ = 1 - (c s / B)³`.
    Chance alone exceeds c s in one of a hundred samples. The same share κ of the change is used,
    and κ times the reduction of B counts as chance. The gain of a small change is half of B, and so
    is its error. With blocks of time, the whole change is used if B exceeds what chance exceeds in
    one of twenty samples.

    Args:
        logits: The cross-fitted logits after the change.
        identity: Those before it.
        rows: Labels and weights.
        clusters: Which rows belong together, such as blocks of time.
        choice_error: The standard error of the gain by the choice.
    """
    labels, probabilities = outcome_columns(rows.labels, identity)
    slopes = ((labels - probabilities) * (logits - identity).reshape(labels.shape)).sum(axis=1)
    slope, error = mean_and_error(slopes, rows.weights, clusters)
    bound = _errors_of_evidence(clusters) * float(np.hypot(error, choice_error))
    if slope <= bound or _change_of(logits, identity, rows, None)[0] >= 0:
        return 0.0, 0.0
    # Scores in another unit predict worse than a constant. They surely need the whole change.
    entropy = special.entr(np.average(rows.shares, axis=0, weights=rows.weights)).sum()
    is_far = np.average(head_log_losses(rows.labels, identity), weights=rows.weights) > entropy
    # Blocks of time also differ by real events, such as a level that rose late.
    share = 1.0 if is_far or clusters is not None else 1 - (bound / slope) ** 3
    by_chance = share * (1 - share) * slope
    return (1.0 if share > 1 - SMALLEST_WEIGHT else share), by_chance


def _no_change(columns: np.ndarray, rows: Rows, clusters: np.ndarray | None) -> Choice:
    """The model as it is, and the gain that the best of the other candidates would have needed."""
    changes = [_change_of(logits, columns[0], rows, clusters) for logits in columns[1:]]
    # The gain of a small change is half of its slope, which must exceed so many errors.
    smallest = _errors_of_evidence(clusters) / 2 * min(changes)[1] if changes else 0.0
    causes = "chance explains" if clusters is None else "chance and drift explain"
    reason = f"No candidate gains more than {causes}."
    return Choice({IDENTITY: 1.0}, reason, columns[0], smallest_gain=smallest)


def _errors_of_evidence(clusters: np.ndarray | None) -> float:
    """How many standard errors a slope must exceed; more if few blocks estimate the error."""
    if clusters is None:
        return float(stats.norm.isf(_LEVEL))
    return float(stats.t.isf(_LEVEL_OF_BLOCKS, max(len(np.unique(clusters)) - 1, 1)))


def _change_of(
    logits: np.ndarray, identity: np.ndarray, rows: Rows, clusters: np.ndarray | None
) -> tuple[float, float]:
    """The change of the mean log loss from the model as it is, and its standard error."""
    losses = head_log_losses(rows.labels, logits) - head_log_losses(rows.labels, identity)
    return mean_and_error(losses, rows.weights, clusters)


def _choice_error(columns: np.ndarray, rows: Rows, fold_weights: np.ndarray) -> float:
    """How much the log loss varies with the choice: a jackknife over the folds."""
    logits = (np.tensordot(weights, columns, axes=1) for weights in fold_weights)
    losses = [np.average(head_log_losses(rows.labels, eta), weights=rows.weights) for eta in logits]
    return float(np.sqrt((len(losses) - 1) * np.var(losses)))


def scores_of(
    rows: Rows,
    fitted: Mapping[str, np.ndarray],
    fields: Mapping[str, np.ndarray],
    seconds: Mapping[str, float],
    clusters: np.ndarray | None = None,
) -> list[CandidateScore]:
    """The figures of each candidate, the identity first; `fields` by `codes_of`."""
    scores = []
    outcomes = [outcome_columns(rows.labels, logits) for logits in fitted.values()]
    errors = {field: _field_errors(rows, outcomes, codes) for field, codes in fields.items()}
    identity = next(iter(fitted.values()))
    for number, (name, logits) in enumerate(fitted.items()):
        labels, probabilities = outcomes[number]
        squares = ((labels - probabilities) ** 2).sum(axis=1)
        losses = head_log_losses(rows.labels, logits)
        change, error = _change_of(logits, identity, rows, clusters)
        scores.append(
            CandidateScore(
                name=name,
                log_loss=float(np.average(losses, weights=rows.weights)),
                log_loss_change=change,
                log_loss_change_error=error,
                brier=float(np.average(squares, weights=rows.weights)),
                auc=_auc(labels, logits, rows.weights),
                field_ece={field: float(ece[number]) for field, (ece, _) in errors.items()},
                field_rce={field: float(rce[number]) for field, (_, rce) in errors.items()},
                calibration_ratio=_farthest_ratio(labels, probabilities, rows.weights),
                seconds=seconds.get(name, 0.0),
            )
        )
    return scores


def noise_floors(
    rows: Rows, logits: np.ndarray, fields: Mapping[str, np.ndarray]
) -> dict[str, tuple[float, float, float, float]]:
    """Mean and standard deviation of Field-ECE and Field-RCE if the probabilities were true.

    For classes, means over the classes. The mean of the standard deviations is an upper bound.
    """
    metrics, floors, weights = (FieldECE(1), FieldRCE(1)), {}, rows.row_weights
    pairs = list(zip(*(c.T for c in outcome_columns(rows.labels, logits)), strict=True))
    for field, codes in fields.items():
        number = int(codes.max()) + 1
        sums = (field_sums(y, p, weights, codes, number) for y, p in pairs)
        by_class = [noise_floors_of(metrics, np.asarray(s), _NUM_DRAWS) for s in sums]
        floors[field] = tuple(np.mean(by_class, axis=0).reshape(-1).tolist())
    return floors


def segments_off(rows: Rows, logits: np.ndarray, fields: Collection[str]) -> SegmentErrors:
    """The segments in which the probabilities are off beyond chance, the most significant first."""
    columns = rows.features
    if not columns or logits.ndim == 2:
        return SegmentErrors()
    errors = multicalibration_error(
        rows.labels,
        special.expit(logits),
        columns,
        rows.weights,
        numeric=[name for name in columns if name not in fields],
        max_depth=2 if len(columns) <= _MOST_COLUMNS_IN_PAIRS else 1,
        weights_are="counts" if are_counts(rows.weights) else "importance",
    )
    at_most = _SIGNIFICANCE / len(errors.segments)
    return SegmentErrors(segment for segment in errors.segments if segment.p_value <= at_most)


def _auc(labels: np.ndarray, logits: np.ndarray, weights: np.ndarray | None) -> float:
    """The AUC; for classes, the mean over the classes, each against the others."""
    columns = logits.reshape(len(logits), -1)
    if columns.shape[1] > 1:
        # The logit of a class against the others ranks as its probability, without ties at 1.
        others = [np.delete(columns, number, axis=1) for number in range(columns.shape[1])]
        columns = columns - np.stack([special.logsumexp(o, axis=1) for o in others], axis=1)
    areas = [rank_auc(*pair, weights) for pair in zip(labels.T, columns.T, strict=True)]
    return float(np.mean([auc for auc in areas if not np.isnan(auc)] or np.nan))


def _farthest_ratio(
    labels: np.ndarray, probabilities: np.ndarray, weights: np.ndarray | None
) -> float:
    """Predicted divided by observed; for classes, the ratio farthest from 1."""
    predicted, observed = (
        np.average(values, axis=0, weights=weights) for values in (probabilities, labels)
    )
    ratios = predicted[observed > 0] / observed[observed > 0]
    return float(ratios[np.argmax(np.abs(np.log(ratios)))])


def codes_of(values: Tensor) -> np.ndarray:
    """The values of a field as whole numbers from 0, in their order."""
    _, codes = np.unique(as_array(values).reshape(-1), return_inverse=True)
    return codes.astype("int32")


def _field_errors(
    rows: Rows, outcomes: Sequence[tuple[np.ndarray, np.ndarray]], codes: np.ndarray
) -> list[np.ndarray]:
    """Field-ECE and Field-RCE of each candidate (candidates,); means over classes.

    `outcomes` are the `outcome_columns` of each candidate.
    """
    weights, sums = rows.row_weights, []
    for pair in outcomes:
        for labels, probabilities in zip(*(part.T for part in pair), strict=True):
            columns = weights * (labels - probabilities), weights * labels, weights
            sums.append(np.stack([np.bincount(codes, column) for column in columns], axis=1))
    # The errors depend on the sums alone, so a metric for one value is enough.
    tensor, metrics = ops.convert_to_tensor(np.stack(sums)), (FieldECE(1), FieldRCE(1))
    errors = [np.asarray(metric.error(tensor)) for metric in metrics]
    return [error.reshape(len(outcomes), -1).mean(axis=1) for error in errors]
