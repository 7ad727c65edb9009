"""What all doors for a fit, and for scored rows, do alike."""

import warnings

import keras
import numpy as np
import pandas as pd
import pytest

import keras_calibration as kc
from keras_calibration.logs import ScoredLog
from tiers import slow_except

pytestmark = pytest.mark.tensorflow

NUM_ROWS = 400
RNG = np.random.default_rng(0)
LOGITS = RNG.normal(-1, 1, NUM_ROWS)
PRICES = RNG.random(NUM_ROWS) + 0.1
LABELS = (RNG.random(NUM_ROWS) < 1 / (1 + np.exp(-LOGITS - 2 * PRICES + 1))).astype(float)
P = 1 / (1 + np.exp(-LOGITS))


def make_model():
    """A head that reads a numeric column, on the input of the score."""
    inputs = {name: keras.Input((), name=name) for name in ("score", "price")}
    column = keras.layers.Reshape((1,))(inputs["score"])
    base = keras.Model(inputs, keras.layers.Activation("sigmoid")(column))
    return kc.models.CalibratedModel(base, head_of())


def head_of():
    return kc.layers.FieldBias((), numeric=["price"])


def calibrate(logits, features, weights=None):
    model = kc.calibrate_scores(
        logits,
        LABELS,
        features,
        weights,
        from_logits=True,
        numeric=["price"],
        methods="additive",
        verbose=0,
    )
    return model.report.after.log_loss


def calibrate_model(logits, features, weights=None):
    x = {"score": logits, **features}
    how = {"numeric": ["price"], "methods": "additive", "verbose": 0}
    model = kc.calibrate(make_model().base_model, x, LABELS, weights, **how)
    return model.report.after.log_loss


def fit_head(logits, features, weights=None):
    x = {"score": logits, **features}
    summary = kc.fit_head(make_model(), x, LABELS, weights, only_if_better=False, verbose=0)
    return summary.log_loss_in_sample


def fit(logits, features, weights=None):
    return head_of().fit(logits, LABELS, features, weights).log_loss_in_sample


def fit_calibrator(logits, features):
    frame = pd.DataFrame({"label": LABELS, "logit": logits, **features})
    log = ScoredLog(frame, logit="logit")
    return kc.fit_calibrator(head_of(), log, verbose=0).log_loss_in_sample


FITS = {
    "calibrate": calibrate_model,
    "calibrate_scores": calibrate,
    "fit_head": fit_head,
    "Head.fit": fit,
    "fit_calibrator": fit_calibrator,
}


def beyond(case):
    """Prices of which float32 does not hold all or many."""
    some = np.arange(NUM_ROWS) % 50 == 0
    return {
        "too small": 1e-40 * PRICES,
        "zero in float32": 1e-60 * PRICES,
        "2 % too small": np.where(some, 1e-40, PRICES),
        "one too large": np.where(np.arange(NUM_ROWS) == 7, 1e39, PRICES),
        "too large": 3e38 * PRICES,
        "far apart": 10.0 ** (-300 * PRICES),
    }[case]


@pytest.mark.parametrize(
    "case",
    ["too small", "zero in float32", "2 % too small", "one too large", "too large", "far apart"],
)
@pytest.mark.parametrize("door", FITS)
@pytest.mark.filterwarnings("ignore:.*ids or field values as floats")
def test_columns_that_float32_does_not_hold_are_refused(door, case):
    with pytest.raises(ValueError, match=r"(?s)'price'.*float32.*Divide"):
        FITS[door](LOGITS, {"price": beyond(case)})


@pytest.mark.parametrize("door", ["calibrate", "calibrate_scores", "fit_head", "Head.fit"])
def test_few_small_numbers_and_rows_of_weight_0_are_no_matter(door):
    weights = (np.arange(NUM_ROWS) > 9).astype(float)
    plain = np.where(np.arange(NUM_ROWS) == 20, 0.0, PRICES)
    prices = np.where(np.arange(NUM_ROWS) == 20, 1e-40, np.where(weights == 0, 1e39, PRICES))
    expected = FITS[door](LOGITS, {"price": plain}, weights)
    received = FITS[door](LOGITS, {"price": prices}, weights)
    assert received == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("unit", [1e-39, 1e-300, 1e38, 1e300])
@pytest.mark.parametrize("classes", [False, True])
def test_scores_that_float32_does_not_hold_are_refused(unit, classes):
    scores = np.stack([LOGITS, 2 * LOGITS, -LOGITS], axis=1) if classes else LOGITS
    labels = np.arange(NUM_ROWS) % 3 if classes else LABELS
    for name, unit_of in (("scores", unit), ("logits", unit)):
        head = kc.layers.VectorScaling(3) if classes else kc.layers.PlattScaling()
        doors = {
            "scores": lambda s: kc.calibrate_scores(s, labels, from_logits=True, verbose=0),
            "logits": lambda s, head=head: head.fit(s, labels),
        }
        with pytest.raises(ValueError, match=f"(?s)`{name}`.*float32.*Divide"):
            doors[name](unit_of * scores)


@pytest.mark.parametrize("door", ["calibrate_scores", "Head.fit", "multicalibration_error"])
def test_columns_whose_names_are_the_same_text_are_refused(door):
    frame = pd.DataFrame({0: PRICES, "0": PRICES, "price": PRICES})
    doors = {
        "calibrate_scores": lambda: kc.calibrate_scores(P, LABELS, frame, numeric=["0"]),
        "Head.fit": lambda: kc.layers.FieldBias((), numeric=["0"]).fit(LOGITS, LABELS, frame),
        "multicalibration_error": lambda: kc.scoring.multicalibration_error(LABELS, P, frame),
    }
    with pytest.raises(ValueError, match="several columns '0'"):
        doors[door]()
    assert np.isfinite(fit(LOGITS, frame))  # a column that is there once


SCORED = {
    "multicalibration_error": lambda logits: (
        kc.scoring.multicalibration_error(LABELS, logits, {"price": PRICES}, from_logits=True).error
    ),
    "score": lambda logits: kc.scoring.score(
        (LABELS, logits), kc.metrics.LogLoss(from_logits=True, name="it"), verbose=0
    )["it"],
    "update": lambda logits: kc.layers.ILPS().update(logits, LABELS).log_loss_in_sample,
}


@pytest.mark.parametrize("scale", slow_except([300.0], [1.0, 300.0]))
@pytest.mark.parametrize("door", [*FITS, *SCORED])
def test_a_program_in_which_numpy_raises_gets_the_same(door, scale):
    """A program may have `np.seterr(all="raise")`; numbers that round to 0 are no error."""
    logits, features = scale * LOGITS, {"price": PRICES}

    def run():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return FITS[door](logits, features) if door in FITS else SCORED[door](logits)

    expected = run()
    with np.errstate(all="raise"):
        assert run() == pytest.approx(expected, abs=1e-12)
        with pytest.raises(FloatingPointError):
            np.exp(-1000.0)  # the program's own numbers still raise


SITES = np.arange(NUM_ROWS) % 3
OF_EACH_ROW = {
    "logits": LOGITS,
    "labels": LABELS,
    "price": PRICES,
    "site": SITES,
    "groups": np.arange(NUM_ROWS) // 4,
    "folds": np.arange(NUM_ROWS) // 40 % 3,
    "time": np.arange(NUM_ROWS) // 7 * 1.0,
}


def of_scores(weights, logits, labels, price, site, **more):
    features = {"price": price, "site": site}
    how = {"from_logits": True, "fields": ["site"], "numeric": ["price"], "methods": "additive"}
    rows = (logits, labels, features, weights)
    return kc.calibrate_scores(*rows, **how, **more, verbose=0).report.after.log_loss


def of_model(weights, logits, labels, price, site, **more):
    inputs = {name: keras.Input((), name=name) for name in ("score", "price", "site")}
    column = keras.layers.Reshape((1,))(inputs["score"])
    model = keras.Model(inputs, keras.layers.Activation("sigmoid")(column))
    how = {"fields": ["site"], "numeric": ["price"], "methods": "additive", "verbose": 0}
    x = {"score": logits, "price": price, "site": site}
    return kc.calibrate(model, x, labels, weights, **how, **more).report.after.log_loss


def of_trees(weights, logits, labels, price, site, groups=None, folds=None, time=None):
    follows_time = time is not None
    inner = kc.layers.FieldBias({"site": 3}, follows_time=follows_time)
    head = kc.layers.BoostedTrees({"site": 3}, ["price"], inner)
    settings = kc.layers.FitSettings(folds=None if follows_time else folds)
    features = {"price": price, "site": site}
    given = (logits, labels, features, weights)
    return head.fit(*given, time=time, settings=settings).log_loss_in_sample


def of_update(weights, logits, labels, price, site, **more):
    return kc.layers.ILPS().update(logits, labels, None, weights).log_loss_in_sample


OF_ROWS = {
    "calibrate_scores": of_scores,
    "calibrate": of_model,
    "Head.fit": of_trees,
    "update": of_update,
}


def not_read(column, weightless):
    column = np.asarray(column).astype(object)
    column[weightless] = np.resize(np.array([None, "n/a"], object), weightless.sum())
    return column


@pytest.mark.parametrize("left_out", [("time",), ("groups", "folds")])
@pytest.mark.parametrize("door", OF_ROWS)
def test_a_row_of_weight_0_may_hold_anything_at_every_door_of_a_fit(door, left_out):
    weightless = np.arange(NUM_ROWS) % 5 == 2
    columns = {name: c for name, c in OF_EACH_ROW.items() if name not in left_out}
    kept = {name: column[~weightless] for name, column in columns.items()}
    hostile = {name: not_read(column, weightless) for name, column in columns.items()}
    expected = OF_ROWS[door](np.ones(len(kept["labels"])), **kept)
    received = OF_ROWS[door]((~weightless).astype(float), **hostile)
    assert received == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("wrong", ["logits", "labels", "price", "site", "groups", "folds", "time"])
@pytest.mark.parametrize("door", ["calibrate_scores", "calibrate"])
def test_a_column_of_another_length_is_refused_also_with_rows_of_weight_0(door, wrong):
    without = "folds" if wrong == "time" else "time"
    columns = {name: c for name, c in OF_EACH_ROW.items() if name not in (without, "groups")}
    columns |= {wrong: OF_EACH_ROW[wrong]}
    weights = (np.arange(NUM_ROWS) > 9).astype(float)
    # As many rows as count: an array that was cut by the user, and would be taken for another.
    columns[wrong] = columns[wrong][10:]
    with pytest.raises(ValueError, match=r"same number of rows|one (entry )?for each"):
        OF_ROWS[door](weights, **columns)


@pytest.mark.parametrize(
    ("door", "name"), [("calibrate_scores", "scores"), ("Head.fit", "logits"), ("update", "logits")]
)
def test_messages_name_the_scores_as_the_user_does(door, name):
    columns = {key: OF_EACH_ROW[key] for key in ("logits", "labels", "price", "site")}
    not_a_number = np.where(np.arange(NUM_ROWS) == 7, np.nan, LOGITS)
    weights = (np.arange(NUM_ROWS) > 3).astype(float)
    with pytest.raises(ValueError, match=rf"(?i)^(argument `)?{name}.* in row 7"):
        OF_ROWS[door](weights, **columns | {"logits": not_a_number})
    with pytest.raises(ValueError, match=f"'{name}': {NUM_ROWS}, 'labels': 9"):
        OF_ROWS[door](None, **columns | {"labels": LABELS[:9]})
    with pytest.raises(ValueError, match=f"^Input {name} must be numbers"):
        OF_ROWS[door](None, **columns | {"logits": LOGITS.astype(str)})
