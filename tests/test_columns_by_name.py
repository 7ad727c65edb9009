"""Names of columns in place of arrays, at every door: one data frame, and no label as a feature."""

import keras
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from scipy.special import expit

import keras_calibration as kc
from keras_calibration import layers
from keras_calibration._rows.door import Given, Wanted, rows_of
from keras_calibration.layers import BiasCorrection, FieldBias, PlattScaling
from keras_calibration.metrics import FieldECE, LogLoss
from keras_calibration.scoring import multicalibration_error, score
from site_worlds import model_with

RNG = np.random.default_rng(0)
NUM = 600
LOGIT = RNG.normal(-1.0, 1.2, NUM).round(1)
SITE = RNG.integers(0, 4, NUM)
TABLE = {
    "logit": LOGIT,
    "p": expit(LOGIT),
    "clicked": (RNG.random(NUM) < expit(0.7 * LOGIT + 0.5)).astype(float),
    "site": SITE,
    "weight": RNG.uniform(0.5, 2.0, NUM),
    "count": RNG.integers(0, 4, NUM),
    "customer": np.char.add("c", (np.arange(NUM) // 3).astype(str)),
    "day": RNG.permutation(NUM),
    "note": np.array(["unused"] * NUM, object),
}
FRAMES = {
    "mapping": dict,
    "pandas": pd.DataFrame,
    "shuffled index": lambda table: pd.DataFrame(table).set_axis(RNG.permutation(NUM)),
    "polars": pl.DataFrame,
    "arrow": lambda table: pa.table({**table, "note": ["unused"] * NUM}),
}
OPTIONS = {"fields": ["site"], "methods": ["platt", "field_bias"], "verbose": 0}


def figures(report):
    return [
        [report.chosen, *(v for s in report.scores for v in (s.log_loss, s.log_loss_change_error))],
        report.cross_fitted.logits[report.chosen].tolist(),
    ]


def named(frame, **names):
    """A report by the names of columns, and by the columns themselves."""
    order = ("scores", "labels", "sample_weight", "groups", "time")
    arrays = {n: TABLE[v] if n in order else v for n, v in names.items()}
    columns = {"site": SITE}
    return [
        kc.calibrate_scores(features=features, **OPTIONS, **arguments).report
        for features, arguments in ((frame, names), (columns, arrays))
    ]


@pytest.mark.parametrize("kind", FRAMES)
def test_calibrate_scores_of_one_frame(kind):
    frame = FRAMES[kind](TABLE)
    for names in (
        {"scores": "p", "labels": "clicked"},
        {"scores": "logit", "labels": "clicked", "from_logits": True, "sample_weight": "weight"},
    ):
        by_name, by_array = named(frame, **names)
        assert figures(by_name) == figures(by_array)


@pytest.mark.parametrize(
    "names",
    [
        {"sample_weight": "count", "weights_are": "counts"},
        {"groups": "customer"},
        {"time": "day"},
        {"sample_weight": "weight", "groups": "customer"},
    ],
)
def test_with_all_other_arguments(names):
    names = {"scores": "logit", "labels": "clicked", "from_logits": True, **names}
    by_name, by_array = named(pd.DataFrame(TABLE), **names)
    assert figures(by_name) == figures(by_array)


def test_no_field_is_needed():
    report = kc.calibrate_scores("p", "clicked", TABLE, methods="platt", verbose=0).report
    other = kc.calibrate_scores(TABLE["p"], TABLE["clicked"], methods="platt", verbose=0).report
    assert figures(report) == figures(other)
    groups = TABLE["customer"]
    options = {"methods": "platt", "verbose": 0}
    expected = kc.calibrate_scores(TABLE["p"], TABLE["clicked"], groups=groups, **options).report
    for scores, labels in (("p", "clicked"), (TABLE["p"], TABLE["clicked"])):
        report = kc.calibrate_scores(scores, labels, TABLE, groups="customer", **options).report
        assert figures(report) == figures(expected)
    by_order = {"order": SITE}
    report = kc.calibrate_scores(
        TABLE["p"], TABLE["clicked"], by_order, fields=["order"], **options
    ).report
    assert "order" in report.before.field_ece
    # Columns that nothing names are still refused, also if time is no column.
    for time in (None, "order"):
        with pytest.raises(ValueError, match="`fields`"):
            kc.calibrate_scores(TABLE["p"], TABLE["clicked"], TABLE, time=time, **options)


def test_the_model_has_the_same_inputs():
    model = kc.calibrate_scores("p", "clicked", pd.DataFrame(TABLE), **OPTIONS)
    assert {tensor.name for tensor in model.inputs} == {"score", "site"}
    served = model.predict({"score": TABLE["p"][:5], "site": SITE[:5]}, verbose=0)
    assert served.shape == (5, 1)
    # A column of this name may hold the scores.
    again = kc.calibrate_scores("score", "clicked", {**TABLE, "score": TABLE["p"]}, **OPTIONS)
    assert figures(again.report) == figures(model.report)


def base_model():
    inputs = {"logit": keras.Input((), name="logit"), "site": keras.Input((), name="site")}
    outputs = keras.layers.Activation("sigmoid")(keras.layers.Reshape((1,))(inputs["logit"]))
    return keras.Model(inputs, outputs)


def by_calibrate(labels, weight, table):
    return figures(kc.calibrate(base_model(), table, labels, weight, **OPTIONS).report)


def by_calibrate_scores(labels, weight, table):
    return figures(kc.calibrate_scores("p", labels, table, weight, **OPTIONS).report)


def by_fit_head(labels, weight, table):
    model = model_with(FieldBias({"site": 4}))
    x = pd.DataFrame(table).rename(columns={"logit": "score"})
    summary = kc.fit_head(model, x, labels, weight, verbose=0)
    return [summary.log_loss_in_sample, summary.change]


def by_fit(labels, weight, table):
    head = FieldBias({"site": 4})
    loss = head.fit("logit", labels, table, weight).log_loss_in_sample
    return [loss, *np.asarray(head(LOGIT, {"site": SITE}))[:, 0]]


def by_refresh(labels, weight, table, folder):
    head = PlattScaling()
    head.fit(LOGIT - 1, TABLE["clicked"])  # so that the rows below gain
    first = kc.export_savedmodel(model_with(head), folder / "1")
    how = {"from_logits": True, "dry_run": True, "verbose": 0}
    refreshed = kc.refresh_savedmodel(first, "logit", labels, table, weight, **how)
    return [refreshed.summary.log_loss_in_sample]


def by_multicalibration(labels, weight, table):
    few = {name: table[name] for name in ("p", "clicked", "weight", "site") if name in table}
    if not isinstance(labels, str):
        few = {name: few[name] for name in ("p", "site")}
    found = multicalibration_error(labels, "p", few, weight)
    return [[segment.name, segment.error] for segment in found.segments]


def by_score(labels, weight, table):
    metrics = {"field_metrics": {"site": FieldECE(4)}, "verbose": 0}
    return sorted(score((labels, "p", weight, table), [LogLoss()], **metrics).items())


DOORS = [by_calibrate, by_calibrate_scores, by_fit_head, by_fit, by_multicalibration, by_score]


@pytest.mark.parametrize("door", DOORS)
def test_every_door(door):
    assert door("clicked", "weight", TABLE) == door(TABLE["clicked"], TABLE["weight"], TABLE)
    with pytest.raises(ValueError, match=r"`(y|labels)`.*'click'.*'clicked'"):
        door("click", None, TABLE)
    with pytest.raises(ValueError, match=r"`sample_weight`.*'weights'.*'weight'"):
        door("clicked", "weights", TABLE)


@pytest.mark.parametrize("door", [by_calibrate, by_calibrate_scores, by_fit_head, by_fit, by_score])
def test_a_feature_is_no_label_and_no_weight(door):
    table = {**TABLE, "site": TABLE["clicked"].astype(int)}
    with pytest.raises(ValueError, match=r"`(y|labels)`.*'site'"):
        door("site", None, table)
    with pytest.raises(ValueError, match=r"`sample_weight`.*'site'"):
        door("clicked", "site", table)


@pytest.mark.parametrize("column", ["p", "clicked", "weight"])
@pytest.mark.parametrize("as_feature", ["fields", "numeric"])
def test_columns_with_a_role_are_no_features(column, as_feature):
    table = {**TABLE, "p": np.round(TABLE["p"]) / 2 + 0.25}
    with pytest.raises(ValueError, match=rf"`(scores|labels|sample_weight)`.*'{column}'"):
        kc.calibrate_scores("p", "clicked", table, "weight", **{as_feature: [column]}, verbose=0)


def test_refresh(tmp_path):
    by_name = by_refresh("clicked", "weight", TABLE, tmp_path / "a")
    assert by_name == by_refresh(TABLE["clicked"], TABLE["weight"], TABLE, tmp_path / "b")


def test_an_input_of_the_model_is_no_label_but_may_be_a_weight():
    with pytest.raises(ValueError, match=r"`y`.*'logit'"):
        kc.calibrate(base_model(), {**TABLE, "logit": TABLE["clicked"]}, "logit", verbose=0)
    few = {name: TABLE[name] for name in ("logit", "site", "clicked")}
    few["site"] = few["site"] + 0.5
    options = {"methods": "bias", "verbose": 0}
    by_name = kc.calibrate(base_model(), few, "clicked", "site", **options).report
    arrays = few["clicked"], few["site"]
    assert figures(by_name) == figures(kc.calibrate(base_model(), few, *arrays, **options).report)


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_a_table_that_becomes_one_matrix_has_features_alone(frame):
    """The label would be a feature of the base model, and of the right shape for one more."""
    few = {name: TABLE[name] for name in ("logit", "p")}
    table = frame({**few, **{n: TABLE[n] for n in ("clicked", "weight", "customer")}})
    base = keras.Sequential(
        [keras.Input((2,)), keras.layers.Dense(1, "sigmoid", kernel_initializer="ones")]
    )
    arrays = np.stack([*few.values()], axis=1)
    options = {"methods": "bias", "verbose": 0}
    by_name = kc.calibrate(base, table, "clicked", "weight", groups="customer", **options).report
    other = (TABLE["clicked"], TABLE["weight"])
    expected = kc.calibrate(base, arrays, *other, groups=TABLE["customer"], **options).report
    assert figures(by_name) == figures(expected)


def test_several_outputs():
    inputs = {"logit": keras.Input((1,), name="logit")}
    outputs = {
        name: keras.layers.Activation("sigmoid", name=name)(inputs["logit"]) for name in "ab"
    }
    model = keras.Model(inputs, outputs)
    table = {"logit": LOGIT[:, None], "clicked": TABLE["clicked"]}
    options = {"methods": "bias", "verbose": 0}
    by_name = kc.calibrate(model, table, {"b": "clicked"}, **options).report
    other = kc.calibrate(model, table, {"b": TABLE["clicked"]}, **options).report
    assert figures(by_name) == figures(other)


def test_all_columns_means_all_others():
    rows = rows_of(Given("logit", "clicked", "weight", TABLE), Wanted(None))
    assert [*rows.features] == [n for n in TABLE if n not in ("logit", "clicked", "weight")]
    found = multicalibration_error(
        "clicked", "p", pd.DataFrame(TABLE)[["p", "clicked", "site", "customer"]], groups="customer"
    )
    assert all("site" in s.name for s in found.segments if s.name != "all rows")


def test_repeated_columns_are_told_with_groups_too():
    frame = pd.DataFrame(np.stack([TABLE["p"], SITE, SITE, SITE]).T, columns=["p", "a", "a", "g"])
    for groups in (None, "g"):
        with pytest.raises(ValueError, match=r"`features`.*'a'"):
            multicalibration_error(TABLE["clicked"], "p", frame, groups=groups)


def test_without_a_table():
    with pytest.raises(ValueError, match=r"`scores`.*'p'.*`features`"):
        kc.calibrate_scores("p", "clicked")
    with pytest.raises(ValueError, match=r"`labels`.*'clicked'.*`features`"):
        kc.calibrate_scores(pd.DataFrame(TABLE), "clicked")
    with pytest.raises(ValueError, match=r"`logits`.*'p'"):
        BiasCorrection().fit("p", TABLE["clicked"])
    with pytest.raises(ValueError, match=r"`labels`.*'clicked'"):
        layers.ILPS().fit(LOGIT, "clicked", LOGIT)
    with pytest.raises(ValueError, match=r"`y`.*'clicked'"):
        kc.fit_head(model_with(PlattScaling()), {"score": LOGIT}, "clicked")


def test_one_column_is_not_two_arguments():
    for names in (("p", "p"), ("p", "clicked", "clicked")):
        with pytest.raises(ValueError, match="nothing else uses"):
            kc.calibrate_scores(*names[:2], TABLE, *names[2:], verbose=0)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, "sigmoid")])
    few = pd.DataFrame({name: TABLE[name] for name in ("logit", "p", "clicked")})
    with pytest.raises(ValueError, match="nothing else uses"):
        kc.calibrate(model, few, "clicked", "clicked", verbose=0)
    with pytest.raises(ValueError, match=r"predictions|labels"):
        multicalibration_error("clicked", "clicked", TABLE)
