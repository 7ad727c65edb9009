"""calibrate_scores: calibrates the scores of any model, from a log of scores and labels."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import keras
import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from calibration_records._check import known
from calibration_records._columns import (
    by_name,
    check_one_value_a_row,
    names_of,
    warn_of_other_order,
)
from calibration_records._predictions import check_probabilities
from calibration_records._warn import warn
from calibration_records.logs import ScoredLog
from keras_calibration._graph.base_logits import BaseLogits
from keras_calibration._rows.checks import logits_of_probabilities, warn_if_swapped
from keras_calibration._rows.columns import as_array, column_of, ids_of, warn_of_lost_digits
from keras_calibration._rows.rows import Rows
from keras_calibration._rows.times import time_given
from keras_calibration._rows.weights import columns_that_count
from keras_calibration._solvers.row_folds import Folds
from keras_calibration._typing import Data
from keras_calibration.calibration.calibrate import (
    calibrate,
    calibrated_by,
    check_folds_of_time,
    reader_of,
)
from keras_calibration.calibration.choose import Asked
from keras_calibration.calibration.long_logs import read_log
from keras_calibration.layers.field_ids import Fields, id_names
from keras_calibration.models.calibrated_model import CalibratedModel

SCORE = "score"
# Below it, float32 changes no logit by more than what is warned of.
_NEAR_1, _LARGEST_LOSS = 1 - 1e-6, 0.1
# Inputs keep strings and integers as they are: a field id in float32 would lose its last digits.
_DTYPES = {"b": "int64", "i": "int64", "u": "int64", "f": "float32"}


def calibrate_scores(
    scores: ArrayLike | ScoredLog,
    labels: ArrayLike | None = None,
    features: Data | None = None,
    sample_weight: ArrayLike | None = None,
    *,
    from_logits: bool = False,
    fields: Fields | Sequence[str] = (),
    numeric: Sequence[str] = (),
    methods: str | Sequence[str] = "default",
    folds: Folds | None = None,
    time: ArrayLike | str | None = None,
    gap: float | datetime.timedelta = 0.0,
    weights_are: str = "importance",
    seed: int = 0,
    verbose: int | str = "auto",
) -> CalibratedModel:
    """Calibrates the scores of any model: LightGBM, scikit-learn, PyTorch, or a log of requests.

    As `calibrate`, but it takes the scores in place of a Keras model. The result has an input for
    the score, `"score"`, and one for each feature that is used. It predicts, saves and exports as
    any `CalibratedModel`: the exported model takes the score and the features and returns the
    calibrated probability.

    `scores` may be a `ScoredLog`, of any number of rows: it names the columns of predictions,
    labels, weights and times. Of more than 500,000 rows, a sample of so many is read, or of up to
    two million until it has 5,000 of either class. The curves, and the fit with all columns
    (`"field_bias"`, or `"additive"`), are fitted to all other rows in passes, as `fit_calibrator`
    does; all else, such as trees, is fitted to the sample, on which all are compared. With `time`,
    all are fitted to the sample, and what is chosen is then fitted to all rows, if it can be in
    passes. The report says what is fitted to which.

    Args:
        scores: Predictions for rows that the model was not trained on, (n,) or (n, 1):
            probabilities of the positive class, or logits with `from_logits=True`. For K classes,
            of at least 3, (n, K). The model takes them in float32, which rounds probabilities
            near 1: those of float64 above 1 - 6e-8 are better passed as logits. Or a log, with its
            labels and weights, then without `from_logits`.
        labels: Labels in [0, 1], (n,) or (n, 1), of both classes. For K classes: class numbers (n,)
            or (n, 1), or one-hot or soft labels (n, K).
        features: The columns of `fields` and `numeric`: arrays (n,) by name, or a data frame. Other
            columns are ignored.
        sample_weight: Sample weights (n,), importances unless `weights_are` says otherwise; None
            for ones.
        from_logits: Whether the scores are logits, or any real numbers that increase with the
            probability, in any unit and from any zero. The exported model takes the same, in
            float32. `"identity"`, `"bias"`, `"temperature"` and `"beta"` take them as logits: on
            scores of another unit they lose to the others.
        fields: As for `calibrate`: names of the categorical columns whose segments are to be
            calibrated, or name → number of ids or lookup layer.
        numeric: Names of numeric columns that the trees, for example, may also use. The model, and
            what is exported of it, take them in float32, NaN for a missing value.
        methods: `"default"`, `"quick"`, `"thorough"`, or candidates by name, see `calibrate`.
        folds: How to split the rows, see `calibrate`.
        time: The time of each row, an array (n,) of numbers or dates, the name of a column of
            `features`, or `"order"`; see `calibrate`. Of a log, the name of its `timestamp`: the
            days of that column.
        gap: The time from the last row of a fit to the first that it predicts, see `calibrate`.
        weights_are: `"importance"`, known up to a common factor, or `"counts"` of rows, see
            `calibrate`.
        seed: Seed of the folds and of training.
        verbose: `"auto"` or 1 shows a progress bar over the fits; 0 shows none.

    Returns:
        The calibrated model, not compiled. Its `report` is a `CalibrationReport`.

    Raises:
        ValueError: If an argument or a row is invalid; if probabilities are outside [0, 1]; if a
            named column is missing, or features are given and none is named.

    Warns:
        UserWarning: If logits look like probabilities, or scores and labels look swapped; if pandas
            objects have the same index in another order; if probabilities near 1 lose their digits
            in float32; and as `calibrate` does.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> probabilities = rng.beta(2, 5, 4000)  # of a model that predicts too much
        >>> sites = rng.choice(["news", "games"], 4000)
        >>> rates = probabilities * np.where(sites == "news", 0.9, 0.4)
        >>> clicks = rng.random(4000) < rates
        >>> model = calibrate_scores(
        ...     probabilities,
        ...     clicks,
        ...     {"site": sites},
        ...     fields=["site"],
        ...     methods="quick",
        ...     verbose=0,
        ... )
        >>> served = {"score": np.array([0.5, 0.5]), "site": np.array(["news", "games"])}
        >>> model.predict(served, verbose=0).round(1)
        array([[0.4],
               [0.2]], dtype=float32)
    """
    if isinstance(scores, ScoredLog):
        _check_log_alone(scores, labels, features, sample_weight, from_logits, time)
        asked = Asked(methods, _names(fields), names_of(numeric), seed, verbose)
        _check_names([*asked.fields, *asked.numeric])
        return _calibrated_log(scores, asked, folds, time, gap, weights_are)
    warn_of_other_order(
        scores=scores, labels=labels, features=features, sample_weight=sample_weight, time=time
    )
    if labels is None:
        raise ValueError(
            "Argument `labels` must be given, unless `scores` is a ScoredLog. Received: labels="
            "None. Pass calibrate_scores(scores, labels, features)."
        )
    fields, numeric = _names(fields), names_of(numeric)
    columns = _used_columns(features, sample_weight, [*fields, *numeric], id_names(fields))
    # Whatever the frame held: a request may have a fraction, or a missing value.
    columns |= {name: _in_float32(columns[name]) for name in {*numeric} - id_names(fields)}
    scores = _checked(scores, labels, sample_weight, from_logits)
    return calibrate(
        _model_of(scores, columns),
        {SCORE: scores, **columns},
        labels,
        sample_weight,
        fields=fields,
        numeric=numeric,
        methods=methods,
        folds=folds,
        time=time_given(time, features),
        gap=gap,
        base_output="logit" if from_logits else "probability",
        weights_are=weights_are,
        seed=seed,
        verbose=verbose,
    )


def _calibrated_log(
    log: ScoredLog,
    asked: Asked,
    folds: Folds | None,
    time: ArrayLike | str | None,
    gap: float | datetime.timedelta,
    weights_are: str,
) -> CalibratedModel:
    """The calibrated model of the scores of a log."""
    check_folds_of_time(folds, time)
    with read_log(log, asked, folds, time is not None, weights_are) as found:
        rows, from_logits = found.rows, log.logit is not None
        scores = rows.logits if from_logits else special.expit(rows.logits)
        scores = scores.astype("float32")
        model = _model_of(scores, rows.features)
        of_base = model, "logit" if from_logits else "probability", None

        def read(base: BaseLogits) -> Rows:
            data = {SCORE: scores, **rows.features}
            seen = reader_of(base, found.fields).read(
                data, rows.labels, rows.weights, time=rows.times, weights_are=weights_are
            )
            return replace(seen, time_unit=rows.time_unit)

        asked = replace(asked, fields=found.fields)
        return calibrated_by(of_base, read, asked, folds, gap, found.elsewhere)


def _model_of(scores: np.ndarray, columns: Mapping[str, np.ndarray]) -> keras.Model:
    """A model that returns its input of scores, and has one for each column."""
    inputs = {SCORE: keras.Input(scores.shape[1:], name=SCORE)}
    for feature, column in columns.items():
        dtype = _DTYPES.get(column.dtype.kind, "string")
        inputs[feature] = keras.Input(column.shape[1:], dtype=dtype, name=feature)
    return keras.Model(inputs, keras.layers.Identity(name="base_score")(inputs[SCORE]))


def _in_float32(column: np.ndarray) -> np.ndarray:
    """A column of whole numbers in float32; others are unchanged."""
    return column.astype("float32") if column.dtype.kind in "biu" else column


def _check_names(names: Collection[str]) -> None:
    if SCORE in names:
        raise ValueError(
            f"The name {SCORE!r} is kept for the input of the score. Received: a feature of that "
            "name. Rename the column."
        )


def _names(fields: Fields | Sequence[str]) -> Fields | list[str]:
    return fields if isinstance(fields, Mapping) else names_of(fields)


def _check_log_alone(
    log: ScoredLog,
    labels: ArrayLike | None,
    features: Data | None,
    sample_weight: ArrayLike | None,
    from_logits: bool,
    time: ArrayLike | str | None,
) -> None:
    """Raises if arguments are given that a log names itself."""
    given = {"labels": labels, "features": features, "sample_weight": sample_weight}
    if names := [name for name, value in given.items() if value is not None]:
        raise ValueError(
            f"Arguments {names} must be None with a ScoredLog, which names its columns. Received: "
            "a log and these. Name them in ScoredLog(source, label=…, sample_weight=…)."
        )
    if from_logits:
        raise ValueError(
            "Argument `from_logits` must be False with a ScoredLog, which names its column of "
            "logits. Received: from_logits=True. Pass ScoredLog(source, logit=…)."
        )
    if time is not None and (time != log.timestamp or not isinstance(time, str)):
        raise ValueError(
            "Argument `time` must be the name of the log's column of times. Received: "
            f"time={time!r}, and timestamp={log.timestamp!r}. Pass ScoredLog(source, timestamp=…)."
        )


def _used_columns(
    features: Data | None,
    sample_weight: ArrayLike | None,
    names: list[str],
    ids: Collection[str],
) -> dict[str, np.ndarray]:
    """The named columns as arrays; `ids` as integers or strings."""
    if features is None:
        features = {}
    elif not names:
        raise ValueError(
            "Arguments `fields` or `numeric` must name the features to use. Received: features, "
            'and no name. Pass, for example, fields=["site_id"].'
        )
    columns = by_name(features)
    if not isinstance(columns, Mapping):
        raise ValueError(
            "Argument `features` must be a mapping of names to arrays, or a data frame. Received: "
            f"{type(features).__name__}. The order of the arguments is scores, labels, features, "
            "sample_weight."
        )
    what = "Arguments `fields` and `numeric` must name columns of `features`"
    known(what, names, sorted(columns, key=str))
    _check_names(names)
    read = {}
    columns = columns_that_count({name: columns[name] for name in names}, sample_weight)
    for name in columns:
        if name in ids:
            column = ids_of(columns[name], repr(name), "strings or whole numbers, to be a field")
        else:
            column = column_of(columns[name], repr(name))
            warn_of_lost_digits(column, name)
        read[name] = as_array(column)
        check_one_value_a_row(read[name], name, "Feature")
    return read


def _checked(
    scores: ArrayLike, labels: ArrayLike, sample_weight: ArrayLike | None, from_logits: bool
) -> np.ndarray:
    """The scores, (n,) or (n, K), float32; raises for probabilities outside [0, 1]."""
    array = as_array(column_of(scores, "scores"))
    if array.ndim == 2 and array.shape[1] == 2:
        raise ValueError(
            "Argument `scores` must have shape (n,) or (n, 1), or (n, K) for at least 3 classes. "
            f"Received: shape {array.shape}. For two classes, pass one score per row: of "
            "scikit-learn's predict_proba, the second column, predict_proba(x)[:, 1]; of two "
            "logits, their difference."
        )
    if array.ndim not in (1, 2) or array.shape[1:] == (0,):
        raise ValueError(
            "Argument `scores` must have shape (n,) or (n, 1), or (n, K) for classes. Received: "
            f"shape {array.shape}. Pass one score per row, or one per row and class."
        )
    if array.shape[1:] == (1,):
        array = array.reshape(-1)
    array = columns_that_count({"scores": array}, sample_weight)["scores"]
    if not from_logits:
        check_probabilities(array, "scores")
        warn_if_swapped(labels, array, "scores", labels_first=False)
        _warn_of_rounding(array)
    return array.astype("float32")


def _warn_of_rounding(probabilities: np.ndarray) -> None:
    """Warns if probabilities are so near to 1 that the nearest float32 is far in logits."""
    if probabilities.dtype.kind != "f" or probabilities.ndim > 1:
        return
    above = probabilities[(probabilities > _NEAR_1) & (probabilities < 1)].astype("float64")
    rounded = logits_of_probabilities(above.astype("float32"))
    num_lost = int(np.sum(np.abs(rounded - logits_of_probabilities(above)) > _LARGEST_LOSS))
    if num_lost:
        warn(
            f"Probabilities near 1 lose their digits in float32, which the calibrated model takes: "
            f"{num_lost:,} of {len(probabilities):,} change by more than {_LARGEST_LOSS} in "
            "logits. Pass logits, log(p) - log1p(-p), with from_logits=True; in float32, they keep "
            "what the probabilities lose."
        )
