"""Scores the candidates of `calibrate` on cross-fitted logits and weighs them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from keras import ops
from scipy import special, stats

from keras_calibration._ops.field_sums import field_sums
from keras_calibration._rows.rank_auc import rank_auc
from keras_calibration._rows.rows import Rows
from keras_calibration._solvers.repeated_rows import clusters_of
from keras_calibration._solvers.stacking import SMALLEST_WEIGHT, cross_fitted_weights, mean_weights
from keras_calibration._solvers.standard_errors import mean_and_error
from keras_calibration._solvers.total_bias import bias_of_mean
from keras_calibration.calibration.calibration_report import CandidateScore, FieldChance
from keras_calibration.calibration.candidates import IDENTITY
from keras_calibration.layers.head_logits import head_log_losses, outcome_columns
from keras_calibration.metrics.field_ece import FieldECE
from keras_calibration.metrics.field_error import noise_floors_of
from keras_calibration.metrics.field_rce import FieldRCE
from keras_calibration.scoring.multicalibration_error import SegmentErrors, error_in_folds

_NUM_DRAWS = 100
# Significance level that a change must reach. In 900 simulated tables, a level of 5 % made models
# worse if there were few rows. Squares in place of cubes (James and Stein) shrank certain changes.
_LEVEL = 0.01
# Blocks of time are too few to ask for more.
_LEVEL_OF_BLOCKS = 0.05
# Level of the test of all segments together.
_SIGNIFICANCE = 0.05
_SMALLEST_ERROR = 1e-300
# Each pair of columns takes a sort of all rows.
_MOST_COLUMNS_IN_PAIRS = 10


@dataclass(frozen=True)
class Choice:
    """The candidates that are used, with their weights and cross-fitted logits.

    Args:
        weights: Name of each candidate with a weight → its weight.
        reason: Why they were chosen, in one sentence.
        logits: Weighted means of their logits plus a bias: each fold with the weights of the other
            folds.
        bias: What the model adds to the weighted mean, (1,) or (K,), in logits.
        share: The share of the change that is used.
        evidence: The evidence for the change, in standard errors; NaN if none was asked for.
        evidence_needed: The evidence from which the model changes.
        expected_change: The change of the log loss that is expected on new rows, and its standard
            error; NaN if a candidate was requested. The best of several candidates looks better
            than it is: a part of its gain counts as chance.
        smallest_gain: If there is no evidence for a change: the gain that these rows could have
            shown, in nats per row. Otherwise 0.
    """

    weights: dict[str, float]
    reason: str
    logits: np.ndarray
    bias: np.ndarray
    share: float = 1.0
    evidence: float = float("nan")
    evidence_needed: float = float("nan")
    expected_change: tuple[float, float] = (float("nan"), float("nan"))
    smallest_gain: float = 0.0


def combined(
    fitted: Mapping[str, np.ndarray],
    rows: Rows,
    fold: np.ndarray,
    clusters: np.ndarray | None = None,
    is_forward: bool = False,
) -> Choice:
    """Weighs the candidates by `cross_fitted_weights`, or chooses no change.

    A mean of logits has another total than its parts, so a bias is added to it (`_find_bias`). The
    change by both is multiplied by the share for which there is evidence (`_choose_share`).

    Args:
        fitted: Cross-fitted logits of the candidates, the identity first.
        rows: The same rows: labels and weights.
        fold: The fold of each row: whole numbers from 0. No fold is empty.
        clusters: The block of time of each row, if folds are such blocks.
        is_forward: Whether the folds are blocks of time, scored by fits to earlier ones.
    """
    columns = np.stack(list(fitted.values()))
    by_fold = cross_fitted_weights(list(columns), rows, fold, clusters)
    mean = mean_weights(by_fold, rows, fold)
    # The logits of all rows by the weights of each fold; of these, each row keeps the ones of its
    # own fold, whose weights did not see it.
    fits = [
        np.tensordot(weights, columns, axes=1) + _find_bias(weights, columns, rows, is_forward)
        for weights in by_fold
    ]
    logits = np.stack(fits)[fold, np.arange(len(rows))]
    choice_error = _estimate_choice_error(fits, rows)
    # Evidence is the slope over its standard error, which has two sources: the rows, and the choice
    # of weights.
    slope, error = _measure_slope(logits, columns[0], rows, clusters)
    needed = _find_evidence_needed(clusters, rows)
    evidence = slope / max(float(np.hypot(error, choice_error)), _SMALLEST_ERROR)
    share = _choose_share(evidence / needed, columns[0], rows, clusters)
    # Shrinking κ of the change happens on the logits; the report scores what the model will do.
    logits = columns[0] + share * (logits - columns[0])
    change, change_error = _measure_change(logits, columns[0], rows, clusters)
    if mean[0] == 1 or share == 0 or change >= -change_error:
        return _choose_no_change(columns, rows, clusters, evidence if mean[0] < 1 else None)
    bias = _find_bias(mean, columns, rows, is_forward)
    mean = share * mean + (1 - share) * np.eye(len(mean))[0]
    weights = {name: float(part) for name, part in zip(fitted, mean, strict=True) if part > 0}
    reason = (
        "It alone predicts best, whichever fold is left out."
        if len(weights) == 1
        else "Each fold is scored with the weights of the other folds; the model uses their mean."
    )
    # The docstring of `_choose_share` has the formula: κ times the reduction (1 - κ) B is
    # chance.
    by_chance = share * (1 - share) * slope
    # The part of a gain that may be chance is itself uncertain by about its own size.
    expected_error = np.linalg.norm([change_error, share * choice_error, by_chance])
    return Choice(
        weights=weights,
        reason=reason,
        logits=logits,
        bias=share * bias,
        share=share,
        evidence=evidence,
        evidence_needed=needed,
        expected_change=(change + by_chance, float(expected_error)),
    )


def _find_bias(
    weights: np.ndarray, columns: np.ndarray, rows: Rows, is_forward: bool
) -> np.ndarray:
    """The bias of a mean of cross-fitted logits, (1,) or (K,).

    One fit alone gets no bias: it has a total of its own. On blocks of time, the mean gets the
    total of its parts, because labels of later blocks also differ by what has changed since.
    """
    if np.count_nonzero(weights) == 1:
        return np.zeros(columns[0, 0].size)
    return bias_of_mean(weights, columns, rows, is_forward)


def _measure_slope(
    logits: np.ndarray, identity: np.ndarray, rows: Rows, clusters: np.ndarray | None
) -> tuple[float, float]:
    """How fast the log loss falls with the first part of a change d, and its standard error.

    The slope `B = E[(y - p) d]` measures how far the labels ask for the change. A share κ of the
    change gains κ B, minus a part that does not depend on the labels. So B shows more surely than
    the gain whether to change: the best change in a direction gains only half of its B.
    """
    labels, probabilities = outcome_columns(rows.labels, identity)
    # `-d loss / d κ` at κ = 0, row by row: the chain rule on σ or softmax.
    slopes = ((labels - probabilities) * (logits - identity).reshape(labels.shape)).sum(axis=1)
    return mean_and_error(slopes, rows.weights, clusters, clusters_of(rows))


def _choose_share(
    ratio: float, identity: np.ndarray, rows: Rows, clusters: np.ndarray | None
) -> float:
    """The share of a change of logits to use, in [0, 1].

    Picking the best change makes its slope B too large. So this function shrinks B towards 0, its
    value for a model that is right, by `κ = 1 - 1 / ratio³`. `ratio` is the evidence for the change
    divided by the evidence needed, which chance alone exceeds in one of a hundred samples. The
    model uses the share κ of the change, and the report counts κ times the reduction of B as
    chance. With blocks of time, the model uses the whole change if there is evidence.
    """
    if ratio <= 1:
        return 0.0
    # Scores in another unit predict worse than a constant. They surely need the whole change.
    entropy = special.entr(np.average(rows.shares, axis=0, weights=rows.weights)).sum()
    is_far = np.average(head_log_losses(rows.labels, identity), weights=rows.weights) > entropy
    # Blocks of time also differ by real events, such as a level that rose late.
    share = 1.0 if is_far or clusters is not None else 1 - ratio**-3
    return 1.0 if share > 1 - SMALLEST_WEIGHT else share


def _choose_no_change(
    columns: np.ndarray, rows: Rows, clusters: np.ndarray | None, evidence: float | None
) -> Choice:
    """The model as it is, and the gain that the best of the other candidates would have needed.

    `evidence` is the evidence for a mean of candidates; None if no fold chose a change.
    """
    needed, smallest = _find_evidence_needed(clusters, rows), 0.0
    explanation = "chance explains" if clusters is None else "chance and drift explain"
    if len(columns) > 1:
        changes = [_measure_change(logits, columns[0], rows, clusters) for logits in columns[1:]]
        best = int(np.argmin([change for change, _ in changes]))
        slope, error = _measure_slope(columns[1 + best], columns[0], rows, clusters)
        if evidence is None:
            evidence = slope / max(error, _SMALLEST_ERROR)
        # The best change in a direction gains half of its slope, with about the error of the slope:
        # a slope of `needed` errors is a gain of `needed / 2` errors. A candidate that shows a gain
        # already would have to show as much more as its evidence lacks.
        shown = max(-changes[best][0], 0.0)
        lacking = max(needed - evidence, 0.0)
        smallest = max(needed / 2 * changes[best][1], shown + lacking / 2 * changes[best][1])
    return Choice(
        {IDENTITY: 1.0},
        f"No candidate gains more than {explanation}.",
        columns[0],
        np.zeros(columns[0, 0].size),
        evidence=float("nan") if evidence is None else evidence,
        evidence_needed=needed,
        expected_change=(0.0, 0.0),
        smallest_gain=smallest,
    )


def _find_evidence_needed(clusters: np.ndarray | None, rows: Rows) -> float:
    """How many standard errors a slope must exceed; more if few blocks or groups estimate these."""
    # Few clusters estimate their error badly: Student's t with one degree of freedom less than
    # clusters.
    level = _LEVEL if clusters is None else _LEVEL_OF_BLOCKS
    numbers = [len(np.unique(ids)) for ids in (clusters, clusters_of(rows)) if ids is not None]
    return float(stats.t.isf(level, max(min(numbers, default=np.inf) - 1, 1)))


def _measure_change(
    logits: np.ndarray, identity: np.ndarray, rows: Rows, clusters: np.ndarray | None
) -> tuple[float, float]:
    """The change of the mean log loss from the model as it is, and its standard error."""
    losses = head_log_losses(rows.labels, logits) - head_log_losses(rows.labels, identity)
    return mean_and_error(losses, rows.weights, clusters, clusters_of(rows))


def _estimate_choice_error(fits: Sequence[np.ndarray], rows: Rows) -> float:
    """How much the log loss varies with the choice: a jackknife over the folds."""
    # The jackknife variance, `(F - 1) / F Σ_f (loss_f - mean)²` over F folds.
    losses = [np.average(head_log_losses(rows.labels, eta), weights=rows.weights) for eta in fits]
    return float(np.sqrt((len(losses) - 1) * np.var(losses)))


def scores_of(
    rows: Rows,
    fitted: Mapping[str, np.ndarray],
    fields: Mapping[str, np.ndarray],
    seconds: Mapping[str, float],
    clusters: np.ndarray | None = None,
) -> list[CandidateScore]:
    """The figures of each candidate, the identity first; `fields` by `codes_in_folds`."""
    scores = []
    outcomes = [outcome_columns(rows.labels, logits) for logits in fitted.values()]
    errors = {
        field: _compute_field_errors(rows, outcomes, codes) for field, codes in fields.items()
    }
    identity = next(iter(fitted.values()))
    for number, (name, logits) in enumerate(fitted.items()):
        labels, probabilities = outcomes[number]
        squares = ((labels - probabilities) ** 2).sum(axis=1)
        losses = head_log_losses(rows.labels, logits)
        change, error = _measure_change(logits, identity, rows, clusters)
        ratio, ratio_error = _find_farthest_ratio(labels, probabilities, rows, clusters)
        scores.append(
            CandidateScore(
                name=name,
                log_loss=float(np.average(losses, weights=rows.weights)),
                log_loss_change=change,
                log_loss_change_error=error,
                brier=float(np.average(squares, weights=rows.weights)),
                auc=_compute_auc(labels, logits, rows.weights),
                field_ece={field: float(ece[number]) for field, (ece, _) in errors.items()},
                field_rce={field: float(rce[number]) for field, (_, rce) in errors.items()},
                calibration_ratio=ratio,
                calibration_ratio_error=ratio_error,
                seconds=seconds.get(name, 0.0),
            )
        )
    return scores


def field_chance(
    rows: Rows, logits: np.ndarray, fields: Mapping[str, np.ndarray]
) -> dict[str, FieldChance]:
    """What chance does to the field errors of some logits; `fields` by `codes_in_folds`.

    For classes, means over the classes. The mean of the standard errors is an upper bound.
    """
    metrics, chances, weights = (FieldECE(1), FieldRCE(1)), {}, rows.row_weights
    pairs = list(zip(*(c.T for c in outcome_columns(rows.labels, logits)), strict=True))
    for field, codes in fields.items():
        figures = []
        for labels, probabilities in pairs:
            sums = np.asarray(
                field_sums(labels, probabilities, weights, codes, int(codes.max()) + 1)
            )
            floors = noise_floors_of(metrics, sums, _NUM_DRAWS)
            figures.append([*floors[0], *floors[1], _estimate_field_ece_error(sums)])
        chances[field] = FieldChance(*np.mean(figures, axis=0).tolist())
    return chances


def _estimate_field_ece_error(sums: np.ndarray) -> float:
    """The standard error of `Σ_z |S_z| / n`, where S_z has the variance of the labels drawn."""
    residual = np.abs(sums[:, 0])
    variance = np.maximum(sums[:, 4], 0.0)
    deviation = np.sqrt(variance)
    # Without variance, |S| is what it is: at an infinite ratio, its mean is |S| itself.
    ratio = np.divide(residual, deviation, out=np.full_like(residual, np.inf), where=deviation > 0)
    # |S| is folded normal. With its mean m, the variance is `S² + σ² - m²`.
    mean = deviation * np.sqrt(2 / np.pi) * np.exp(-(ratio**2) / 2)
    mean += residual * special.erf(ratio / np.sqrt(2))
    return float(np.sqrt(np.sum(residual**2 + variance - mean**2)) / sums[:, 2].sum())


def segments_off(
    rows: Rows, logits: np.ndarray, fields: Collection[str], fold: np.ndarray
) -> SegmentErrors:
    """Segments of the columns of the rows with an error beyond chance; empty for classes.

    Args:
        rows: The rows, with the columns: fields, and numeric ones.
        logits: Cross-fitted logits (n,).
        fields: Names of the columns that are fields.
        fold: The fold of each row (n,).
    """
    columns = rows.features
    if logits.ndim == 2 or not columns:
        return SegmentErrors()
    scored = replace(rows, logits=special.expit(logits), groups=clusters_of(rows), fold=fold)
    numeric = [name for name in columns if name not in fields]
    max_depth = 2 if len(columns) <= _MOST_COLUMNS_IN_PAIRS else 1
    errors = error_in_folds(scored, numeric, max_depth)
    # Bonferroni: with so many segments tested, all together are wrong in one of twenty tables.
    at_most = _SIGNIFICANCE / len(errors.segments)
    return SegmentErrors(segment for segment in errors.segments if segment.p_value <= at_most)


def _compute_auc(labels: np.ndarray, logits: np.ndarray, weights: np.ndarray | None) -> float:
    """The AUC; for classes, the mean over the classes, each against the others."""
    columns = logits.reshape(len(logits), -1)
    if columns.shape[1] > 1:
        # `z_k - log Σ_{j ≠ k} exp z_j`, the logit of a class against the others, ranks rows as its
        # probability does, but without ties at 1.
        others = [np.delete(columns, number, axis=1) for number in range(columns.shape[1])]
        columns = columns - np.stack([special.logsumexp(o, axis=1) for o in others], axis=1)
    areas = [rank_auc(*pair, weights) for pair in zip(labels.T, columns.T, strict=True)]
    return float(np.mean([auc for auc in areas if not np.isnan(auc)] or np.nan))


def _find_farthest_ratio(
    labels: np.ndarray, probabilities: np.ndarray, rows: Rows, clusters: np.ndarray | None
) -> tuple[float, float]:
    """Predicted divided by observed, and its error; for classes, the ratio farthest from 1."""
    ratios, weights, groups = [], rows.weights, clusters_of(rows)
    for label, probability in zip(labels.T, probabilities.T, strict=True):
        if (observed := np.average(label, weights=weights)) > 0:
            ratio = float(np.average(probability, weights=weights) / observed)
            # The delta method: a ratio P / O varies like the mean of `p - ratio y`, divided by O.
            _, error = mean_and_error(probability - ratio * label, weights, clusters, groups)
            ratios.append((ratio, error / float(observed)))
    return max(ratios, key=lambda pair: abs(np.log(pair[0])))


def codes_in_folds(values: np.ndarray, fold: np.ndarray) -> np.ndarray:
    """The pairs of a field value and a fold (n,) as whole numbers from 0.

    Field errors are sums over these pairs. Within a fold, all rows are predicted by one fit, which
    did not see them. Over folds, errors of a value would cancel: if its labels are high in one fold
    by chance, the fits of the others predict too much.
    """
    _, codes = np.unique(values.reshape(-1), return_inverse=True)
    return np.unique(codes * (int(fold.max()) + 1) + fold, return_inverse=True)[1].astype("int32")


def _compute_field_errors(
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
    tensor = ops.convert_to_tensor(np.stack(sums))
    errors = [np.asarray(metric.error(tensor)) for metric in (FieldECE(1), FieldRCE(1))]
    return [error.reshape(len(outcomes), -1).mean(axis=1) for error in errors]
