"""Rows that belong together, at every door: folds and errors by group, and what is refused."""

import warnings

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from scipy.special import expit

import every_head
import keras_calibration as kc
from keras_calibration import layers
from keras_calibration.scoring import multicalibration_error
from site_worlds import model_with
from tiers import slow_except

RNG = np.random.default_rng(0)
NUM_GROUPS, SIZE = 150, 4
GROUP = np.repeat(np.arange(NUM_GROUPS), SIZE)
# The labels of a customer are equal, and the logits nearly so: on average, they are right.
LOGITS = (np.repeat(RNG.normal(-1, 1, NUM_GROUPS), SIZE) + RNG.normal(0, 1e-3, len(GROUP))).astype(
    "float32"
)
SITES = np.repeat(RNG.integers(0, 4, NUM_GROUPS), SIZE).astype("int32")
LABELS = (np.repeat(RNG.random(NUM_GROUPS), SIZE) < expit(LOGITS)).astype(float)
ROWS = {"score": LOGITS, "site": SITES}


def by_calibrate(x, labels, **how):
    inputs = {"score": keras.Input((), name="score"), "site": keras.Input((), name="site")}
    outputs = keras.layers.Activation("sigmoid")(keras.layers.Reshape((1,))(inputs["score"]))
    options = {"methods": ["bias", "platt"], "verbose": 0}
    report = kc.calibrate(keras.Model(inputs, outputs), x, labels, **options, **how).report
    return report.scores[-1].log_loss_change, report.scores[-1].log_loss_change_error


def by_calibrate_scores(x, labels, **how):
    options = {"from_logits": True, "fields": ["site"], "methods": ["bias", "platt"], "verbose": 0}
    report = kc.calibrate_scores(x["score"], labels, x, **options, **how).report
    return report.scores[-1].log_loss_change, report.scores[-1].log_loss_change_error


def by_fit_head(x, labels, **how):
    model = model_with(layers.PlattScaling())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The fit of the head predicts")
        summary = kc.fit_head(model, x, labels, verbose=0, **how)
    return summary.change, summary.change_error


def by_multicalibration_error(x, labels, **how):
    errors = multicalibration_error(labels, expit(np.asarray(x["score"])), x, **how)
    return errors.p_value, errors.smallest_detectable


DOORS = [by_calibrate, by_calibrate_scores, by_fit_head, by_multicalibration_error]
FAR = GROUP + 2**53 + 1  # neighbours are equal in float64
TYPES = {
    "strings": np.char.add("customer ", GROUP.astype(str)),
    "large": FAR,
    "column": GROUP[:, None].astype(float),
    "list": [f"{number}é" for number in GROUP],
    "nullable": pd.Series(FAR, dtype="Int64"),
    "category": pd.Series(GROUP.astype(str), dtype="category"),
    "bytes": np.char.add("b", GROUP.astype(str)).astype("S"),
}


@pytest.mark.parametrize("door", DOORS)
def test_errors_are_those_of_groups_whatever_type_names_them(door):
    alone, expected = door(ROWS, LABELS), door(ROWS, LABELS, groups=GROUP)
    # Four rows that tell what one does.
    assert expected[1] > 1.6 * alone[1]
    names = TYPES if door is by_calibrate_scores else ["large", "nullable"]
    for groups in map(TYPES.get, names):
        assert door(ROWS, LABELS, groups=groups) == pytest.approx(expected, rel=1e-12)
    frame = pd.DataFrame({**ROWS, "customer": TYPES["nullable"]})
    assert door(frame, LABELS, groups="customer") == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("door", DOORS)
def test_order_and_rows_of_weight_0_change_nothing(door):
    expected = door(ROWS, LABELS, groups=GROUP)
    order = RNG.permutation(len(GROUP) + 20)
    weights = np.append(np.ones(len(GROUP)), np.zeros(20))[order]
    x = {name: np.append(column, column[:20])[order] for name, column in ROWS.items()}
    groups = np.append(TYPES["strings"].astype(object), [None] * 20)[order]
    labels = np.append(LABELS, LABELS[:20])[order]
    received = door(x, labels, sample_weight=weights, groups=groups)
    assert received == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    ("groups", "told"),
    [
        (np.where(GROUP == 3, None, GROUP), "`groups`.*each row"),
        (np.where(GROUP == 3, np.nan, GROUP), "`groups`.*each row"),
        (GROUP[:-1], "599 entries"),
        (np.stack([GROUP, GROUP], axis=1), r"`groups`.*\(600, 2\)"),
        ("customer", "`groups`.*'customer'"),
        (GROUP + 0.5, "`groups`"),
    ],
)
def test_what_is_no_group_of_each_row_is_refused(door, groups, told):
    with pytest.raises(ValueError, match=told):
        door(ROWS, LABELS, groups=groups)


@pytest.mark.parametrize("door", [by_calibrate, by_fit_head])
def test_a_data_set_may_have_the_columns_of_groups_and_times(door):
    columns = {**ROWS, "customer": TYPES["strings"], "day": GROUP}
    data = tf.data.Dataset.from_tensor_slices((columns, LABELS)).batch(100)
    hows = [({"groups": "customer"}, {"groups": GROUP})]
    if door is by_calibrate:
        hows.append(({"groups": "customer", "time": "day"}, {"groups": GROUP, "time": GROUP}))
    for named, given in hows:
        assert door(data, None, **named) == pytest.approx(door(ROWS, LABELS, **given), rel=1e-6)


def test_folds_that_divide_a_group_are_refused():
    fold = np.arange(len(GROUP)) % 3
    for door in (by_calibrate, by_calibrate_scores):
        with pytest.raises(ValueError, match=r"`folds`.*up to 300 groups"):
            door(ROWS, LABELS, groups=GROUP, folds=fold)
        assert door(ROWS, LABELS, groups=GROUP, folds=GROUP % 3)[1] > 0
    model = model_with(every_head.trees(layers.FieldBias({"site": 4}), {"site": 4}, []))
    with pytest.raises(ValueError, match="`folds`"):
        kc.fit_head(model, ROWS, LABELS, groups=GROUP, settings=layers.FitSettings(folds=fold))


def test_times_and_groups_give_the_larger_error():
    times = np.repeat(RNG.permutation(NUM_GROUPS), SIZE)
    (_, blocks), (_, both) = (
        by_calibrate_scores(ROWS, LABELS, time=times, **how) for how in ({}, {"groups": GROUP})
    )
    assert both >= blocks


@pytest.mark.slow
def test_a_right_model_is_left_alone_and_its_error_is_the_spread():
    """Of 40 samples of 150 customers; without `groups`, the error is half of the spread."""
    changes, errors, changed = [], [], 0
    for seed in range(40):
        r = np.random.default_rng(seed)
        logits = np.repeat(r.normal(-1, 1, NUM_GROUPS), SIZE)
        labels = (np.repeat(r.random(NUM_GROUPS), SIZE) < expit(logits)).astype(float)
        scores = logits + r.normal(0, 1e-3, len(logits))
        options = {"from_logits": True, "methods": ["bias", "platt"], "groups": GROUP, "verbose": 0}
        report = kc.calibrate_scores(scores, labels, **options).report
        changes.append(report.scores[1].log_loss_change)
        errors.append(report.scores[1].log_loss_change_error)
        changed += report.chosen != "identity"
    assert 0.75 < np.mean(errors) / np.std(changes, ddof=1) < 1.4
    assert changed <= 4


@pytest.mark.parametrize(
    "name", slow_except(["FieldBias"], ["FieldBias", "FieldILPS", "BoostedTrees", "network"])
)
def test_fit_head_leaves_a_right_model_alone_on_repeated_rows(name):
    """As `calibrate` does: one warning, equal rows in one fold and one in the error."""
    many = {"site": 60}
    head = {
        "FieldBias": lambda: layers.FieldBias(many),
        "FieldILPS": lambda: layers.FieldILPS(many),
        "BoostedTrees": lambda: layers.BoostedTrees(many),
        "network": lambda: layers.NeuralCalibration(
            layers.ILPS(), layers.FieldNetwork(many, seed=0)
        ),
    }[name]()
    r = np.random.default_rng(5)
    again = np.tile(np.arange(600), 4)
    score = r.normal(-1, 1, 600).astype("float32")
    x = {"score": score[again], "site": r.integers(0, 60, 600).astype("int32")[again]}
    labels = (r.random(600) < expit(score)).astype(float)[again]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        summary = kc.fit_head(model_with(head), x, labels, verbose=0)
    told = [str(w.message) for w in caught if "600 different rows, up to 4 times" in str(w.message)]
    assert len(told) == 1
    # Without protection, it is better by five errors or more.
    assert summary.change > -summary.change_error


def test_a_head_with_its_own_folds_is_told_of_repeated_rows():
    again = np.tile(np.arange(300), 3)
    score = RNG.normal(-1, 1, 300)[again]
    labels = (np.tile(RNG.random(300), 3) < expit(score)).astype(float)
    features = {"site": RNG.integers(0, 150, 300)[again], "ad": RNG.integers(0, 150, 300)[again]}
    heads = layers.FieldBias({"site": 150, "ad": 150}), layers.BoostedTrees({"site": 150})
    for head in heads:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            head.fit(score, labels, features)
        told = [w for w in caught if "900 rows of the development set are 300" in str(w.message)]
        assert len(told) == 1


@pytest.mark.slow
def test_a_refresh_takes_groups(tmp_path):
    model = model_with(layers.PlattScaling())
    kc.fit_head(model, ROWS, LABELS, groups=GROUP, verbose=0, only_if_better=False)
    path = kc.export_savedmodel(model, tmp_path / "1")
    served = {"predictions": LOGITS, "labels": LABELS, "from_logits": True}
    kc.refresh_savedmodel(path, **served, groups=GROUP)
    with pytest.raises(ValueError, match="`groups` must have the group"):
        kc.refresh_savedmodel(path, **served, groups=np.where(GROUP == 3, None, GROUP))


def test_rates_with_trials_as_counts_have_the_errors_of_the_grouped_trials():
    rng = np.random.default_rng(0)
    trials, logits = rng.integers(50, 90, 900), rng.normal(-1, 1, 900)
    events = rng.binomial(trials, expit(0.6 * logits - 0.5))
    options = {"from_logits": True, "methods": ["platt"], "weights_are": "counts", "verbose": 0}
    with pytest.warns(UserWarning, match="groups|equal"):
        soft = kc.calibrate_scores(logits, events / trials, None, trials, **options)
    # Each row twice: its events, and the trials without.
    columns = np.tile(logits, 2), np.repeat([1, 0], 900), None, np.append(events, trials - events)
    twice = kc.calibrate_scores(*columns, groups=np.tile(np.arange(900), 2), **options)
    # Apart from the package: all rows fitted, each with the sum of its trials' losses.
    one, other = (model.report.after for model in (soft, twice))
    assert one.log_loss == pytest.approx(other.log_loss, rel=1e-3)
    assert one.log_loss_change_error == pytest.approx(other.log_loss_change_error, rel=0.02)
    inputs = {"score": logits}
    fitted = twice.predict(inputs, verbose=0).reshape(-1).astype(float)
    changes = [
        events * np.log(p) + (trials - events) * np.log1p(-p) for p in (expit(logits), fitted)
    ]
    change = changes[0] - changes[1]
    away = change - trials * change.sum() / trials.sum()
    error = np.sqrt(900 / 899 * (away**2).sum()) / trials.sum()
    assert other.log_loss_change_error == pytest.approx(error, rel=0.02)
