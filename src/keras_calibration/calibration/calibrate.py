"""calibrate: turns a trained model and a development set into a calibrated model, in one call."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import keras
import numpy as np
from numpy.typing import ArrayLike

from calibration_records._columns import names_of, suggestion
from calibration_records._progress import ProgressBar
from calibration_records._warn import warn
from keras_calibration._graph.base_logits import BaseLogits, check_base_model, trainable_flags_kept
from keras_calibration._graph.head_in_model import LOGIT_OUTPUT, find_heads
from keras_calibration._graph.logit_model import LogitModel
from keras_calibration._graph.outputs import (
    num_logits,
    output_name,
    output_names,
    output_position,
    symbolic_input,
    symbolic_output,
)
from keras_calibration._keras import throwaway_layers
from keras_calibration._rows.inputs import inputs_by_name, named_inputs
from keras_calibration._rows.reader import Reader
from keras_calibration._rows.rows import Rows
from keras_calibration._rows.times import duration
from keras_calibration._solvers.row_folds import Folds, folds_of
from keras_calibration._solvers.row_order import canonical_order
from keras_calibration._typing import Data, Inputs, Tensor
from keras_calibration.calibration.calibration_report import CalibrationReport, CandidateScore
from keras_calibration.calibration.candidate_fits import (
    CandidateFit,
    Race,
    num_fits_of,
)
from keras_calibration.calibration.candidates import (
    DEFAULT,
    IDENTITY,
    QUICK,
    THOROUGH,
    Candidate,
    candidates,
    check_numeric,
    vocabularies,
)
from keras_calibration.calibration.cross_fitted_scores import (
    Choice,
    combined,
    noise_floors,
    scores_of,
    segments_off,
    with_errors,
)
from keras_calibration.calibration.label_columns import warn_of_label_columns
from keras_calibration.calibration.repeated_rows import distinct_rows
from keras_calibration.calibration.splits import Splits, default_folds, splits_of
from keras_calibration.layers.blended_head import BlendedHead
from keras_calibration.layers.field_ids import Fields, id_names
from keras_calibration.layers.head import Head
from keras_calibration.layers.head_logits import head_log_losses
from keras_calibration.models.calibrated_model import CalibratedModel

BLEND = "blend"
_EFFORTS = (QUICK, DEFAULT, THOROUGH)
# Five do not choose better than three, but the members of a network learn from more rows.
_NUM_FOLDS = {QUICK: 3, DEFAULT: 3, THOROUGH: 5}
# Of the network, where it makes its own folds.
_NUM_MEMBERS = 3


def calibrate(
    model: keras.Model,
    x: Data,
    y: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
    *,
    fields: Fields | Sequence[str] = (),
    numeric: Sequence[str] = (),
    methods: str | Sequence[str] = "default",
    folds: Folds | None = None,
    time: ArrayLike | str | None = None,
    gap: float | datetime.timedelta = 0.0,
    base_output: str = "auto",
    calibrated_output: str | int | None = None,
    steps_per_epoch: int | None = None,
    weights_are: str = "importance",
    seed: int = 0,
    verbose: int | str = "auto",
) -> CalibratedModel:
    """Calibrates a trained model on a development set, and reports how each method compares.

    Every candidate is cross-fitted: for each fold, it is fitted on the other folds and scored on
    this one, so that every row is scored by a fit that did not see it. The result is a weighted
    mean of the candidates' logits (`report.weights`). For each fold, the weights are found on the
    other folds. Each is the mean of two: that in the mean that predicts these rows best, and the
    probability that the candidate alone predicts best. "No change" is a candidate too, and if it is
    more probable than all others together, it has the weight 1. The report scores the fold with
    these weights; the model gets their mean over the folds. The candidates with a weight are then
    fitted to all rows, and a bias on top makes the mean prediction that of the labels; the report
    scores each fold with the bias of the others. There is no bias with blocks of time, whose levels
    differ, nor for classes. Candidates that gain nothing, or need more rows, are left out; the
    report lists them.

    The candidates, simplest first:

    - `"identity"`: no change;
    - `"bias"`: σ(l + c);
    - `"temperature"`: σ(a l);
    - `"platt"`: σ(a l + c);
    - `"beta"`: one slope for low and one for high logits;
    - `"ilps"`: non-decreasing and piecewise linear;
    - `"field_bias"`, with fields: one offset per field value, shrunk;
    - `"field_ilps"`, with one to eight fields: one curve per field value, shrunk;
    - `"additive"`, with numeric columns: `"field_bias"` and a smooth curve of each numeric column;
    - `"trees"`, with fields or numeric columns: boosted trees on top of `"field_bias"`;
    - `"neural"`, with fields or numeric columns: η(l) + g(x).

    For a model of K classes: `"identity"`; `"temperature"`; `"vector"`, a scale and a bias per
    class; `"matrix"`, with a penalized matrix; `"trees"` on top of `"vector"`; and `"neural"`.

    Args:
        model: A trained Keras model with a sigmoid or logit output, or a softmax or logits of K
            classes. If it ends in a head of this package, that head is replaced. The model stays
            frozen as long as the calibrated model is used; to train it again afterwards, set
            `model.trainable = True` and compile it.
        x: Inputs of the development set, which the model was not trained on: arrays by name with
            `y`, or a finite data set of batches `(x, y)` or `(x, y, sample_weight)`.
        y: Labels in [0, 1], (n,) or (n, 1), of both classes, if `x` holds arrays. For K classes:
            class numbers (n,) or (n, 1), or one-hot or soft labels (n, K).
        sample_weight: Sample weights (n,), importances unless `weights_are` says otherwise, if `x`
            holds arrays.
        fields: Categorical inputs whose segments are to be calibrated: their names, or name →
            number of ids or lookup layer.
        numeric: Numeric inputs that `"additive"`, `"trees"` and `"neural"` may also use.
        methods: Which candidates to compare.

            - `"default"`: all that are possible but `"neural"`, which takes most of the time and
              rarely adds to the trees.
            - `"quick"`: not the trees either.
            - `"thorough"`: the network too, if it helps in the first fold, and five folds.
            - The name of a candidate, which is then used whatever its score.
            - A list of names: these and `"identity"` are compared.
        folds: How to split the rows; None for three folds, or five with `methods="thorough"`.

            - A number of folds, stratified by label.
            - `"blocks"`: five blocks of consecutive rows, each scored by a fit on all others.
            - The fold number of each row (n,).

            The rows of a block are not treated as independent. None if there is a `time`.
        time: The time of each row: the name of an input or of another column of `x`; an array (n,)
            of numbers or dates; or `"order"`, if the rows are in order of time. The folds are then
            eight blocks of time, each scored by a fit on all earlier ones and weighted by that
            fit's share of the rows, so that a correction that does not last has no weight. And
            `"ilps"`, `"field_bias"` and `"additive"` are tried with a level that follows time too
            (`FieldBias`), as `"ilps+level"` and so on. The result needs no time to predict: it has
            the level of the last rows. Models of K classes have no level.
        gap: With `time`: the time from the last row of a fit to the first that it predicts, in days
            if times are dates, else in their unit: a week, where labels take a week to come.
        base_output: See `CalibratedModel`.
        calibrated_output: Which output to calibrate, if the model has several: its key in a
            dictionary, its index in a list, or its name. Labels and weights are those of this
            output, or dictionaries by output.
        steps_per_epoch: Number of batches to read from a generator or an infinite data set; they
            are then the whole development set.
        weights_are: `"importance"`, known up to a common factor, or `"counts"`: a row of weight 2
            is two rows, which are in the same fold (see `Head.fit`).
        seed: Seed of the folds and of training.
        verbose: `"auto"` or 1 shows a progress bar over the fits, the report and the last fit
            included as one; 0 shows none.

    Returns:
        The calibrated model, not compiled. Its `report` is a `CalibrationReport`.

    Raises:
        ValueError: If an argument or a row is invalid, or no candidate can be fitted. The model is
            then unchanged.

    Warns:
        UserWarning: If the fit of a candidate fails; if the chosen or requested calibration
            increases the cross-fitted log loss by more than one standard error; if a column of
            `fields` or `numeric` alone predicts the labels almost without error, as the label
            itself would; if rows are there several times, as after a join gone wrong, which are
            then used once; if the logits look like probabilities; if labels contradict
            probabilities of exactly 0 or 1; if a class has no rows. Such a class is scaled by the
            temperature of the others, and the report's figures leave it out.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> inputs = {"score": keras.Input((1,), name="score")}
        >>> base = keras.Model(inputs, keras.layers.Activation("sigmoid")(inputs["score"]))
        >>> x = {"score": rng.normal(-1, 1, (2000, 1))}
        >>> y = rng.random(2000) < 1 / (1 + np.exp(-2 * x["score"][:, 0] - 1))
        >>> calibrated = calibrate(base, x, y, verbose=0)
        >>> round(calibrated.report.before.log_loss, 2), round(calibrated.report.after.log_loss, 2)
        (0.48, 0.43)
        >>> calibrated.predict(x, verbose=0).shape
        (2000, 1)

    Reference:
        van der Laan, Polley and Hubbard (2007), *Super Learner*; Yao, Vehtari, Simpson and Gelman
        (2018), *Using stacking to average Bayesian predictive distributions*.
    """
    _check_model(model)
    if time is not None and folds is not None:
        raise ValueError(
            "Argument `folds` must be None with `time`, which says what the folds are: blocks of "
            f"time, each scored by a fit on earlier ones. Received: folds={folds!r}."
        )
    names = _names_of(methods)
    check_base_model(model, calibrated_output)
    output_before = output_name(model, calibrated_output)
    model, base_output, calibrated_output, replaced = _without_head(
        model, base_output, calibrated_output
    )
    num_columns = num_logits(model, calibrated_output)
    num_classes = num_columns if num_columns > 1 else None
    with trainable_flags_kept(model), throwaway_layers():
        label_names = [output_name(model, calibrated_output), output_before]
        reader = _reader(BaseLogits(model, base_output, calibrated_output), fields, label_names)
        rows = reader.read(
            x, y, sample_weight, steps_per_epoch=steps_per_epoch, time=time, weights_are=weights_are
        )
        gap = duration(gap, rows.time_unit)
        rows = distinct_rows(rows)
        fields, numeric = vocabularies(fields, rows.features), names_of(numeric)
        check_numeric(numeric, rows.features)
        rows = replace(rows, features={n: rows.features[n] for n in (*fields, *numeric)})
        if not isinstance(folds, str):  # else their order has a meaning
            rows = rows.take(canonical_order(rows))
        if rows.times is not None:
            rows = rows.take(np.argsort(rows.times, kind="stable"))
        folds, rows = folds_of(folds, rows), rows.as_given()
        if folds is None and rows.times is None:
            folds = default_folds(rows, _NUM_FOLDS[DEFAULT if names else str(methods)])
        splits = splits_of(folds, rows, seed, gap)
        # On blocks of time, the network makes its own folds of the earlier rows.
        num_members = _NUM_MEMBERS if splits.is_forward else splits.num_folds
        effort = THOROUGH if names else str(methods)
        possible = candidates(
            fields, numeric, num_members, seed, num_classes, effort, rows.times is not None
        )
        tried = _requested_candidates(possible, names)
        forced = names[0] if len(names) == 1 else None
        warn_of_label_columns(rows, splits.fold)
    with throwaway_layers():
        # The report and the last fit to all rows count as one.
        num_fits = 1 + sum(num_fits_of(candidate, splits) for candidate in tried)
        progress = ProgressBar(num_fits, "fits", verbose, tells_time_left=False)
        race = Race(rows, splits, seed, progress)
        race.run(tried, forced)
    report = _report(race.fits, rows, fields, splits, forced)
    report = replace(report, replaced=replaced)
    _warn_if_worse(report.after, forced)
    if rows.times is not None:
        report = replace(report, time_unit=rows.time_unit, aging=race.aging(report.weights))
    heads = {c.name: race.head_of(c) for c in tried if c.name in report.weights}
    head = _head_of(heads, report.weights, rows, splits)
    calibrated = CalibratedModel(model, head, base_output, calibrated_output)
    calibrated.report = replace(report, level=head.level())
    calibrated.head.remember_fit(calibrated.head.fit_summary)
    progress.add()
    return calibrated


def _reader(
    base: BaseLogits, fields: Fields | Sequence[str], label_names: Collection[str]
) -> Reader:
    """Reads data as a base model takes it, into its logits, with all of its inputs as features."""
    symbolic = named_inputs(symbolic_input(base.base_model))
    part = LogitModel(symbolic, base(symbolic))

    def compute(inputs: Inputs, verbose: int | str) -> tuple[np.ndarray, dict[str, Tensor]]:
        columns = keras.tree.flatten_with_path(inputs_by_name(inputs, symbolic))
        features = {".".join(map(str, path)): column for path, column in columns}
        return part.values(inputs, verbose), features

    names = list(dict.fromkeys(label_names))
    return Reader(structure=symbolic, compute=compute, ids=id_names(fields), label_names=names)


def _warn_if_worse(chosen: CandidateScore, forced: str | None) -> None:
    """Warns if the chosen calibration is worse than none by more than a standard error."""
    if chosen.log_loss_change <= chosen.log_loss_change_error:
        return
    remedy = "These rows say too little to choose: use more, or keep the model as it is."
    if forced is not None:
        remedy = 'Use methods="default": it mostly leaves a model unchanged that is right already.'
    warn(
        f"The calibration {chosen.name!r} makes the cross-fitted log loss worse: "
        f"{chosen.log_loss_change:+.6f} ± {chosen.log_loss_change_error:.6f} nats per row. "
        + remedy,
    )


def _head_of(
    heads: Mapping[str, Head], weights: Mapping[str, float], rows: Rows, splits: Splits
) -> Head:
    """One head of the chosen ones; the identity is what the others leave of the weights."""
    if len(heads) == 1:
        return next(iter(heads.values()))
    parts = [name for name in heads if name != IDENTITY]
    chosen, shares = [heads[name] for name in parts], [weights[name] for name in parts]
    head = BlendedHead(chosen, shares, use_bias=not splits.in_order)
    head.build((None, *rows.logits.shape[1:]))
    head.fit_bias(rows)
    return head


def _check_model(model: keras.Model) -> None:
    if isinstance(model, keras.Model):
        return
    remedy = "Pass a trained Keras model with a sigmoid or logit output."
    if hasattr(model, "shape") or isinstance(model, list | tuple):
        remedy = (
            "To calibrate scores without a model, use keras_calibration.calibrate_scores("
            "probabilities, labels), with from_logits=True for logits."
        )
    elif hasattr(model, "predict_proba"):
        remedy = (
            "To calibrate the scores of another library's model, use "
            "keras_calibration.calibrate_scores(model.predict_proba(x)[:, 1], y)."
        )
    raise ValueError(
        f"Argument `model` must be a Keras model. Received: {type(model).__name__}. {remedy}"
    )


def _without_head(
    model: keras.Model, base_output: str, calibrated_output: str | int | None
) -> tuple[keras.Model, str, str | int | None, str | None]:
    """A model whose calibrated output is the logit before its head, if it has one.

    Returns:
        The model, what its output is, which output it is, and the name of the head or None.
    """
    position = output_position(model, calibrated_output)
    found = next((each for each in find_heads(model) if each.position == position), None)
    if found is None:
        return model, base_output, calibrated_output, None
    base = found.base_layer
    if base is not None and len(output_names(model)) == 1:
        return base.base_model, base.base_output, base.calibrated_output, found.head.name
    outputs = keras.tree.flatten(symbolic_output(model))
    outputs[position] = found.base_outputs[LOGIT_OUTPUT]
    outputs = keras.tree.pack_sequence_as(symbolic_output(model), outputs)
    base_model = keras.Model(symbolic_input(model), outputs, name=model.name)
    is_list = isinstance(symbolic_output(model), list | tuple)
    return base_model, "logit", position if is_list else calibrated_output, found.head.name


def _names_of(methods: str | Sequence[str]) -> list[str]:
    """The names of candidates in `methods`; empty for all that are possible."""
    names = [methods] if isinstance(methods, str) else list(methods)
    if not names or not all(isinstance(name, str) for name in names):
        raise ValueError(
            f"Argument `methods` must be one of {list(_EFFORTS)}, the name of a candidate, or a "
            f"list of names. Received: methods={methods!r}."
        )
    return [] if isinstance(methods, str) and methods in _EFFORTS else names


def _report(
    fits: Mapping[str, CandidateFit],
    rows: Rows,
    fields: Collection[str],
    splits: Splits,
    forced: str | None,
) -> CalibrationReport:
    num_rows, absent = len(rows), rows.absent
    rows = splits.weighted(rows)
    field_columns = {name: rows.features[name] for name in fields}
    fitted = {name: fit.logits for name, fit in fits.items() if fit.logits is not None}
    if len(absent):
        # The rows cannot tell whether a probability of these classes is right.
        rows = replace(rows, labels=np.delete(rows.labels, absent, axis=1))
        fitted = {name: np.delete(logits, absent, axis=1) for name, logits in fitted.items()}
    if forced is None:
        _, fold = np.unique(splits.fold[splits.scored], return_inverse=True)
        choice = combined(fitted, replace(rows, features={}), fold, splits.clusters)
    else:
        choice = Choice({forced: 1.0}, "It was requested by `methods`.", fitted[forced])
    weights = choice.weights
    chosen = BLEND if len(weights) > 1 else next(iter(weights))
    seconds = {BLEND: 0.0, **{name: fit.seconds for name, fit in fits.items()}}
    fitted[chosen] = choice.logits
    losses = {name: head_log_losses(rows.labels, logits) for name, logits in fitted.items()}
    scores = scores_of(rows, fitted, losses, field_columns, seconds, splits.clusters)
    scores = tuple(
        with_errors(score, choice.errors) if score.name == chosen else score for score in scores
    )
    return CalibrationReport(
        num_rows=num_rows,
        num_folds=splits.num_folds,
        is_forward=splits.is_forward,
        scores=scores,
        chosen=chosen,
        reason=choice.reason,
        weights=weights,
        noise_floor=noise_floors(rows, choice.logits, field_columns),
        absent_classes=tuple(absent.tolist()),
        left_out={name: fit.failure for name, fit in fits.items() if fit.failure},
        still_off=segments_off(rows, choice.logits, field_columns),
    )


def _requested_candidates(possible: list[Candidate], names: list[str]) -> list[Candidate]:
    if not names:
        return possible
    by_name = {candidate.name: candidate for candidate in possible}
    if unknown := [name for name in names if name not in by_name]:
        raise ValueError(
            f"Argument `methods` must be one of {list(_EFFORTS)}, or name candidates for these "
            f"fields and numeric columns, {list(by_name)}. Received: {unknown}."
            f"{suggestion(unknown, by_name)}"
        )
    wanted = {IDENTITY, *names, *(base for name in names for base in by_name[name].bases)}
    return [candidate for candidate in possible if candidate.name in wanted]
