"""`score` of a scored log: the numbers of the streaming metrics, from sums of SQL."""

import functools
import itertools

import keras
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends import digits
from keras_calibration.logs import LogSums, ScoredLog, log_sums
from keras_calibration.metrics import (
    CalibratedLogLoss,
    CalibrationRatio,
    ExpectedCalibrationError,
    FieldECE,
    FieldRCE,
    LogitAUC,
    LogLoss,
    NormalizedEntropy,
)
from keras_calibration.scoring import field_ece, field_rce, log_queries, score, score_by_period
from metric_cases import scored_metrics

RNG = np.random.default_rng(3)
N = 500
P = 1 / (1 + np.exp(-RNG.normal(-2, 3, N)))
Y = (RNG.random(N) < P**0.8).astype(int)
W = RNG.exponential(size=N)
# Quotes, an empty text, NUL, and a value that looks like SQL.
NAMES = np.array(["a", 'b"', "c'", "", "d\0e", "'; DROP TABLE log; --", "ümlaut", "f\n"], object)
SITE = RNG.integers(0, len(NAMES), N)
DEVICE = RNG.integers(0, 3, N)
AT = np.datetime64("2026-03-01T00:00:00", "s") + RNG.integers(0, 4 * 86400, N)
TIGHT, BOUND = digits(1e-12, 1e-5), digits(1e-6, 2e-5)


def frame(**replaced):
    columns = {"label": Y, "probability": P, "weight": W, "site": NAMES[SITE], "at": AT}
    return pd.DataFrame(
        {**columns, "device": DEVICE, "site_id": SITE, "number": np.arange(N), **replaced}
    )


@functools.cache
def streamed(has_weights=False):
    """What batches of the rows give."""
    by_field = {"site_id": [FieldECE(8), FieldRCE(8)]}
    rows = (Y, P, W if has_weights else None, {"site_id": SITE})
    return score(rows, scored_metrics(), by_field, verbose=0)


@pytest.mark.parametrize("form", ["texts", "categories", "without weights", "logits"])
def test_the_numbers_of_the_streaming_metrics(form):
    site = pd.Categorical(NAMES[SITE]) if form == "categories" else NAMES[SITE]
    rows, options = frame(site=site), {"sample_weight": "weight"}
    if form == "without weights":
        options = {}
    if form == "logits":
        rows = frame(z=np.log(P / (1 - P))).drop(columns="probability")
        options["logit"] = "z"
    log = ScoredLog(rows, fields=["site", "site_id"], **options)
    scores, expected = score(log, scored_metrics(), verbose=0), streamed(form != "without weights")
    for name, value in expected.items():
        by_bins = form == "logits" or name in ("calibrated_log_loss", "of_three", "held_out")
        bound = BOUND if by_bins else TIGHT
        assert scores[name] == pytest.approx(value, rel=bound, abs=bound * 0.1), name
        if "site_id" in name:
            assert scores[name.replace("_id", "")] == pytest.approx(scores[name], rel=digits(1e-13))


def test_metrics_without_sums_get_batches_in_order():
    def others():
        return [ExpectedCalibrationError(), LogitAUC(), keras.metrics.AUC(name="keras_auc")]

    rows = (Y, P, W)
    log = ScoredLog(frame(), sample_weight="weight")
    scores = score(log, [*others(), LogLoss()], verbose=0)
    expected = score(rows, [*others(), LogLoss()], verbose=0)
    assert list(scores) == list(expected)
    for name, value in expected.items():
        assert scores[name] == pytest.approx(value, rel=TIGHT), name


def test_a_metric_of_keras_gets_logits_where_it_takes_them():
    z = np.log(P) - np.log1p(-P)
    rows = pd.DataFrame({"label": Y, "logit": z})
    scores = score(ScoredLog(rows, logit="logit"), keras.metrics.AUC(from_logits=True, name="auc"))
    expected = keras.metrics.AUC(from_logits=True)
    expected.update_state(Y, z)
    assert scores["auc"] == pytest.approx(float(expected.result()), rel=1e-6)


def test_sums_of_other_queries_say_what_they_lack():
    log = ScoredLog(frame())
    sums = log_sums(log, log_queries(log, [LogLoss()]))
    for metric in (CalibratedLogLoss(), NormalizedEntropy()):
        with pytest.raises(ValueError, match="sums must hold"):
            score(sums, metric, verbose=0)
    with pytest.raises(ValueError, match=r"sums must hold.*site_id"):
        score(sums, field_metrics={"site_id": [FieldECE(3)]}, verbose=0)


def test_fractions_are_no_ids():
    rows = frame()
    rows["site_id"] = np.where(np.arange(N) == 7, 2.5, np.nan)
    with pytest.raises(ValueError, match=r"whole numbers.*2\.5"):
        score(ScoredLog(rows), field_metrics={"site_id": [FieldECE(3)]}, verbose=0)


def test_ids_fill_field_metrics_which_go_on_with_batches():
    half = N // 2
    by_field = {"site_id": FieldECE(8), "device": FieldRCE(3)}
    score(ScoredLog(frame().iloc[:half]), (), by_field, verbose=0)
    for ids, metric in zip((SITE, DEVICE), by_field.values(), strict=True):
        metric.update_state(Y[half:], P[half:], field=ids[half:])
        whole = type(metric).from_config(metric.get_config())
        whole.update_state(Y, P, field=ids)
        assert float(metric.result()) == pytest.approx(float(whole.result()), rel=TIGHT)
    with pytest.raises(ValueError, match=r"field_ece.*`fields`"):
        score(ScoredLog(frame()), (), {"site": FieldECE(8)}, verbose=0)


def test_sums_of_shards_add_up_and_are_saved(tmp_path):
    log = ScoredLog(sample_weight="weight", fields=["site", ("site", "device")], row_key="number")
    queries = log_queries(log, scored_metrics())
    shuffled, ends = frame().sample(frac=1, random_state=0), [0, 0, 120, 121, 420, N]
    shards = [shuffled.iloc[start:end] for start, end in itertools.pairwise(ends)]
    for number, shard in enumerate(shards):
        log_sums(log.of(shard), queries).save(tmp_path / f"{number}.sums")
    parts = [LogSums.load(path) for path in sorted(tmp_path.iterdir())]
    scores = score(sum(parts, LogSums()), scored_metrics(), verbose=0)
    expected = score(log.of(frame()), scored_metrics(), verbose=0)
    assert parts[0].num_rows == 0
    bound = digits(1e-11)
    assert scores == {name: pytest.approx(value, rel=bound) for name, value in expected.items()}
    # The key is the number of the row: the folds are those of the streaming metrics.
    assert scores["calibrated_log_loss"] == pytest.approx(
        streamed(True)["calibrated_log_loss"], rel=BOUND
    )
    data = parts[1].to_bytes()
    for damaged in (data[:-8], data[:-8] + bytes(8), b""):
        with pytest.raises(ValueError, match=r"`data`.*damaged"):
            LogSums.from_bytes(damaged)
    with pytest.raises(ValueError, match="same queries"):
        parts[1] + log_sums(log.of(frame()), {})
    with pytest.raises(ValueError, match="ExpectedCalibrationError"):
        score(parts[1], ExpectedCalibrationError(), verbose=0)


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("length", ["hour", "day", "week", "month", "year"])
def test_periods(length):
    log = ScoredLog(frame(), sample_weight="weight", fields=["site"], timestamp="at")
    by_period = score_by_period(log, [LogLoss(), CalibratedLogLoss(num_folds=1)], length, verbose=0)
    period = pd.Series(AT).dt.to_period(
        {"hour": "h", "day": "D", "week": "W", "month": "M", "year": "Y"}[length]
    )
    pattern = {"hour": "%Y-%m-%dT%H:%M", "month": "%Y-%m", "year": "%Y"}.get(length, "%Y-%m-%d")
    names = period.dt.start_time.dt.strftime(pattern).to_numpy()
    assert list(by_period) == sorted(set(names))
    for name in sorted(set(names))[:3]:
        rows = names == name
        loss = LogLoss()
        loss.update_state(Y[rows], P[rows], W[rows])
        scores = by_period[name]
        assert scores["log_loss"] == pytest.approx(float(loss.result()), rel=TIGHT)
        expected = field_ece(Y[rows], P[rows], SITE[rows], W[rows])
        assert scores["site_field_ece"] == pytest.approx(expected, rel=TIGHT)


def test_metrics_of_periods_have_names():
    log, two = ScoredLog(frame(), timestamp="at"), [CalibratedLogLoss(2), CalibratedLogLoss(1)]
    with pytest.raises(ValueError, match="`metrics` must be of different names"):
        score_by_period(log, two, "year", verbose=0)
    named = score_by_period(log, dict(zip("ab", two, strict=True)), "year", verbose=0)
    for name, metric in zip("ab", two, strict=True):
        alone = score_by_period(log, metric, "year", verbose=0)
        for year, scores in alone.items():
            for kind in ("", "rolling_"):
                expected = scores[f"{kind}calibrated_log_loss"]
                assert named[year][kind + name] == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize("name", ["site_field_ece", "site_field_rce"])
def test_a_metric_cannot_have_the_name_of_a_field_error(name):
    log, loss = ScoredLog(frame(), fields=["site"], timestamp="at"), LogLoss(name=name)
    sums = log_sums(log, log_queries(log, loss), verbose=0)
    for rows, measure in ((log, score), (sums, score), (log, score_by_period)):
        with pytest.raises(ValueError, match=rf"twice: \['{name}'\]"):
            measure(rows, loss, verbose=0)


def test_fields_may_have_the_names_of_columns_that_are_computed():
    names = ["y", "w", "P", "l", "k", "t2", "bin", "given", "loss_0", "valid_label", "given_label"]
    rows = frame().assign(**dict.fromkeys(names, SITE))
    log = ScoredLog(rows, sample_weight="weight", fields=names, where="w >= 0")
    scores, expected = score(log, scored_metrics(), verbose=0), streamed(True)
    for name in ("log_loss", "of_three", "calibrated_log_loss"):
        assert scores[name] == pytest.approx(expected[name], rel=BOUND)
    for name in names:
        assert scores[f"{name}_field_ece"] == pytest.approx(
            expected["site_id_field_ece"], rel=TIGHT
        )


def test_where_leaves_rows_out_and_missing_values_are_a_value():
    probability = P.copy()
    probability[7] = np.nan
    names = NAMES[SITE].copy()
    names[:20] = None
    rows = frame(probability=probability, site=names)
    log = ScoredLog(rows, fields=["site"], where="NOT isnan(probability)")
    scores = score(log, LogLoss(), verbose=0)
    kept = np.arange(N) != 7
    values = np.where(np.arange(N) < 20, -1, SITE)
    for name, function in (("site_field_ece", field_ece), ("site_field_rce", field_rce)):
        expected = function(Y[kept], P[kept], values[kept])
        assert scores[name] == pytest.approx(expected, rel=TIGHT)


def with_one(values, row, value):
    return np.where(np.arange(N) == row, value, values)


@pytest.mark.parametrize(
    ("replaced", "arguments", "message"),
    [
        ({"probability": with_one(P, 17, np.nan)}, {}, "1 invalid .*(nan|None) in row 17"),
        ({"label": with_one(Y, 5, 2)}, {}, r"a label of 2(\.0)? in row 5"),
        ({"label": pa.array([None] + [1] * (N - 1))}, {}, "a label of None in row 0"),
        ({"weight": with_one(W, 3, -1)}, {"sample_weight": "weight"}, "a weight of -1.0 in row 3"),
        ({"probability": [[1]] * N}, {}, f"{N} invalid predictions"),
        ({}, {"label": "click", "fields": ["country"]}, "ScoredLog.*'click', 'country'"),
        ({"": np.ones(N)}, {"fields": [""]}, "must have names"),
        ({}, {"where": "no_column > 1"}, "`where`"),
        ({}, {"where": "label > 5"}, "no rows"),
        *(({}, {"where": where}, "`where`") for where in ("", ["y = 1"], 3)),
        ({"at": ["yesterday"] * N}, {"timestamp": "at"}, f"{N} invalid times .* in row 0"),
        ({"at": [[1]] * N}, {"timestamp": "at"}, "'at'.*BIGINT"),
        ({}, {"memory_limit": "much"}, "`memory_limit`"),
        ({}, {"memory_limit": "-1GB"}, "`memory_limit`"),
        ({}, {"memory_limit": "1.2.3GB"}, "`memory_limit`"),
        ({}, {"fields": "site"}, "`fields`"),
        ({}, {"fields": ["a_x_b", ("a", "b")]}, "`fields`"),
        ({}, {"fields": [("site", 3)]}, "`fields`"),
        ({}, {"num_threads": 0}, "`num_threads`"),
        ({}, {"source": "absent/*.parquet"}, "`source`"),
        ({}, {"source": None}, "`source`"),
    ],
)
def test_invalid_logs_are_refused(replaced, arguments, message, tmp_path):
    columns = {name: values for name, values in frame().items()} | replaced
    table = pa.table({name: pa.array(values) for name, values in columns.items()})
    # The statistics of a Parquet file do not tell of NaN.
    pq.write_table(table, tmp_path / "log.parquet")
    for source in (table, tmp_path / "log.parquet"):
        function = score_by_period if "timestamp" in arguments else score
        with pytest.raises(ValueError, match=message):
            function(ScoredLog(**{"source": source, **arguments}), LogLoss(), verbose=0)


# The last but one is exact in float32 also, where 1 - 1e-7 would be 1 - 1.2e-7.
HOSTILE = [0.0, 1e-45, 1e-30, 1e-7, 0.1, 0.5, 0.9, 1 - 2.0**-23, 1.0]


@settings(max_examples=12)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([0.0, 0.25, 1.0]),
            st.sampled_from(HOSTILE),
            st.sampled_from([0.0, 1e-30, 1.0, 1e6]),
            st.integers(0, 2),
        ),
        min_size=1,
        max_size=40,
    )
)
def test_hostile_rows(rows):
    y, p, w, z = (np.array(column) for column in zip(*rows, strict=True))

    def both():
        return [LogLoss(), CalibratedLogLoss(num_folds=1), CalibrationRatio()]

    table = pa.table({"label": y, "probability": p, "weight": w, "z": z})
    log = ScoredLog(table, sample_weight="weight", fields=["z"], num_threads=1)
    if not w.any():
        with pytest.raises(ValueError, match="no rows"):
            score(log, both(), verbose=0)
        return
    scores = score(log, both(), verbose=0)
    expected = score((y, p, w, {"z": z}), both(), {"z": FieldECE(3)}, verbose=0)
    for name, value in expected.items():
        # Terms of 1 that cancel leave a rounding of them: 6e-8 each in the float32 of JAX.
        close = pytest.approx(value, rel=BOUND, abs=digits(1e-10, 2e-7), nan_ok=True)
        assert scores[name] == close, name
