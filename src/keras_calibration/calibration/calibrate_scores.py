"""calibrate_scores: calibrates the scores of any model, from a log of scores and labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import keras
import numpy as np
from numpy.typing import ArrayLike

from calibration_records._columns import names_of
from keras_calibration._keras import throwaway_layers
from keras_calibration._rows.door import Given, Wanted, by_names, rows_of
from keras_calibration._rows.inputs import free_name, layer_names, named_inputs
from keras_calibration._rows.times import ORDER
from keras_calibration._solvers.row_folds import Folds
from keras_calibration._typing import Data
from keras_calibration.calibration.choose import Asked, choose
from keras_calibration.calibration.splits import time_and_gap
from keras_calibration.layers.field_ids import Fields, checked_numeric, id_names
from keras_calibration.models.calibrated_model import CalibratedModel

SCORE = "score"


@np.errstate(under="ignore")
def calibrate_scores(
    scores: ArrayLike | str,
    labels: ArrayLike | str,
    features: Data | None = None,
    sample_weight: ArrayLike | str | None = None,
    *,
    from_logits: bool = False,
    fields: Fields | Sequence[str] = (),
    numeric: Sequence[str] = (),
    methods: str | Sequence[str] = "default",
    folds: Folds | None = None,
    groups: ArrayLike | str | None = None,
    time: ArrayLike | str | tuple[ArrayLike | str, Any] | None = None,
    weights_are: str = "importance",
    verbose: int | str = "auto",
) -> CalibratedModel:
    """Calibrates the scores of any model: LightGBM, scikit-learn, PyTorch, or a table of requests.

    Works as `calibrate`, but takes scores in place of a Keras model. The result has an input for
    the score, `"score"`, and one for each feature that is used. It predicts, saves and exports like
    any `CalibratedModel`: the exported model takes the score and the features and returns the
    calibrated probability.

    If all is in one data frame, pass it as `features`, and names of columns in place of arrays:
    `calibrate_scores("score", "clicked", frame, fields=["site"])`.

    Args:
        scores: Predictions for rows that the model was not trained on, (n,) or (n, 1):
            probabilities of the positive class, or logits with `from_logits=True`. For K classes,
            of at least 3, (n, K). The fit reads them in their dtype; the model takes float32, which
            rounds probabilities above 1 - 3e-8 to 1. For such scores, pass logits. Or the name of a
            column of `features`. The input of the model is called `"score"` in any case.
        labels: Labels in [0, 1], (n,) or (n, 1), of both classes. For K classes: class numbers (n,)
            or (n, 1), or one-hot or soft labels (n, K). Or the name of a column of `features`.
        features: The columns of `fields` and `numeric`, and those that other arguments name: arrays
            (n,) by name, or a data frame. Other columns are ignored.
        sample_weight: Sample weights (n,), or the name of a column of `features`; None for ones.
        from_logits: Whether the scores are logits, or other real numbers that increase with the
            probability, such as margins. The exported model takes the same numbers, in float32.
            `"identity"`, `"bias"`, `"temperature"` and `"beta"` need true logits: on other scores
            they lose to the other candidates.
        fields: As for `calibrate`: names of the categorical columns whose segments are to be
            calibrated, or name → number of ids or lookup layer.
        numeric: Names of numeric columns, not in `fields`, that `"additive"`, `"trees"` and
            `"neural"` may also use. The model takes them in float32, NaN for a missing value.
        methods: `"default"`, `"quick"`, `"thorough"`, or candidates by name, see `calibrate`.
        folds: How to split the rows, see `calibrate`.
        groups: Which rows belong together, such as the rows of a customer: an array (n,) of whole
            numbers or strings, or the name of a column of `features`; see `calibrate`.
        time: The time of each row, an array (n,) of numbers or dates, the name of a column of
            `features`, or `"order"`; or a pair of these and a gap; see `calibrate`.
        weights_are: `"importance"`, known up to a common factor, or `"counts"` of rows, see
            `calibrate`.
        verbose: `"auto"` or 1 shows a progress bar over the candidates; 0 shows none.

    Returns:
        The calibrated model, not compiled. Its `report` is a `CalibrationReport`.

    Raises:
        ValueError: If an argument or a row is invalid; if probabilities are outside [0, 1]; if a
            named column is missing, or `features` is passed and no column is named; if the column
            of the scores, labels or weights is also in `fields` or `numeric`; if scores or a
            numeric column are so small or so large that float32 does not hold them.

    Warns:
        UserWarning: If logits look like probabilities, or scores and labels look swapped; if pandas
            objects have the same index in another order; and as `calibrate` does.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> probabilities = rng.beta(2, 5, 4000)  # too high
        >>> sites = rng.choice(["news", "games"], 4000)
        >>> rates = probabilities * np.where(sites == "news", 0.9, 0.4)
        >>> clicks = rng.random(4000) < rates
        >>> log = {"p": probabilities, "clicked": clicks, "site": sites}
        >>> model = calibrate_scores(
        ...     "p", "clicked", log, fields=["site"], methods="quick", verbose=0
        ... )
        >>> served = {"score": np.array([0.5, 0.5]), "site": np.array(["news", "games"])}
        >>> model.predict(served, verbose=0).round(1)
        array([[0.4],
               [0.2]], dtype=float32)
    """
    time, gap = time_and_gap(time, folds)
    numeric = checked_numeric(numeric, fields)
    fields = fields if isinstance(fields, Mapping) else names_of(fields)
    asked = Asked(methods, fields, numeric, folds, verbose)
    names = [*fields, *asked.numeric]
    if bad := [name for name in names if name == SCORE or "/" in str(name)]:
        raise ValueError(
            f"The name {SCORE!r} is kept for the input of the score, and an input of Keras has no "
            f"slash in its name. Received: features {bad}. Rename the columns."
        )
    given = Given(
        scores,
        labels,
        sample_weight,
        features,
        time=time,
        groups=groups,
        folds=folds,
        from_logits=from_logits,
        weights_are=weights_are,
        argument="scores",
    )
    wanted = Wanted(names, id_names(fields), asked.numeric, "`fields` and `numeric`")
    given, wanted = by_names(given, wanted)
    # Check the shape before the rows: two columns of a classifier get a clearer error here.
    _check_shape(tuple(np.shape(given.scores)))
    rows = rows_of(given, wanted)
    others = (scores, labels, sample_weight, groups, time)
    used = [*names, *(name for name in others if isinstance(name, str) and name != ORDER)]
    if features is not None and not used:
        raise ValueError(
            "Arguments `fields` or `numeric` must name the features to use. Received: features, "
            'and no name. Pass, for example, fields=["site_id"].'
        )
    # The fits see what the served model will see, in its dtypes.
    columns = {name: _cast_as_served(rows.features[name], name in fields) for name in names}
    with throwaway_layers():
        head, report = choose(replace(rows, features=columns), asked, gap)
    calibrated = CalibratedModel(
        _build_model(rows.logits, columns), head, "logit" if from_logits else "probability"
    )
    calibrated.report = report
    return calibrated


def _build_model(scores: np.ndarray, columns: Mapping[str, np.ndarray]) -> keras.Model:
    """A model that returns its input of scores, with one more input for each column."""
    inputs = {SCORE: keras.Input(scores.shape[1:], name=SCORE)}
    for feature, column in columns.items():
        dtype = "string" if column.dtype.kind in "OSU" else column.dtype.name
        inputs[feature] = keras.KerasTensor((None, *column.shape[1:]), dtype, name=feature)
    inputs = named_inputs(inputs)
    # The scores are both input and output, and the inputs' names are not free for layers.
    name = free_name("base_score", layer_names(inputs))
    return keras.Model(inputs, keras.layers.Identity(name=name)(inputs[SCORE]))


def _cast_as_served(column: np.ndarray, is_field: bool) -> np.ndarray:
    """A column in the dtype of the model's input.

    Integers become float32, because a request may hold a fraction. Ids of fields stay integers:
    float32 would lose their last digits.
    """
    if column.dtype.kind in "OSU":
        return column
    return column.astype("int64" if is_field and column.dtype.kind in "biu" else "float32")


def _check_shape(shape: tuple[int, ...]) -> None:
    """Raises unless scores are (n,) or (n, 1), or of at least 3 classes (n, K)."""
    if len(shape) not in (1, 2) or shape[1:] in ((0,), (2,)):
        raise ValueError(
            "Argument `scores` must have shape (n,) or (n, 1), one score per row, or (n, K) for at "
            f"least 3 classes. Received: shape {shape}. For two classes, pass the second column of "
            "scikit-learn's predict_proba, predict_proba(x)[:, 1], or the difference of the two "
            "logits."
        )
