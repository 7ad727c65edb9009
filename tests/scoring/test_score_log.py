"""`score` of a scored log: the numbers of the streaming metrics, from sums of SQL."""

import datetime
import itertools

import duckdb
import keras
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends import digits
from keras_calibration.logs import LogSums, Periods, ScoredLog, log_sums
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

RNG = np.random.default_rng(3)
N = 3000
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


def parquet(folder, table, pieces=3):
    for number, part in enumerate(np.array_split(np.arange(len(table)), pieces)):
        name = folder / f"part-{number}.parquet"
        pq.write_table(table.take(part), name, row_group_size=250)
    # A partition without rows, and what engines leave beside their files.
    pq.write_table(table.slice(0, 0), folder / f"part-{pieces}.parquet")
    (folder / "_SUCCESS").touch()
    return folder


def sources(folder):
    table = pa.Table.from_pandas(frame(), preserve_index=False)
    encoded = table.set_column(3, "site", table["site"].dictionary_encode())
    files = parquet(folder, table)
    csv = table.drop_columns(["site"])  # a CSV file cannot hold a NUL
    csv.to_pandas().to_csv(folder.parent / f"{folder.name}.csv", index=False)
    return {
        "folder": str(files),
        "glob": str(files / "part-*.parquet"),
        "remote": f"file://{files}/part-*.parquet",
        "list": sorted(files.glob("part-*.parquet")),
        "dataset": pyarrow.dataset.dataset(sorted(map(str, files.glob("part-*.parquet")))),
        "arrow": table,
        "dictionary": encoded,
        "pandas": frame(),
        "categories": frame(site=pd.Categorical(NAMES[SITE])),
        "polars": pl.from_arrow(table),
        "lazy": pl.from_arrow(table).lazy(),
        "relation": duckdb.connect().from_arrow(table),
        "csv": str(folder.parent / f"{folder.name}.csv"),
    }


KINDS = (
    "folder",
    "glob",
    "remote",
    "list",
    "dataset",
    "arrow",
    "dictionary",
    "pandas",
    "categories",
)
KINDS += ("polars", "lazy", "relation", "csv")


def metrics():
    return [
        LogLoss(),
        NormalizedEntropy(),
        CalibrationRatio(),
        CalibratedLogLoss(),
        CalibratedLogLoss(num_folds=3, seed=5, name="of_three"),
        CalibratedLogLoss(bias_fraction=0.3, name="held_out"),
    ]


def streamed(weights=None):
    by_field = {"site_id": [FieldECE(8), FieldRCE(8)]}
    rows = (Y, P, weights, {"site_id": SITE})
    return score(rows, metrics(), by_field, verbose=0)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("kind", KINDS)
def test_the_numbers_of_the_streaming_metrics_from_every_source(tmp_path, kind):
    fields = ["site_id"] if kind == "csv" else ["site", "site_id"]
    log = ScoredLog(sources(tmp_path)[kind], sample_weight="weight", fields=fields, num_threads=2)
    found, expected = score(log, metrics(), verbose=0), streamed(W)
    for name, value in expected.items():
        bound = BOUND if name in ("calibrated_log_loss", "of_three", "held_out") else TIGHT
        assert found[name] == pytest.approx(value, rel=bound, abs=bound * 0.1), name
        if "site_id" in name and kind != "csv":
            assert found[name.replace("_id", "")] == pytest.approx(found[name], rel=1e-13)


class Notebook:
    """A connection in a notebook without `ipywidgets`, where DuckDB refuses its progress bar."""

    def __init__(self, connection):
        self._connection = connection

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._connection.close()

    def __getattr__(self, name):
        return getattr(self._connection, name)

    def execute(self, sql):
        if "progress_bar" in sql:
            raise duckdb.InvalidInputException("required package 'ipywidgets' is missing")
        return self._connection.execute(sql)


def test_in_a_notebook_without_widgets(monkeypatch, capsys):
    log, connect = ScoredLog(frame(), fields=["site_id"]), duckdb.connect
    expected = score(log, metrics(), verbose=0)
    monkeypatch.setattr(duckdb, "connect", lambda **options: Notebook(connect(**options)))
    assert score(log, metrics(), verbose=1) == expected
    assert f"{N:,}/{N:,}" in capsys.readouterr().out


def test_without_weights_and_from_logits():
    expected = streamed()
    found = score(ScoredLog(frame(), fields=["site_id"]), metrics(), verbose=0)
    logits = frame(z=np.log(P / (1 - P))).drop(columns="probability")
    from_logits = score(ScoredLog(logits, logit="z", fields=["site_id"]), metrics(), verbose=0)
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=BOUND, abs=BOUND), name
        assert from_logits[name] == pytest.approx(value, rel=BOUND, abs=BOUND), name


def test_metrics_without_sums_get_batches_in_order():
    def others():
        return [ExpectedCalibrationError(), LogitAUC(), keras.metrics.AUC(name="keras_auc")]

    rows = (Y, P, W)
    log = ScoredLog(frame(), sample_weight="weight")
    found = score(log, [*others(), LogLoss()], verbose=0)
    expected = score(rows, [*others(), LogLoss()], verbose=0)
    assert list(found) == list(expected)
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=TIGHT), name


def test_ids_fill_field_metrics_which_go_on_with_batches():
    half = N // 2
    by_field = {"site_id": FieldECE(8), ("site_id", "device"): FieldRCE((8, 3))}
    score(ScoredLog(frame().iloc[:half]), (), by_field, verbose=0)
    for field, metric in by_field.items():
        ids = SITE if field == "site_id" else (SITE, DEVICE)
        rest = ids[half:] if field == "site_id" else tuple(part[half:] for part in ids)
        metric.update_state(Y[half:], P[half:], field=rest)
        whole = type(metric).from_config(metric.get_config())
        whole.update_state(Y, P, field=ids)
        assert float(metric.result()) == pytest.approx(float(whole.result()), rel=TIGHT)
    with pytest.raises(ValueError, match=r"whole numbers in .* Name the field"):
        score(ScoredLog(frame()), (), {"site": FieldECE(8)}, verbose=0)


def test_a_metric_goes_on_where_the_log_ended():
    half = N // 2
    metric = CalibratedLogLoss()
    score(ScoredLog(frame().iloc[:half]), metric, verbose=0)
    metric.update_state(Y[half:], P[half:])
    whole = CalibratedLogLoss()
    whole.update_state(Y, P)
    assert float(metric.result()) == pytest.approx(float(whole.result()), rel=BOUND)


def test_sums_of_shards_add_up_and_are_saved(tmp_path):
    log = ScoredLog(sample_weight="weight", fields=["site", ("site", "device")], row_key="number")
    queries = log_queries(log, metrics())
    shuffled, ends = frame().sample(frac=1, random_state=0), [0, 0, 700, 701, 2500, N]
    shards = [shuffled.iloc[start:end] for start, end in itertools.pairwise(ends)]
    for number, shard in enumerate(shards):
        log_sums(log.of(shard), queries).save(tmp_path / f"{number}.sums")
    parts = [LogSums.load(path) for path in sorted(tmp_path.iterdir())]
    found = score(sum(parts, LogSums()), metrics(), verbose=0)
    expected = score(log.of(frame()), metrics(), verbose=0)
    assert parts[0].num_rows == 0
    assert found == {name: pytest.approx(value, rel=1e-11) for name, value in expected.items()}
    # The key is the number of the row: the folds are those of the streaming metrics.
    assert found["calibrated_log_loss"] == pytest.approx(
        streamed(W)["calibrated_log_loss"], rel=BOUND
    )
    data = parts[1].to_bytes()
    for damaged in (data[:-8], data[:-8] + bytes(8), b""):
        with pytest.raises(ValueError, match="are damaged, or something else"):
            LogSums.from_bytes(damaged)
    with pytest.raises(ValueError, match="same queries"):
        parts[1] + log_sums(log.of(frame()), {})
    with pytest.raises(ValueError, match="ExpectedCalibrationError"):
        score(parts[1], ExpectedCalibrationError(), verbose=0)


@pytest.mark.parametrize("key", ["text", "negative", "uuid"])
def test_other_row_keys_divide_the_rows_evenly(key):
    text = np.char.add("request-", np.arange(N).astype(str))
    keys = {"text": text, "negative": -np.arange(N), "uuid": text.astype(object)}[key]
    log = ScoredLog(frame(id=keys), row_key="id")
    queries = log_queries(log, CalibratedLogLoss())
    table = log_sums(log, queries).table("moments/2/None/0")
    rows = np.bincount(table["key_group"], table["negatives"] + table["positives"])
    assert rows.sum() == N
    assert abs(rows[0] - N / 2) < 5 * np.sqrt(N / 4)
    shuffled = log_sums(log.of(log.source.sample(frac=1, random_state=1)), queries)
    np.testing.assert_allclose(
        shuffled.table("moments/2/None/0")["negative_offsets"], table["negative_offsets"], atol=1e-9
    )


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("length", ["hour", "day", "week", "month", "year"])
def test_periods(length):
    log = ScoredLog(frame(), sample_weight="weight", fields=["site"], timestamp="at")
    found = score_by_period(log, [LogLoss(), CalibratedLogLoss(num_folds=1)], length, verbose=0)
    period = pd.Series(AT).dt.to_period(
        {"hour": "h", "day": "D", "week": "W", "month": "M", "year": "Y"}[length]
    )
    pattern = {"hour": "%Y-%m-%dT%H:%M", "month": "%Y-%m", "year": "%Y"}.get(length, "%Y-%m-%d")
    names = period.dt.start_time.dt.strftime(pattern).to_numpy()
    assert list(found) == sorted(set(names))
    for name in sorted(set(names))[:3]:
        rows = names == name
        loss = LogLoss()
        loss.update_state(Y[rows], P[rows], W[rows])
        scores = found[name]
        assert scores["log_loss"] == pytest.approx(float(loss.result()), rel=TIGHT)
        expected = field_ece(Y[rows], P[rows], SITE[rows], W[rows])
        assert scores["site_field_ece"] == pytest.approx(expected, rel=TIGHT)


@pytest.mark.parametrize(
    "kind", ["text", "zone", "text with zone", "seconds", "date", "nanoseconds"]
)
def test_every_kind_of_time(kind):
    zone = datetime.timezone(datetime.timedelta(hours=2))
    aware = [time.astype(datetime.datetime).replace(tzinfo=datetime.UTC) for time in AT]
    times = {
        "text": AT.astype(str),
        "zone": pa.array(aware, pa.timestamp("us", "Asia/Tokyo")),
        "text with zone": [time.astimezone(zone).isoformat() for time in aware],
        "seconds": AT.astype(int) + 0.5,
        "date": pa.array(AT.astype("datetime64[D]")),
        "nanoseconds": AT.astype("datetime64[ns]"),
    }[kind]
    rows = pa.table({"label": Y, "probability": P, "at": times})
    periods = Periods("day", since="2026-03-02", until="2026-03-04")
    found = score_by_period(ScoredLog(rows, timestamp="at"), LogLoss(), periods, verbose=0)
    assert list(found) == ["2026-03-02", "2026-03-03"]
    for name, scores in found.items():
        day = AT.astype("datetime64[D]") == np.datetime64(name)
        expected = score((Y[day], P[day]), LogLoss(), verbose=0)["log_loss"]
        assert scores["log_loss"] == pytest.approx(expected, rel=TIGHT)


def test_fields_may_have_the_names_of_columns_that_are_computed():
    names = ["y", "w", "P", "l", "k", "t2", "bin", "given", "loss_0", "valid_label", "given_label"]
    rows = frame().assign(**dict.fromkeys(names, SITE))
    log = ScoredLog(rows, sample_weight="weight", fields=names, where="w >= 0")
    found, expected = score(log, metrics(), verbose=0), streamed(W)
    for name in ("log_loss", "of_three", "calibrated_log_loss"):
        assert found[name] == pytest.approx(expected[name], rel=BOUND)
    for name in names:
        assert found[f"{name}_field_ece"] == pytest.approx(expected["site_id_field_ece"], rel=TIGHT)


def test_where_leaves_rows_out_and_missing_values_are_a_value():
    probability = P.copy()
    probability[7] = np.nan
    names = NAMES[SITE].copy()
    names[:100] = None
    rows = frame(probability=probability, site=names)
    log = ScoredLog(rows, fields=["site"], where="NOT isnan(probability)")
    found = score(log, LogLoss(), verbose=0)
    kept = np.arange(N) != 7
    values = np.where(np.arange(N) < 100, -1, SITE)
    assert found["site_field_ece"] == pytest.approx(
        field_ece(Y[kept], P[kept], values[kept]), rel=TIGHT
    )
    assert found["site_field_rce"] == pytest.approx(
        field_rce(Y[kept], P[kept], values[kept]), rel=TIGHT
    )


@pytest.mark.parametrize(
    ("replaced", "arguments", "message"),
    [
        (
            {"probability": np.where(np.arange(N) == 17, np.nan, P)},
            {},
            "1 invalid predictions in 3,000 rows, for example a prediction of nan in row 17",
        ),
        (
            {"probability": np.where(np.arange(N) > 2997, 1.5, P)},
            {},
            "2 invalid predictions .* of 1.5 in row 2998",
        ),
        ({"label": np.where(np.arange(N) == 5, 2, Y)}, {}, "a label of 2 in row 5"),
        ({"label": pa.array([None] + [1] * (N - 1))}, {}, "a label of None in row 0"),
        (
            {"weight": np.where(np.arange(N) == 3, -1, W)},
            {"sample_weight": "weight"},
            "a weight of -1.0 in row 3",
        ),
        (
            {"weight": np.where(np.arange(N) == 3, np.inf, W)},
            {"sample_weight": "weight"},
            "1 invalid weights",
        ),
        ({"probability": P.astype(str)}, {}, "'probability' must hold numbers. Received: VARCHAR"),
        ({}, {"label": "click", "fields": ["country"]}, "no columns .'click', 'country'."),
        ({}, {"where": "no_column > 1"}, "cannot be read. Argument `where` is 'no_column > 1'"),
        ({}, {"where": "label > 5"}, "no rows to score"),
        ({}, {"memory_limit": "much"}, "Memory must have a number"),
    ],
)
def test_invalid_logs_are_refused(replaced, arguments, message, tmp_path):
    columns = {name: values for name, values in frame().items()} | replaced
    table = pa.table({name: pa.array(values) for name, values in columns.items()})
    with pytest.raises(ValueError, match=message):
        score(ScoredLog(table, **arguments), LogLoss(), verbose=0)
    # The statistics of a Parquet file do not tell of NaN.
    pq.write_table(table, tmp_path / "log.parquet")
    with pytest.raises(ValueError, match=message):
        score(ScoredLog(tmp_path / "log.parquet", **arguments), LogLoss(), verbose=0)


def test_the_file_of_an_invalid_row_is_named(tmp_path):
    label = np.where(np.arange(N) == 1500, -1, Y)
    parquet(tmp_path, pa.Table.from_pandas(frame(label=label), preserve_index=False))
    with pytest.raises(ValueError, match=r"a label of -1 in row 500 of .*part-1\.parquet"):
        score(ScoredLog(tmp_path), LogLoss(), verbose=0)


def test_invalid_times_are_refused():
    rows = frame(at=["2026-03-01"] * (N - 1) + ["yesterday"])
    with pytest.raises(ValueError, match=r"1 invalid times in 3,000 rows, .* in row 2999"):
        score_by_period(ScoredLog(rows, timestamp="at"), LogLoss(), verbose=0)
    with pytest.raises(ValueError, match="must name the column of the times"):
        score_by_period(ScoredLog(rows), LogLoss(), verbose=0)
    with pytest.raises(ValueError, match="must hold times"):
        score_by_period(ScoredLog(frame(at=[[1]] * N), timestamp="at"), LogLoss(), verbose=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"fields": "site"}, "must be a list"),
        ({"fields": ["site", "site"]}, "only once"),
        ({"fields": ["a_x_b", ("a", "b")]}, "Received twice: .'a_x_b'"),
        ({"fields": [("site", 3)]}, "names of columns"),
        ({"num_threads": 0}, "at least 1"),
    ],
)
def test_invalid_descriptions(arguments, message):
    with pytest.raises(ValueError, match=message):
        ScoredLog("log.parquet", **arguments)


@pytest.mark.parametrize("source", [7, "absent.parquet", "absent/*.parquet", None])
def test_other_sources_are_refused(source):
    with pytest.raises(ValueError, match="Argument `source` must"):
        score(ScoredLog(source), LogLoss(), verbose=0)


def test_progress(capsys):
    score(ScoredLog(frame(), fields=["site"]), LogLoss(), verbose=1)
    assert "3,000/3,000" in capsys.readouterr().out


HOSTILE = [0.0, 1e-45, 1e-30, 1e-7, 0.1, 0.5, 0.9, 1 - 1e-7, 1.0]


@settings(max_examples=20)
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
        with pytest.raises(ValueError, match="no rows to score, or all have weight 0"):
            score(log, both(), verbose=0)
        return
    found = score(log, both(), verbose=0)
    expected = score((y, p, w, {"z": z}), both(), {"z": FieldECE(3)}, verbose=0)
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=BOUND, abs=1e-10, nan_ok=True), name
