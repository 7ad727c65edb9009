"""calibrate: turns a trained model and a development set into a calibrated model, in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from numpy.typing import ArrayLike

from keras_calibration._graph.base_logits import BaseLogits, check_base_model, trainable_flags_kept
from keras_calibration._graph.head_in_model import LOGIT_OUTPUT, find_heads
from keras_calibration._graph.logit_model import LogitModel
from keras_calibration._graph.outputs import (
    columns_by_path,
    output_name,
    output_names,
    output_position,
    symbolic_input,
    symbolic_output,
    with_tensor_names,
)
from keras_calibration._keras import throwaway_layers
from keras_calibration._rows.inputs import free_name, layer_names, named_inputs
from keras_calibration._rows.reader import Reader, given_labels
from keras_calibration._solvers.row_folds import Folds
from keras_calibration._typing import Data, Inputs, Tensor
from keras_calibration.calibration.choose import Asked, choose
from keras_calibration.calibration.splits import time_and_gap
from keras_calibration.layers.field_ids import Fields, Reads, checked_numeric, id_names
from keras_calibration.layers.head import Head
from keras_calibration.models.calibrated_model import CalibratedModel


@np.errstate(under="ignore")
def calibrate(
    model: keras.Model,
    x: Data,
    y: ArrayLike | str | Mapping[str, ArrayLike | str] | None = None,
    sample_weight: ArrayLike | str | None = None,
    *,
    fields: Fields | Sequence[str] = (),
    numeric: Sequence[str] = (),
    methods: str | Sequence[str] = "default",
    folds: Folds | None = None,
    groups: ArrayLike | str | None = None,
    time: ArrayLike | str | tuple[ArrayLike | str, Any] | None = None,
    weights_are: str = "importance",
    verbose: int | str = "auto",
) -> CalibratedModel:
    """Calibrates a trained model on a development set, and reports how each method compares.

    Every candidate is cross-fitted: for each fold, it is fitted on the other folds and scored on
    this one. So every row is scored by a fit that did not see it. All candidates are compared with
    `"identity"`, the model as it was passed, with its head if it has one.

    The result is a weighted mean of the candidates' logits (`report.weights`). For each fold, the
    weights are estimated on the other folds. Each is the mean of two numbers: the candidate's
    weight in the mean that predicts these rows best, and the probability that the candidate alone
    predicts best. `"identity"` is a candidate too. If it is more probable than all others together,
    its weight is 1. The report scores the fold with these weights. The model gets their mean over
    the folds, and the candidates with a weight are fitted to all rows. A bias makes the predicted
    total equal to the observed one. Candidates that gain nothing, or need more rows, are left out;
    the report lists them.

    The model changes only if the evidence for a change reaches `report.evidence_needed`, and the
    gain in the report is above its standard error. If it does not change, the report gives the
    gain that these rows could have shown.

    The candidates, simplest first:

    - `"identity"`: no change, the model as it was passed;
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

    For a model of K classes: `"identity"`; `"temperature"`; and `"vector"`, a scale and a bias per
    class. No candidate for classes uses fields or numeric columns; the report has their errors.

    Args:
        model: A trained Keras model that ends in a sigmoid, a softmax or a linear layer; for
            another one, pass a `CalibratedModel` of it. If it ends in a head of this package, the
            candidates are fitted to the logit before that head. The head competes as `"identity"`;
            if it was fitted to these rows, fits of it to the other folds are scored. (A head that
            reads what the model computes from its inputs stays in the model, below the new one.)
            The model stays frozen as long as the calibrated model is used; to train it again
            afterwards, set `model.trainable = True` and compile it.
        x: Inputs of the development set, which the model was not trained on: arrays by name with
            `y`, or a finite data set of batches `(x, y)` or `(x, y, sample_weight)`.
        y: Labels in [0, 1], (n,) or (n, 1), of both classes, if `x` holds arrays. For K classes:
            class numbers (n,) or (n, 1), or one-hot or soft labels (n, K). Or the name of a column
            of `x`, which is then no input. For a model with several outputs, a dictionary with the
            labels of the one to calibrate, `{"click": labels}`, also in the batches of a data set.
        sample_weight: Sample weights (n,), or the name of a column of `x`, if `x` holds arrays.
        fields: Categorical inputs whose segments are to be calibrated: their names, or name →
            number of ids or lookup layer. The input `id` in a dictionary `user` of the inputs has
            the name `"user.id"`.
        numeric: Numeric inputs, not in `fields`, that `"additive"`, `"trees"` and `"neural"` may
            also use. Columns that float32 does not hold raise an error.
        methods: Which candidates to compare.

            - `"default"`: all that are possible except `"neural"`, which takes most of the time and
              rarely improves on the trees.
            - `"quick"`: as the default, without the trees.
            - `"thorough"`: all, with five folds.
            - The name of a candidate, which is then used whatever its score.
            - A list of two or more names: these and `"identity"` are compared.
        folds: How to split the rows; None for three folds, or five with `methods="thorough"`.

            - A number of folds, drawn by chance but always the same for the same rows, stratified
              by label.
            - `"blocks"`: five blocks of consecutive rows, each scored by a fit on all others. The
              rows of a block are not treated as independent.
            - The fold number of each row (n,). Standard errors take the rows of a fold as
              independent: if rows belong together, pass `groups`, with a number of folds.

            None if there is a `time`.
        groups: Which rows belong together, such as the rows of a customer: the name of an input or
            of another column of `x`, or an array (n,) of whole numbers or strings. Folds that are
            drawn keep the rows of a group together, and all standard errors are those of
            independent groups. With `time` or `"blocks"`, the folds are blocks, which may divide a
            group. An error is then the larger of two: one that takes blocks as independent, and one
            that takes groups as independent.
        time: The time of each row: the name of an input or of another column of `x`; an array (n,)
            of numbers or dates; or `"order"`, if the rows are in order of time. The folds are then
            eight blocks of time, each scored by a fit on all earlier ones and weighted by that
            fit's share of the rows, so that a correction that does not last gets no weight. And
            `"ilps"`, `"field_bias"` and `"additive"` also compete with a level that follows time
            (`FieldBias`), as `"ilps+level"` and so on. The result needs no time to predict: it has
            the level of the last rows. Models of K classes have no level.

            Or a pair `(time, gap)`: the gap is the time from the last row of a fit to the first
            that it predicts, in days if times are dates, else in their unit. If labels arrive after
            a week, pass a gap of a week.
        weights_are: `"importance"`, known up to a common factor, or `"counts"`: a row of weight 2
            is two rows (see `Head.fit`).
        verbose: `"auto"` or 1 shows a progress bar over the candidates; 0 shows none.

    Returns:
        The calibrated model, not compiled. Its `report` is a `CalibrationReport`.

    Raises:
        ValueError: If an argument or a row is invalid, or no candidate can be fitted. The model is
            then unchanged.

    Warns:
        UserWarning: If the fit of a candidate fails; if a calibration that is used whatever its
            score increases the cross-fitted log loss by more than one standard error; if the head
            of the model is far off in total on logits that are right without it; if rows are
            repeated, as after a wrong join, which then count as `groups`; if a few rows have times
            far after the others, which then decide the level; if a field has values that are not in
            the vocabulary passed; if the logits look like probabilities, or rank the labels the
            wrong way round; if labels contradict probabilities of exactly 0 or 1.

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
    if not isinstance(model, keras.Model):
        raise ValueError(
            "Argument `model` must be a trained Keras model with a sigmoid or logit output. "
            f"Received: {type(model).__name__}. To calibrate scores without a Keras model, use "
            "keras_calibration.calibrate_scores(probabilities, labels), with "
            "model.predict_proba(x)[:, 1] of scikit-learn."
        )
    time, gap = time_and_gap(time, folds)
    asked = Asked(methods, fields, checked_numeric(numeric, fields), folds, verbose)
    output = _find_output(model, x, y)
    # A head of the model becomes a candidate, so the others start from the logit below it.
    base_model, base_output, base_key, present = _remove_head(model, output)
    # `BaseLogits` freezes the model, and fits make layers; an error has to leave the model as it
    # was.
    with trainable_flags_kept(base_model), throwaway_layers():
        name = free_name("base", layer_names(symbolic_input(base_model)))
        base = BaseLogits(base_model, base_output, base_key, name=name)
        reader = _build_reader(base, asked, model, output, present)
        rows = reader.read(
            x,
            y,
            sample_weight,
            time=time,
            groups=groups,
            folds=folds,
            weights_are=weights_are,
        )
        head, report = choose(rows, asked, gap, present)
    calibrated = CalibratedModel(base_model, head, base_output, base_key)
    calibrated.report = report
    return calibrated


def _find_output(model: keras.Model, x: Data, y: Any) -> str | None:
    """The output to calibrate, which the labels name; None for a model with one output."""
    names = [] if symbolic_output(model) is None else output_names(model)
    # Only the labels say which of several outputs is meant.
    output = None
    if len(names) > 1:
        labels = given_labels(x, y)
        named = list(labels) if isinstance(labels, Mapping) else []
        if len(named) != 1 or named[0] not in names:
            raise ValueError(
                "Argument `y` must be a dictionary with the labels of one output, the one to "
                f"calibrate, because the model has the outputs {names}. Received: "
                f"{named or type(labels).__name__}. Pass y={{{names[0]!r}: labels}}, for example."
            )
        (output,) = named
    check_base_model(model, output, "model")
    return output


def _build_reader(
    base: BaseLogits,
    asked: Asked,
    model: keras.Model,
    output: str | None,
    present: Head | None,
) -> Reader:
    """Reads data in the form of a base model's inputs: logits, and all inputs as features."""
    # All inputs of the base model are features by their path, as a head may read each of them.
    symbolic = named_inputs(symbolic_input(base.base_model))
    part = LogitModel(symbolic, base(symbolic))
    names = [output_name(base.base_model, base.calibrated_output), output_name(model, output)]

    def compute(inputs: Inputs, verbose: int | str) -> tuple[np.ndarray, dict[str, Tensor]]:
        return part.values(inputs, verbose), columns_by_path(inputs, symbolic)

    return Reader(
        structure=symbolic,
        compute=compute,
        ids=with_tensor_names(
            id_names(asked.fields) | (present.reads() if present else Reads()).ids, symbolic
        ),
        numeric=with_tensor_names(asked.numeric, symbolic),
        label_names=list(dict.fromkeys(names)),
        other_names=[*output_names(base.base_model), *output_names(model)],
    )


def _remove_head(
    model: keras.Model, output: str | None
) -> tuple[keras.Model, str, str | int | None, Head | None]:
    """A model whose calibrated output is the logit before its head, if it has one.

    A head that reads what the model computes from its inputs stays a part of the model, because it
    cannot read this on top of the logit. Returns the model, the kind of its output, the name or
    position of this output, and the head or None.
    """
    position = output_position(model, output)
    # A head that reads a tensor that is no input has to stay: on top of the logit, nothing provides
    # that tensor.
    match = next((match for match in find_heads(model) if match.position == position), None)
    if match is None or any(match.input_of.get(name) != name for name in match.features):
        return model, "auto", output, None
    base = match.base_layer
    if base is not None and output is None:
        return base.base_model, base.base_output, base.calibrated_output, match.head
    # Otherwise the head is a layer of a larger graph: replace its output by the logit below it.
    outputs = keras.tree.flatten(symbolic_output(model))
    outputs[position] = match.base_outputs[LOGIT_OUTPUT]
    outputs = keras.tree.pack_sequence_as(symbolic_output(model), outputs)
    base_model = keras.Model(symbolic_input(model), outputs, name=model.name)
    is_list = isinstance(symbolic_output(model), list | tuple)
    return base_model, "logit", position if is_list else output, match.head
