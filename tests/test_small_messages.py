"""What users get wrong at the boundary of the package, and what they are told."""

import datetime
import re
import warnings

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

import keras_calibration as kc
import keras_calibration.statistics
import keras_calibration.testing
from symbols import symbols

RNG = np.random.default_rng(0)
N = 400
SITE = np.arange(N) % 20
PRICE = RNG.normal(size=N).astype("float32")
Y = (RNG.random(N) < 0.4).astype(int)
QUICK = {"verbose": 0}


def base():
    inputs = symbols(site="int32", price=(1,))
    return keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(inputs["price"]))


X = {"site": SITE, "price": PRICE[:, None]}
DAY = np.datetime64("2026-01-01") + np.arange(N)
DAY_P = np.linspace(0.1, 0.9, N)
FRAME = pd.DataFrame({"clicked": Y, "p": DAY_P})


def test_a_single_name_is_a_name():
    columns = {"fields": "site", "numeric": "price", "methods": "identity", **QUICK}
    with pytest.warns(UserWarning, match="uses `numeric`: only"):
        kc.calibrate(base(), X, Y, **columns)
    for numeric in ("price", iter(["price"])):
        assert kc.layers.FieldNetwork({"site": 20}, numeric=numeric).numeric == ("price",)
    scores = np.linspace(0.1, 0.9, N)
    with pytest.warns(UserWarning, match="uses `numeric`: only"):
        kc.calibrate_scores(scores, Y, X, **columns)
    with pytest.raises(ValueError, match=r"Received: no 'prise'"):
        kc.calibrate_scores(scores, Y, X, numeric="prise", **QUICK)


def headed():
    head = kc.layers.TemperatureScaling()
    inputs = keras.Input((1,))
    return keras.Model(inputs, keras.layers.Activation("sigmoid")(head(inputs)))


def temperature():
    kc.fit_head(headed(), PRICE[:, None], PRICE > 1, **QUICK)


class Subclassed(keras.Model):
    def call(self, inputs):
        return keras.ops.sigmoid(inputs["price"])


def at(time):
    kc.calibrate_scores(DAY_P, Y, {"day": DAY_P}, time=time, methods="platt", **QUICK)


TIMES = DAY.astype("datetime64[us]").tolist()
ZONED = [day.replace(tzinfo=datetime.UTC) if day.day % 2 else day for day in TIMES]
NAMED = r"`base_model`|labels`|Received: \w+='\w+ "
HINTS = {
    "a time that a head ignores": (
        lambda: kc.layers.PlattScaling().fit(PRICE, Y, time="order"),
        "`time` .*Received: 'order'",
        NAMED,
    ),
    "times that the head of a model ignores": (
        lambda: kc.fit_head(headed(), PRICE[:, None], Y, time=DAY, **QUICK),
        "`time` .*Received: the times",
        NAMED,
    ),
    "one class in calibrate": (
        lambda: kc.calibrate(base(), X, 0 * Y, **QUICK),
        "`y` must hold both",
        NAMED,
    ),
    "one class in fit_head": (
        lambda: kc.fit_head(headed(), PRICE[:, None], 0 * Y, **QUICK),
        "`y` must hold both",
        NAMED,
    ),
    "labels of another code": (
        lambda: kc.calibrate(base(), X, Y + 1, **QUICK),
        r"`y` must be in \[0, 1\]",
        NAMED,
    ),
    "a subclassed model": (
        lambda: kc.calibrate(Subclassed(), X, Y, **QUICK),
        r"`model` must have symbolic.*CalibratedModel",
        NAMED,
    ),
    "an integer output": (
        lambda: kc.calibrate(keras.Model(*2 * [symbols(site="int32")["site"]]), SITE, Y, **QUICK),
        "`model` must return",
        NAMED,
    ),
    "one fold": (lambda: scored(folds=0 * Y), "`folds` .*one fold", NAMED),
    "a time short": (lambda: at(DAY[1:]), "`time` .*399 entries for 400", NAMED),
    "a pair as a list": (lambda: at(["day", 2]), "`time` .*tuple", "nothing else"),
    "three in place of a pair": (lambda: at(("day", 1, 2)), "`time` .*tuple", "nothing else"),
    "a truth value as a gap": (lambda: at(("day", True)), "`gap` .*gap=True", "nothing else"),
    "times with and without a zone": (lambda: at(ZONED), "`time` .*time zone", "nothing else"),
    "halves as groups": (
        lambda: scored(groups=np.arange(N) / 2),
        "`groups` .*whole number.*0.5 in row 1",
        "`numeric`",
    ),
    "a mean that the head cannot correct": (temperature, "PlattScaling", "initialize"),
    "labels that are missing": (lambda: kc.calibrate(base(), X), "labels.*y=None", r"fit\("),
    "probabilities as logits": (
        lambda: kc.layers.PlattScaling().fit(np.linspace(0, 1, N), Y),
        "from_logits=False to the head",
        "nothing else",
    ),
    "a field that the model does not read": (
        lambda: kc.calibrate(base(), X | {"age": SITE}, Y, fields=["age"], **QUICK),
        "pass its scores to `calibrate_scores`",
        "ScoredLog",
    ),
    "a date as a field": (
        lambda: kc.calibrate_scores(DAY_P, Y, {"day": DAY}, fields=["day"], **QUICK),
        "the month as a string",
        "`numeric`",
    ),
    "another field of a head": (
        lambda: kc.layers.FieldBias({"site": 20}).get_offsets("sight"),
        r"`field`.*'sight'\. .* Available: 'site'\.",
        "not in list",
    ),
    "columns of a log by other names": (
        lambda: kc.monitor(kc.logs.ScoredLog(FRAME, timestamp="time")),
        r"'label', 'probability', 'time'\. .*ScoredLog\(",
        "SQL",
    ),
}


@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize("case", HINTS)
def test_hints_name_what_the_function_has(case):
    call, named, not_named = HINTS[case]
    with pytest.raises((ValueError, UserWarning), match=named) as told:
        call()
    assert re.search(not_named, str(told.value)) is None


def scored(**options):
    kc.calibrate_scores(DAY_P, Y, **options, verbose=0)


LOG = kc.logs.ScoredLog(pd.DataFrame({"label": Y, "probability": DAY_P, "at": DAY}), timestamp="at")
HEAD = kc.layers.ILPS
# Name → a call in which that argument is the only wrong one.
WRONG = {
    "methods": lambda: kc.calibrate(base(), X, Y, methods="best", verbose=0),
    "folds": lambda: scored(folds=1),
    "numeric": lambda: scored(features={"day": DAY_P}, fields="day", numeric="day"),
    "scores": lambda: kc.calibrate_scores(DAY_P[:, None, None], Y),
    "weights_are": lambda: kc.layers.PlattScaling().fit(PRICE, Y, weights_are="rows"),
    "forget": lambda: kc.layers.PlattScaling().update(PRICE, Y, forget=2),
    "head": lambda: kc.models.CalibratedModel(base(), "ilps"),
    "calibrated_output": lambda: kc.models.CalibratedModel(base(), HEAD(), calibrated_output="by"),
    "level": lambda: kc.layers.PlattScaling().interval(PRICE, level=1.5),
    "version": lambda: kc.export_savedmodel(headed(), "not_written", X, version=-1),
    "path": lambda: kc.refresh_savedmodel("not_there", DAY_P, Y),
    "num_bins": lambda: kc.metrics.ExpectedCalibrationError(num_bins=0),
    "num_folds": lambda: kc.metrics.CalibratedLogLoss(num_folds=0),
    "num_values": lambda: kc.metrics.FieldECE(0),
    "min_rows": lambda: kc.scoring.multicalibration_error(Y, DAY_P, {"p": DAY_P}, min_rows=0),
    "rows": lambda: kc.scoring.score(Y, [kc.metrics.LogLoss()]),
    "field_metrics": lambda: kc.scoring.score((Y, DAY_P), field_metrics={"site": ["ece"]}),
    "tolerance": lambda: kc.monitor(LOG, tolerance=-1),
    "false_alarms_per_year": lambda: kc.monitor(LOG, false_alarms_per_year=0),
    "confidence": lambda: kc.statistics.mean_difference([1.0, 2.0], [3.0, 4.0], confidence=2),
    "order": lambda: kc.seeds.set_seeds(initialization=1, order=-1),
    "monitor": lambda: kc.callbacks.SeedVariance("not_written", "p", 1, monitor=["loss"]),
    "num_rows": lambda: kc.datasets.generate_click_log(num_rows=0),
    "make_head": lambda: kc.testing.check_head(3),
}


@pytest.mark.parametrize("name", WRONG)
def test_every_door_says_what_an_argument_must_be_and_what_it_is(name):
    with pytest.raises(ValueError, match=rf"(?s)^Argument `{name}` must .*Received: "):
        WRONG[name]()


@pytest.mark.parametrize("verbose", ["loud", -1, None])
def test_another_verbose_is_refused(verbose):
    for door in (
        lambda: kc.calibrate(base(), X, Y, verbose=verbose),
        lambda: kc.calibrate_scores(DAY_P, Y, verbose=verbose),
        lambda: kc.fit_head(headed(), PRICE[:, None], Y, verbose=verbose),
        lambda: kc.layers.PlattScaling().fit(PRICE, Y, verbose=verbose),
        lambda: kc.scoring.score((Y, DAY_P), [kc.metrics.LogLoss()], verbose=verbose),
    ):
        with pytest.raises(ValueError, match=r"^Argument `verbose` must .*Received: "):
            door()


TENSORS = {"tensor": tf.constant, "variable": tf.Variable, "Keras' variable": keras.Variable}
P = DAY_P.astype("float32")
QUIET = {
    "calibrate": lambda of: kc.calibrate(
        base(), {"site": SITE, "price": of(PRICE[:, None])}, of(Y), fields=["site"], **QUICK
    ),
    "calibrate_scores": lambda of: kc.calibrate_scores(
        of(P), of(Y), {"site": of(SITE)}, of(P), fields=["site"], methods="field_bias", **QUICK
    ),
    "a head": lambda of: kc.layers.FieldBias({"site": 20}).fit(
        of(PRICE), of(Y), {"site": of(SITE)}
    ),
    "score": lambda of: kc.scoring.score((of(Y), of(P)), [kc.metrics.CalibratedLogLoss()], **QUICK),
    "a metric of fields": lambda of: kc.metrics.FieldECE(20)(of(Y), of(P), field=of(SITE)),
    "errors of segments": lambda of: kc.scoring.multicalibration_error(of(Y), of(P), {"p": of(P)}),
}


@pytest.mark.tensorflow
@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("of", TENSORS.values(), ids=TENSORS)
@pytest.mark.parametrize("door", ["calibrate_scores", *(door for door in QUIET if "_" not in door)])
def test_tensors_are_read_without_a_warning_of_numpy(door, of):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        # From NumPy 2.4 on, np.array(tensor) warns that TensorFlow knows no argument `copy`.
        warnings.simplefilter("error", DeprecationWarning)
        QUIET[door](of)


TWICE = pd.DataFrame(
    np.c_[SITE, PRICE, PRICE, DAY_P, Y], columns=["site", "price", "price", "p", "y"]
)
MATRIX = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, "sigmoid")])
READERS = {
    "calibrate": lambda: kc.calibrate(base(), TWICE, Y, **QUICK),
    "calibrate, a matrix": lambda: kc.calibrate(MATRIX, TWICE[["price"]], Y, **QUICK),
    "calibrate_scores": lambda: kc.calibrate_scores(DAY_P, Y, TWICE, numeric=["price"], **QUICK),
    "a field": lambda: kc.calibrate_scores(DAY_P, Y, TWICE, fields=["price"], **QUICK),
    "times": lambda: kc.calibrate_scores(DAY_P, Y, TWICE, time="price", **QUICK),
    "a head": lambda: kc.layers.FieldBias({"price": 4}).fit(PRICE, Y, TWICE),
    "a model": lambda: kc.models.CalibratedModel(base(), kc.layers.ILPS())(TWICE),
    "a metric": lambda: kc.scoring.score(
        (Y, DAY_P, None, TWICE), field_metrics={"price": [kc.metrics.FieldECE(4)]}
    ),
    "all columns": lambda: kc.scoring.multicalibration_error(Y, DAY_P, TWICE),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_column_that_occurs_twice_is_not_called_missing(reader):
    with pytest.raises(ValueError, match="several columns 'price'"):
        READERS[reader]()


def test_a_column_that_is_not_read_may_occur_twice():
    model = kc.calibrate_scores(DAY_P, Y, TWICE, fields=["site"], methods="identity", **QUICK)
    assert [*model.input] == ["score", "site"]
