"""calibrate: from a trained model and a development set to a calibrated model, in one call."""

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calibration.calibration.calibration_report import CalibrationReport
from keras_calibration.calibration.candidates import (
    IDENTITY,
    Candidate,
    candidates,
    check_numeric,
    vocabularies,
)
from keras_calibration.calibration.cross_fitted_scores import (
    check_both_classes_outside,
    noise_floors,
    scores_of,
    simplest_within_error,
)
from keras_calibration.layers.bias_correction import BiasCorrection
from keras_calibration.layers.head_logits import head_logits
from keras_calibration.layers.neural_calibration import NeuralCalibration
from keras_calibration.models.calibrated_model import CalibratedModel, inputs_by_name
from keras_calibration.models.development_set import read_development_set
from keras_calibration.ops.data_checks import Rows, check_rows
from keras_calibration.ops.logistic_fit import row_log_losses
from keras_calibration.ops.row_folds import fold_of_rows


def calibrate(
    model: keras.Model,
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    fields: Mapping[str, Any] | Sequence[str] = (),
    numeric: Sequence[str] = (),
    method: str = "auto",
    folds: Any = 3,
    base_output: str = "auto",
    seed: int = 0,
    verbose: Any = "auto",
) -> CalibratedModel:
    """Calibrates a trained model on a development set, and says what each way to do it gains.

    Every candidate is fitted on all folds but one and scored on that one, for each fold: every row
    is scored by a fit that did not see it. The candidate with the lowest log loss is taken, or the
    simplest one that is within one standard error of it, or a hundredth of its gain. "No change" is
    a candidate. The chosen one is then fitted to all rows. One that these rows do not allow, with
    too few clicks, is left out, and the report says so.

    Candidates, the simplest first: `"identity"`, `"bias"` (σ(l + c)), `"platt"` (σ(a l + c)),
    `"beta"`, `"ilps"` (isotonic, piecewise linear); with fields `"field_bias"` (an offset for each
    value of each field, shrunk) and, up to eight fields, `"field_ilps"` (a curve for each); with
    fields or numeric columns `"neural"` (η(l) + g(x)); with fields `"blend"`, the mean of the
    logits of the last two.

    Args:
        model: A trained Keras model with one sigmoid or logit output. It is frozen.
        x: Inputs of the development set, rows that the model was not trained on: arrays by name
            with `y`, or a finite data set of batches `(x, y)` or `(x, y, sample_weight)`.
        y: Labels in [0, 1] (n,) or (n, 1), of both classes, where `x` is arrays.
        sample_weight: Weights (n,), where `x` is arrays.
        fields: Categorical inputs to be right in every segment of: their names, or name → number of
            ids or lookup layer.
        numeric: Numeric inputs that `"neural"` may use too.
        method: `"auto"`, or the name of a candidate, which is then taken whatever the folds say.
        folds: Number of folds; `"blocks"`, five stretches of rows in their own order, for rows in
            order of time, so that a drift shows; or the number of the fold of each row (n,).
        base_output: As for `CalibratedModel`.
        seed: Seed of the folds and of what is trained.
        verbose: `"auto"` or 1 shows a progress bar over the candidates, 0 none.

    Returns:
        The calibrated model, not compiled. Its `report` is a `CalibrationReport`.

    Raises:
        ValueError: If an argument or a row is not as described; the model is then as it was.

    Warns:
        UserWarning: If the method asked for makes the cross-fitted log loss worse, by more than a
            standard error.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> inputs = {"score": keras.Input((1,), name="score")}
        >>> base = keras.Model(inputs, keras.layers.Activation("sigmoid")(inputs["score"]))
        >>> x = {"score": rng.normal(-1, 1, (2000, 1))}
        >>> y = rng.random(2000) < 1 / (1 + np.exp(-2 * x["score"][:, 0] - 1))
        >>> calibrated = calibrate(base, x, y, verbose=0)
        >>> calibrated.report.chosen
        'platt'
        >>> calibrated.predict(x, verbose=0).shape
        (2000, 1)

    Reference:
        The one-standard-error rule: Breiman et al., *Classification and Regression Trees* (1984).
    """
    development = read_development_set(x, y, sample_weight)
    was_trainable = model.trainable
    try:
        reader = CalibratedModel(model, NeuralCalibration(BiasCorrection()), base_output)
        logits = reader.base_logits(development.inputs)
        rows = check_rows(logits, development.labels, development.weights, both_classes=True)
        columns = inputs_by_name(development.inputs, reader.input)
        fields = vocabularies(fields, columns)
        check_numeric(numeric, columns)
        fold = fold_of_rows(folds, rows, seed)
        check_both_classes_outside(fold, rows)
        num_folds = int(fold.max()) + 1
        tried = _chosen_candidates(candidates(fields, numeric, num_folds, seed), method)
        features = {name: columns[name] for name in (*fields, *numeric)}
    except ValueError:
        model.trainable = was_trainable
        raise
    fits = _fit_all(tried, rows, features, fold, seed, method, verbose)
    report = _report(fits, rows, {name: columns[name] for name in fields}, num_folds, method)
    chosen = report.after
    if chosen.log_loss_change > chosen.log_loss_change_error:
        warnings.warn(
            f"{chosen.name!r} makes the log loss worse: {chosen.log_loss_change:+.6f} ± "
            f'{chosen.log_loss_change_error:.6f} nats a row, cross-fitted. method="auto" '
            "takes the best that the folds can tell, no change included.",
            stacklevel=2,
        )
    by_name = {candidate.name: candidate for candidate in tried}

    def fitted_head(name: str) -> Any:
        candidate = by_name[name]
        if candidate.parts:
            return candidate.make_head([fitted_head(part) for part in candidate.parts])
        if fits[name].head is not None:
            return fits[name].head
        head = candidate.make_head()
        if name != IDENTITY:
            head.fit(rows.logits, features, rows.labels, rows.weights)
        return head

    calibrated = CalibratedModel(model, fitted_head(chosen.name), base_output)
    calibrated.report = report
    return calibrated


@dataclass(frozen=True)
class _Fit:
    """Cross-fitted logits, or the reason why there are none; a head if one came with them."""

    logits: np.ndarray | None = None
    head: Any = None
    seconds: float = 0.0
    failure: str = ""


def _fit_all(
    tried: list[Candidate],
    rows: Rows,
    features: Mapping[str, Any],
    fold: np.ndarray,
    seed: int,
    method: str,
    verbose: Any,
) -> dict[str, _Fit]:
    """Candidate → its fit. What cannot be fitted to these rows is left out, unless asked for."""
    fits: dict[str, _Fit] = {}
    progress = keras.utils.Progbar(
        len(tried), verbose=0 if verbose in (0, False) else 1, unit_name="candidate"
    )
    for number, candidate in enumerate(tried):
        start = time.perf_counter()
        try:
            if candidate.parts:
                head, logits = None, _mean_logits([fits[part] for part in candidate.parts])
            else:
                head, logits = _cross_fitted(candidate, rows, features, fold, seed)
            fits[candidate.name] = _Fit(logits, head, time.perf_counter() - start)
        except ValueError as error:
            if candidate.name == method:
                raise
            fits[candidate.name] = _Fit(failure=str(error))
        progress.update(number + 1)
    return fits


def _report(
    fits: Mapping[str, _Fit], rows: Rows, fields: Mapping[str, Any], num_folds: int, method: str
) -> CalibrationReport:
    fitted = {name: fit.logits for name, fit in fits.items() if fit.logits is not None}
    losses = {name: row_log_losses(rows.labels, logits) for name, logits in fitted.items()}
    chosen, reason = method, "It was asked for."
    if method == "auto":
        chosen, reason = simplest_within_error(losses, rows.weights)
    seconds = {name: fit.seconds for name, fit in fits.items()}
    return CalibrationReport(
        num_rows=len(rows.logits),
        num_folds=num_folds,
        scores=scores_of(rows, fitted, losses, fields, seconds),
        chosen=chosen,
        reason=reason,
        noise_floor=noise_floors(rows, fitted[chosen], fields),
        left_out={name: fit.failure for name, fit in fits.items() if fit.failure},
    )


def _chosen_candidates(possible: list[Candidate], method: str) -> list[Candidate]:
    if method == "auto":
        return possible
    names = [candidate.name for candidate in possible]
    if method not in names:
        raise ValueError(
            f'Argument `method` must be "auto" or one of {names} with these fields and numeric '
            f"columns. Received: method={method!r}."
        )
    wanted = {IDENTITY, method, *possible[names.index(method)].parts}
    return [candidate for candidate in possible if candidate.name in wanted]


def _mean_logits(parts: list[_Fit]) -> np.ndarray:
    logits = [part.logits for part in parts if part.logits is not None]
    if len(logits) < len(parts):
        raise ValueError(next(part.failure for part in parts if part.failure))
    return np.mean(logits, axis=0)


def _cross_fitted(
    candidate: Candidate,
    rows: Rows,
    features: Mapping[str, Any],
    fold: np.ndarray,
    seed: int,
) -> tuple[Any, np.ndarray]:
    """A head fitted to all rows, if that came with it, and the logits of fits without each fold."""
    if candidate.name == IDENTITY:
        return None, rows.logits
    if candidate.name == "neural":
        # It cross-fits on these folds itself, to know for how long to train.
        head = candidate.make_head()
        summary = head.fit(rows.logits, features, rows.labels, rows.weights, folds=fold, seed=seed)
        if not len(summary.cross_fitted_logits):
            raise ValueError("There are not ten rows of each class for every fold.")
        return head, summary.cross_fitted_logits
    calibrated = np.empty(len(rows.logits))
    for number in range(fold.max() + 1):
        fitted_on, scored = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
        head = candidate.make_head()
        weights = None if rows.weights is None else rows.weights[fitted_on]
        head.fit(
            rows.logits[fitted_on], _some(features, fitted_on), rows.labels[fitted_on], weights
        )
        calibrated[scored] = head_logits(head, rows.logits[scored], _some(features, scored))
    return None, calibrated


def _some(features: Mapping[str, Any], rows: np.ndarray) -> dict[str, Any]:
    return {
        name: ops.take(column, rows, axis=0) if ops.is_tensor(column) else column[rows]
        for name, column in features.items()
    }
