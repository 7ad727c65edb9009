"""check_head: checks a head that you have written, for your tests."""

from __future__ import annotations

import inspect
import json
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
from numpy.typing import ArrayLike

from calibration_records._check import refused
from keras_calibration._rows.inputs import free_name
from keras_calibration._solvers.total_bias import probabilities_of
from keras_calibration.export import export_savedmodel
from keras_calibration.layers.fit import Fit
from keras_calibration.layers.fit_settings import FitSettings
from keras_calibration.layers.fits import heads_in
from keras_calibration.layers.head import Head
from keras_calibration.models.calibrated_model import CalibratedModel
from keras_calibration.models.fit_head import fit_head
from keras_calibration.testing.assertions import (
    called,
    check,
    check_alike,
    disturb,
    must,
    state_of,
)
from keras_calibration.testing.head_case import HeadCase, drawn_rows

_REGISTER = '@keras.saving.register_keras_serializable(package="my_package")'
_CONFIG = "Return `{**super().get_config(), ...}`, with all arguments of the constructor."
_STATE = "Create all state as weights in `build`, and save arguments in `get_config`."


def check_head(
    make_head: Callable[[], Head],
    features: Mapping[str, ArrayLike] | None = None,
    num_classes: int | None = None,
    *,
    num_rows: int = 400,
    settings: FitSettings | None = None,
    export: bool | None = None,
) -> None:
    """Checks that a head keeps what models, fits, files and exports ask of it.

    It draws rows with a fixed seed, and checks in this order:

    1. A new head is the identity. The call gives each row its logit, whatever other rows are in the
       batch, and accepts values that are not in `features`: other ids, NaN, huge numbers.
    2. Its class is registered with Keras. `get_config` has all arguments of the constructor, as
       plain values.
    3. `fitted` changes nothing, and gives the same fit each time, whether or not the head is built.
    4. After `assign(fit)`, the call is `fit.logits`, to 1e-6 of the logit, also for values that the
       fit has not seen, and whatever the weights were before.
    5. The order of rows does not matter, nor a common factor of importances, nor rows of weight 0.
       Rows, and the same rows as counts, have the same fit.
    6. In a model, `fit_head` finds the same fit. A file keeps the output and `fit_summary`, and
       `export_savedmodel` writes a SavedModel that returns the same.

    A head without `fitted` is checked by 1, 2 and 6, without `fit_head`.

    Args:
        make_head: The class, or a function without arguments, that makes a new head. Pass arguments
            other than the defaults: only these show whether they are saved.
        features: Name → values of this feature, from which rows are drawn: ids, strings, numbers.
        num_classes: K if the head takes the logits of K classes; None for one logit per row.
        num_rows: Number of rows.
        settings: How to train a network; by default for two epochs, with two folds.
        export: Whether to export the model too, which starts a process and takes some seconds. None
            does so if Keras runs on TensorFlow.

    Raises:
        AssertionError: If a check fails. The message says what is wrong, and how to mend it.
        ValueError: If an argument is invalid, or a feature of the head is not in `features`.

    Example:
        >>> from keras_calibration.layers import BiasCorrection, FieldBias
        >>> check_head(lambda: FieldBias({"site": 5}), {"site": range(5)}, export=False)
        >>> class MyBias(BiasCorrection):
        ...     '''A class that is not registered.'''
        >>> check_head(MyBias)
        Traceback (most recent call last):
        ...
        AssertionError: Class MyBias must be registered, so that Keras finds it when it loads a
        file. Decorate it with @keras.saving.register_keras_serializable(package="my_package").
    """
    is_function = callable(make_head) and not isinstance(make_head, Head)
    made = {id(head): head for head in ([make_head(), make_head()] if is_function else [])}
    if not (len(made) == 2 and all(isinstance(head, Head) for head in made.values())):
        raise refused("make_head", "a function that makes a new `Head` at each call", make_head)
    settings = settings or FitSettings(folds=2, max_epochs=2)
    case = HeadCase(make_head, settings, *drawn_rows(features or {}, num_classes, num_rows))
    export = keras.backend.backend() == "tensorflow" if export is None else export
    with warnings.catch_warnings(), np.errstate(under="ignore"):
        warnings.simplefilter("ignore")  # of rows that are drawn
        _check_call(case)
        _check_config(case)
        if make_head().has_direct_fit():
            fit = _check_fitted(case)
            _check_assign(case, fit)
            _check_same_facts(case, fit)
        _check_model(case, export)


def _check_call(case: HeadCase) -> None:
    head, rows = case.make(), case.rows
    check_alike(
        "A new head must be the identity, so that a model with it predicts as without it. Give the "
        "weights in `build` such initial values.",
        rows,
        (called(head, rows), rows.logits),
        1e-5,
    )
    # A weight may decide how much other rows count.
    disturb(head)
    logits = called(head, rows)
    order = np.random.default_rng(0).permutation(len(rows))
    for part in (order[:1], order[1:]):
        check_alike(
            "The call must give each row its logit, whatever other rows are in the batch. Compute "
            "nothing over the rows in `call`: what depends on all rows belongs in `fitted`.",
            rows.take(part),
            (called(head, rows.take(part)), logits[part]),
        )
    with must(
        "The call must accept values that no fit has seen, because a served model gets them: other "
        "ids, unknown strings, NaN, huge numbers. Clip ids to the table, for example."
    ):
        called(head, case.points)


def _check_config(case: HeadCase) -> None:
    head = case.make()
    for kind in map(type, heads_in(head)):
        check(
            keras.saving.get_registered_object(keras.saving.get_registered_name(kind)) is kind,
            f"Class {kind.__name__} must be registered, so that Keras finds it when it loads a "
            f"file. Decorate it with {_REGISTER}.",
        )
    with must(f"`get_config` must return plain values, as in JSON. {_CONFIG}"):
        config = json.loads(json.dumps(keras.saving.serialize_keras_object(head)))
    arguments = inspect.signature(type(head)).parameters.values()
    absent = sorted(
        {a.name for a in arguments if a.kind not in (a.VAR_POSITIONAL, a.VAR_KEYWORD)}
        - {*head.get_config()}
    )
    check(not absent, f"`get_config` must have all arguments. It lacks {absent}. {_CONFIG}")
    with must(f"The head must be made again from its `get_config`. {_CONFIG}"):
        again = keras.saving.deserialize_keras_object(config).get_config()
    check(
        again == head.get_config(),
        "A head that is made from `get_config` must have the same `get_config`. Received: "
        f"{head.get_config()}, and then {again}.",
    )


def _check_fitted(case: HeadCase) -> Fit:
    """Returns the fit of a new head."""
    head = case.make()
    with must(
        "`fitted` must also work on a new head, which has no weights yet. Read the rows and the "
        "arguments of the constructor, and return `self.fit_of(rows, {...})`, with the name of the "
        "attribute that holds each weight."
    ):
        fit = case.fit(case.make())
    before = called(head, case.points)
    state = state_of(head)
    again = case.fit(head)
    changed = [name for name, value in state_of(head).items() if value != state.get(name)]
    is_same = np.array_equal(called(head, case.points), before, equal_nan=True)
    check(
        is_same and not changed,
        "`fitted` must leave the head as it is, because fits are compared before one is used. It "
        f"changed {changed or 'what the call computes'}. Return the new values, `self.fit_of(rows, "
        "{...})`: `assign` gives them to the head.",
    )
    copy = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(head))
    others = {
        "of a built head": (again, "Only the rows and `settings` may count."),
        "of a second call": (case.fit(head), "Draw random numbers with `settings.seed` alone."),
        "of a head made from `get_config`": (case.fit(copy), _CONFIG),
    }
    for which, (other, advice) in others.items():
        check_alike(
            f"`fitted` must give the same fit each time. The fit {which} differs. {advice}",
            case.points,
            (other.logits(case.points), fit.logits(case.points)),
        )
    return fit


def _check_assign(case: HeadCase, fit: Fit) -> None:
    head = case.make()
    called(head, case.rows)
    expected = fit.logits(case.points)
    head.assign(fit)
    given = called(head, case.points)
    check_alike(
        "After `assign(fit)`, the call must return `fit.logits(rows)`. Both compute the curve: "
        "find what one of them does otherwise. With `return self.fit_of(rows, {...})`, there is "
        "one version alone.",
        case.points,
        (given, expected),
    )
    check(
        head.fit_summary is fit.summary,
        "After `assign(fit)`, `fit_summary` must be `fit.summary`. If you override `assign`, call "
        "`super().assign(fit)`.",
    )
    disturbed = disturb(head)
    head.assign(fit)
    kept = [name for name, (weight, value) in disturbed.items() if np.array_equal(weight, value)]
    check_alike(
        "A fit must replace what training gave, and earlier fits. `assign(fit)` has not changed "
        f"{kept}. `Fit.weights` must have the value of each weight, by the name of its attribute.",
        case.points,
        (called(head, case.points), given),
    )
    disturb(head)
    check_alike(
        "`fitted` must give the same fit whatever the weights of the head are. Only the rows and "
        "`settings` may count.",
        case.points,
        (case.fit(head).logits(case.points), expected),
    )


def _check_same_facts(case: HeadCase, fit: Fit) -> None:
    head, rows = case.make(), case.rows
    number = len(rows)
    generator = np.random.default_rng(1)
    order = generator.permutation(number)
    counts = generator.integers(1, 4, number)
    importances = generator.exponential(size=number)
    twice = rows.take(np.tile(np.arange(number), 2))
    without = replace(twice, labels=np.append(rows.labels, rows.labels[::-1]))
    forms = {
        "the order of rows": (fit, case.fit(head, rows.take(order))),
        "whether rows are given as counts": (
            case.fit(head, rows.take(np.repeat(np.arange(number), counts))),
            case.fit(head, sample_weight=counts, weights_are="counts"),
        ),
        "a common factor of importances": (
            case.fit(head, sample_weight=importances),
            case.fit(head, sample_weight=8 * importances),
        ),
        "rows of weight 0": (
            fit,
            case.fit(head, without, sample_weight=np.repeat([1.0, 0.0], number)),
        ),
    }
    for what, fits in forms.items():
        one, other = (probabilities_of(form.logits(case.points)) for form in fits)
        check_alike(
            f"The fit must not depend on {what}. Weigh each row by `rows.row_weights` in every sum "
            "and mean, and let no row count by its place.",
            case.points,
            (other, one),
        )


def _check_model(case: HeadCase, export: bool) -> None:
    """Checks the head in a model: `fit_head`, a file, and an export."""
    head, rows = case.make(), case.rows
    score = free_name("score", rows.features)
    x = {score: rows.logits.astype("float32"), **rows.features}
    inputs = {
        name: keras.Input(
            column.shape[1:],
            dtype="string" if column.dtype.kind == "O" else column.dtype.name,
            name=name,
        )
        for name, column in x.items()
    }
    logit = keras.layers.Reshape(rows.logits.shape[1:] or (1,))(inputs[score])
    with must("The head must be a layer of a Functional model, which calls it on symbols."):
        model = CalibratedModel(keras.Model(inputs, logit), head, "logit")
    if head.has_direct_fit():
        with must("`fit_head` must fit a model with the head."):
            fit_head(
                model,
                x,
                rows.labels,
                time=rows.times if head.follows_time else None,
                settings=case.settings,
                only_if_better=False,
                verbose=0,
            )
        expected = case.fit(case.make()).logits(rows)
        check_alike(
            "`fit_head` must find the fit of `Head.fit`.",
            rows,
            (probabilities_of(called(head, rows)), probabilities_of(expected)),
        )
    else:
        disturb(head)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "model.keras")
        with must(f"A model with the head must be saved and loaded. {_STATE}"):
            model.save(file)
            loaded_model = keras.saving.load_model(file)
        loaded = loaded_model.head
        check_alike(
            f"A file must keep what the head computes. {_STATE}",
            case.points,
            (called(loaded, case.points), called(head, case.points)),
        )
        with must("The call must work in a graph, where values are not known. Use `keras.ops`."):
            predicted = loaded_model.predict(x, verbose=0)
        check_alike(
            "A model with the head must predict what its call computes.",
            rows,
            (predicted, probabilities_of(called(head, rows))),
        )
        check(
            str(loaded.fit_summary) == str(head.fit_summary),
            "A file must keep `fit_summary`. If you override `save_own_variables` or "
            "`load_own_variables`, call those of `super()`.",
        )
        if export:
            with must("`export_savedmodel` must write the model. Use `keras.ops` in `call`."):
                export_savedmodel(model, Path(folder, "1"), x)
