"""One log in every kind of source: the same rows, values, times, folds and row numbers."""

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

from calibration_records.logs.embedded import log_batches
from calibration_records.logs.query import field_sums
from calibration_records.logs.rows import Selection
from keras_calibration._ops.folds import hashed_uniform
from keras_calibration.calibration import fit_calibrator
from keras_calibration.layers import FieldBias
from keras_calibration.logs import ScoredLog, log_sums
from keras_calibration.metrics import CalibratedLogLoss, FieldECE, LogLoss
from keras_calibration.scoring import log_queries, score, score_by_period

RNG = np.random.default_rng(4)
N = 600
P = RNG.uniform(0.05, 0.95, N)
Y = (RNG.random(N) < P).astype(int)
# What the package or DuckDB calls columns of its own.
RESERVED = ("file_index", "FILE_ROW_NUMBER", "filename", "rowid", "row number", "k", "log label")


def frame(**columns):
    return pd.DataFrame({"label": Y, "probability": P, **columns})


def zoned(zone="America/New_York"):
    connection = duckdb.connect()
    connection.execute(f"SET TimeZone = '{zone}'")
    return connection


def as_sources(table, folder):
    """The rows of an Arrow table as sources of every kind."""
    folder.mkdir(exist_ok=True)
    whole, parts, csv = (folder / name for name in ("whole.parquet", "parts", "whole.csv"))
    parts.mkdir(exist_ok=True)
    half = table.num_rows // 2
    pq.write_table(table, whole, row_group_size=100)
    pq.write_table(table.slice(0, half), parts / "a.parquet", row_group_size=90)
    pq.write_table(table.slice(half), parts / "b.parquet")
    pandas_frame = table.to_pandas()
    pandas_frame.to_csv(csv, index=False)
    connection = zoned()
    connection.register("rows", table)
    return {
        "parquet": whole,
        "files": parts,
        "csv": csv,
        "gzip": gzipped(table, folder),
        "arrow": table,
        "batch": table.combine_chunks().to_batches()[0],
        "dataset": pyarrow.dataset.dataset(whole),
        "pandas": pandas_frame,
        "polars": pl.from_arrow(table),
        "lazy": pl.from_arrow(table).lazy(),
        "relation": connection.sql("FROM rows"),
    }


def gzipped(table, folder):
    """Two CSV files of other delimiters and orders of the columns, compressed."""
    files = folder / "gzip"
    files.mkdir(exist_ok=True)
    rows = table.to_pandas()
    half = len(rows) // 2
    rows[:half].to_csv(files / "a.CSV.GZ", index=False, sep=";", compression="gzip")
    rows[half:][rows.columns[::-1]].to_csv(files / "b.csv.gz", index=False, lineterminator="\r\n")
    return files


def losses(source, **arguments):
    log = ScoredLog(source, **arguments)
    return score(log, [LogLoss(), CalibratedLogLoss()], verbose=0)


def same(scores, expected):
    assert scores == {name: pytest.approx(value, rel=1e-9) for name, value in expected.items()}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("where", [None, "site <> 2 -- and no more"])
def test_where_and_reserved_names_leave_the_row_numbers(tmp_path, where):
    names = {name: np.arange(N) % 3 for name in RESERVED}
    site = RNG.integers(0, 5, N)
    table = pa.Table.from_pandas(frame(site=site, **names), preserve_index=False)
    kept = slice(None) if where is None else site != 2
    # The folds of the streaming metric, by the number of the row in the whole log.
    fold = np.floor(np.asarray(hashed_uniform(np.arange(N), 0)) * 2)[kept].astype(int)
    queries = log_queries(ScoredLog(), CalibratedLogLoss())
    for kind, source in as_sources(table, tmp_path / "log").items():
        sums = log_sums(ScoredLog(source, where=where), queries)
        moments = sums.table("moments/2/None/0")
        rows = moments["negatives"] + moments["positives"]
        positives = np.bincount(moments["key_group"], moments["positives"])
        numbers = np.bincount(moments["key_group"], rows)
        np.testing.assert_array_equal(numbers, np.bincount(fold), kind)
        np.testing.assert_array_equal(positives, np.bincount(fold, Y[kept]), kind)


def test_an_error_names_the_row_in_the_file(tmp_path):
    rows = frame(site=np.arange(N) % 4)
    rows.loc[450, "label"] = 7
    table = pa.Table.from_pandas(rows, preserve_index=False)
    places = {"parquet": "whole.parquet", "files": "b.parquet"}
    places |= {"csv": "whole.csv", "gzip": "b.csv.gz"}
    for kind, source in as_sources(table, tmp_path / "log").items():
        file = f" of the log, in .*{places[kind]}" if kind in places else ""
        with pytest.raises(ValueError, match=f" 7(.0)? in row 450{file}"):
            losses(source, where="site <> 1")


TEXTS = pa.array([f"request {n}" for n in range(N)])
KEYS = {
    "int": pa.array(np.arange(N) * 7 - 50),
    "int32 with gaps": pa.array([None, *range(1, N)], pa.int32()),
    "uint64": pa.array(np.arange(N, dtype="uint64") + 2**63),
    "text": TEXTS,
    "category": TEXTS.dictionary_encode(),
    "category of ints": pa.array([None, *range(1, N)]).dictionary_encode(),
    "float": pa.array(np.arange(N) + 0.5),
}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("kind", KEYS)
def test_row_keys_divide_alike_in_every_source(tmp_path, kind):
    table = pa.table({"label": Y, "probability": P, "id": KEYS[kind]})
    sources = as_sources(table, tmp_path / "log")
    expected = losses(sources["parquet"], row_key="id")
    for source in sources.values():
        same(losses(source, row_key="id"), expected)


DAYS = [datetime.date(2026, 3, 1), datetime.date(2026, 3, 8)]
VALUES = {
    "ids": [5, 2**53, 2**53 + 1, -7],
    "ids with gaps": [5, None, 2**53 + 1, -7],
    "small ids with gaps": pa.array([5, None, 3, 1], pa.int8()),
    "texts": ["5a", "05a", "5.0a", None],
    "floats": [0.5, 2.0, None, 1e16],
    "floats of 32 bits": pa.array([0.1, 2.0, None, 3.5], pa.float32()),
    "days": pa.array([*DAYS, None, DAYS[0]]),
    **{
        f"times in {unit}": pa.array([0, 1, None, 3], pa.timestamp(unit))
        for unit in ("s", "ms", "us", "ns")
    },
}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.filterwarnings("ignore:.* as floats")  # pandas makes floats of ids with gaps
def test_a_field_value_is_spelled_alike_in_every_source(tmp_path, kind):
    values = VALUES[kind]
    values = values if isinstance(values, pa.Array) else pa.array(values)
    table = pa.table({"label": [0, 1, 1, 0], "probability": [0.5] * 4, "f": values})
    sources = as_sources(table, tmp_path / "log")
    spellings = {}
    for name, source in sources.items():
        sums = log_sums(ScoredLog(source, fields=["f"]), {"f": field_sums(["f"])})
        source_keys = sums.table("f")["key_value_0"].tolist()
        missing = [value for value in source_keys if value is None or value != value]
        spellings[name] = sorted(map(str, [v for v in source_keys if v == v and v is not None]))
        spellings[name] += ["missing"] * len(missing)
    if "gaps" in kind:
        # pandas itself makes floats of these, also in the CSV files.
        for name in ("pandas", "csv", "gzip"):
            del spellings[name]
    if kind == "days" or "times" in kind:
        # pandas writes the time of midnight, or not, and not always each fraction.
        for name in ("csv", "gzip"):
            del spellings[name]
    assert len(set(map(tuple, spellings.values()))) == 1, spellings
    if kind in ("ids", "ids with gaps"):
        assert "9007199254740993" in spellings["parquet"]


UNITS = ("s", "ms", "us", "ns")
AWARE = [
    datetime.datetime(2026, 3, 1, 0, 30, tzinfo=datetime.UTC) + n * datetime.timedelta(hours=5)
    for n in range(20)
]
TIMES = {
    **{
        f"{unit}, no zone": pa.array([t.replace(tzinfo=None) for t in AWARE], pa.timestamp(unit))
        for unit in UNITS
    },
    "us, UTC": pa.array(AWARE, pa.timestamp("us", "UTC")),
    **{f"{unit}, Asia": pa.array(AWARE, pa.timestamp(unit, "Asia/Tokyo")) for unit in UNITS},
    "ISO": pa.array([t.replace(tzinfo=None).isoformat() for t in AWARE]),
    "ISO, Z": pa.array([t.strftime("%Y-%m-%d %H:%M:%SZ") for t in AWARE]),
    "ISO, -07:00": pa.array(
        [t.astimezone(datetime.timezone(datetime.timedelta(hours=-7))).isoformat() for t in AWARE]
    ),
    "seconds": pa.array([t.timestamp() + 0.25 for t in AWARE]),
    "whole seconds": pa.array([int(t.timestamp()) for t in AWARE]),
}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("kind", TIMES)
def test_days_are_those_of_utc_in_every_source(tmp_path, kind, monkeypatch):
    monkeypatch.setenv("TZ", "America/New_York")
    y, p, day = np.arange(20) % 2, np.linspace(0.1, 0.9, 20), np.array([t.date() for t in AWARE])
    table = pa.table({"label": y, "probability": p, "at": TIMES[kind]})
    expected = {
        str(date): score((y[day == date], p[day == date]), LogLoss(), verbose=0)
        for date in np.unique(day)
    }
    for name, source in as_sources(table, tmp_path / "log").items():
        by_day = score_by_period(ScoredLog(source, timestamp="at"), LogLoss(), verbose=0)
        assert list(by_day) == list(expected), name
        for day, scores in by_day.items():
            same(scores, expected[day])


@pytest.mark.quick_cases(6)
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("label,probability\n1,0.75\n0,2.5e-1\n", True),
        ("\ufefflabel,probability\r\n1,0.75\r\n0,0.25\r\n", True),
        ('"label";"probability"\n"1";"0.75"\n"0";".25"', True),
        ("label\tprobability\tnote\nTrue\t0.75\t# no comment\nfalse\t 0.25 \t\n", True),
        ('probability,label,note\n0.75,1,"a\nb, ""c"""\n0.25,0,#\n', True),
        ("note,label,probability\n#1,1,0.75\n#2,0,0.25\n\n", True),
        ("label,probability\n", "no rows"),
        ("", "must name columns .*'label', 'probability'.* Available: 'column0'"),
        ("label,probability\n1,0.75\n0\n", "Available: 'label,probability'"),
        ("label,probability\n1,\n0,0.25\n", "a prediction of None in row 0 .*log.csv"),
        ('label,probability\n1,0.75\n0,"0,25"\n', "a prediction of 0,25 in row 1 .*log.csv"),
        ("label,probability\n1,0.75\n0,inf\n", "a prediction of inf in row 1"),
        ("label,probability\n1,0.75\nno,0.25\n", "a label of no in row 1"),
        (b"label,probability\n1,0.75\n\xfc,0.25\n", "(?i)utf-8|must name columns"),
    ],
)
def test_csv_files(tmp_path, text, expected):
    path = tmp_path / "log.csv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    if expected is True:
        loss = score(ScoredLog(path), LogLoss(), verbose=0)["log_loss"]
        assert loss == pytest.approx(-np.log(0.75), rel=1e-12)
        return
    with pytest.raises(ValueError, match=f"(?s){expected}"):
        score(ScoredLog(path), LogLoss(), verbose=0)


def write(folder, *names):
    """A file of one row for each name, the n-th with the probability (n + 1) / 100."""
    for number, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = pd.DataFrame({"label": [1], "probability": [(number + 1) / 100]})
        rows.to_csv(path, index=False) if ".csv" in name.lower() else rows.to_parquet(path)


def num_rows(source):
    return log_sums(ScoredLog(source), {}).num_rows


def test_a_folder_is_its_data_files(tmp_path):
    names = ["B.PARQUET", "a.parquet", "day=1/c.snappy.parquet", "x.parquet/part-0.parquet"]
    beside = ["_temporary/0/a.parquet", ".tmp/a.parquet", "_a.parquet", "a.parquet.bak"]
    write(tmp_path / ".hidden", *names, *beside)
    (tmp_path / ".hidden/_SUCCESS").touch()
    assert num_rows(str(tmp_path / ".hidden") + "/") == 4
    assert num_rows([tmp_path / ".hidden/a.parquet", f"{tmp_path}/.hidden/[ab].parquet"]) == 1
    # Folders that are links count, and one that leads back repeats nothing.
    write(tmp_path / "elsewhere", "b.parquet")
    (tmp_path / ".hidden/day=2").symlink_to(tmp_path / "elsewhere")
    (tmp_path / ".hidden/day=1/back").symlink_to(tmp_path / ".hidden")
    assert num_rows(tmp_path / ".hidden") == 5
    (tmp_path / ".hidden/day=2").unlink()
    write(tmp_path / ".hidden", "z.csv")
    with pytest.raises(ValueError, match="names 4 Parquet and 1 CSV files"):
        num_rows(tmp_path / ".hidden")


@pytest.mark.parametrize("given", ["Bob", 0.5, 5.0])
def test_a_column_may_have_the_name_of_a_column_that_is_computed(given, tmp_path):
    logits = np.linspace(0.1, 0.9, N)  # which look like probabilities
    table = pa.table({"label": Y, "logit": logits, "given": [given] * N})
    pq.write_table(table, tmp_path / "log.parquet")
    with pytest.warns(UserWarning, match="logits in"):
        log_sums(ScoredLog(tmp_path / "log.parquet", logit="logit"), {})


def test_columns_that_no_one_reads_may_be_of_any_type():
    period = pd.period_range("2026-01-01", periods=N, freq="D")
    rows = frame(period=period, site=pd.Categorical(np.arange(N) % 3))
    expected = losses(frame())
    same({k: v for k, v in losses(rows, fields=["site"]).items() if k in expected}, expected)
    with pytest.raises(ValueError, match=r"Received twice: .'Label', 'label'"):
        losses(pa.table({"label": Y, "Label": 1 - Y, "probability": P}))
    with pytest.raises(ValueError, match="Received: RecordBatchReader"):
        losses(pa.table({"label": Y, "probability": P}).to_reader())


@pytest.mark.parametrize("of", [lambda column: column, pd.Categorical])
def test_periods_of_pandas_are_refused_where_they_are_read(of):
    rows = frame(day=of(pd.period_range("2026-01-01", periods=N, freq="D")))
    try:
        table = pa.Table.from_pandas(rows)
    except pa.ArrowInvalid:
        pytest.skip("This version of pyarrow has no categories of periods.")
    for source in (rows, table, pyarrow.dataset.dataset(table)):
        for read in ({"timestamp": "day"}, {"fields": ["day"]}):
            with pytest.raises(ValueError, match=r"\['day'\].*to_timestamp"):
                log_sums(ScoredLog(source, **read), {})
        assert log_sums(ScoredLog(source), {}).num_rows == N


def test_many_files_with_their_rows_in_order(tmp_path):
    n = 30_000
    table = pa.table({"label": np.arange(n) % 2, "probability": np.arange(n) / n})
    ends = np.sort(np.concatenate([RNG.integers(0, n, 20), [0, 0, n, n]]))
    for number, (start, end) in enumerate(itertools.pairwise(ends.tolist())):
        part = table.slice(start, end - start)
        pq.write_table(part, tmp_path / f"{number:02d}.parquet", row_group_size=100)
        index = pa.array(np.zeros(len(part), int))
        hidden = part.append_column("file_index", index)
        pq.write_table(hidden, tmp_path / f"hidden-{number:02d}.parquet", row_group_size=100)
    table.to_pandas().to_csv(tmp_path / "log.csv", index=False)
    for name in ("[0-9]*.parquet", "hidden-*.parquet", "log.csv"):
        log = ScoredLog(tmp_path / name, where="label = 1", num_threads=2)
        batches = [*log_batches(log, ["p", "k"], Selection())]
        rows = {name: np.concatenate([batch[name] for batch in batches]) for name in ("p", "k")}
        np.testing.assert_array_equal(np.round(rows["p"] * n), rows["k"])
        assert len(rows["k"]) == n / 2


def test_a_part_of_a_thread_is_refused():
    with pytest.raises(ValueError, match="`num_threads`"):
        ScoredLog(pd.DataFrame(), num_threads=1.5)


def test_too_little_memory_is_an_error_of_ours():
    n = 400_000
    site = np.char.add("a long text ", np.arange(n).astype(str))
    rows = pd.DataFrame({"label": np.arange(n) % 2, "probability": 0.5, "site": site})
    log = ScoredLog(rows, fields=["site"], memory_limit="8MB")
    with pytest.raises(ValueError, match="`memory_limit`"):
        score(log, LogLoss(), verbose=0)


@pytest.mark.slow
def test_ids_of_csv_files_are_ids(tmp_path):
    site = np.arange(N) % 3
    rows = frame(site=site)
    rows.to_csv(tmp_path / "a.csv", index=False)
    frame(site=np.char.zfill(site.astype(str), 2)).to_csv(tmp_path / "b.csv", index=False)
    frame(site=site.astype(float)).to_csv(tmp_path / "c.csv", index=False)
    nullable = pa.table({"label": Y, "probability": P, "site": pa.array(site).cast(pa.int32())})
    gaps = nullable.set_column(2, "site", pa.array([None, *site[1:]], pa.int64()))
    expected = score(ScoredLog(rows), (), {"site": FieldECE(3)}, verbose=0)
    head = FieldBias({"site": 3})
    fit_calibrator(head, ScoredLog(rows), verbose=0)
    for name in "abc":
        source = tmp_path / f"{name}.csv"
        same(score(ScoredLog(source), (), {"site": FieldECE(3)}, verbose=0), expected)
        other = FieldBias({"site": 3})
        fit_calibrator(other, ScoredLog(source), verbose=0)
        for ours, theirs in zip(other.get_weights(), head.get_weights(), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
    ids = np.where(np.arange(N) == 0, -1, site)  # "other"
    streamed = score((Y, P, None, {"site": ids}), (), {"site": FieldECE(3)}, verbose=0)
    same(score(ScoredLog(gaps), (), {"site": FieldECE(3)}, verbose=0), streamed)
    hashed, by_rows = (FieldBias({"site": keras.layers.Hashing(8)}) for _ in range(2))
    fit_calibrator(hashed, ScoredLog(gaps), verbose=0)
    fit_calibrator(by_rows, ScoredLog(frame(site=ids)), verbose=0)
    for ours, theirs in zip(hashed.get_weights(), by_rows.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
    texts = FieldBias({"site": keras.layers.StringLookup(vocabulary=["0", "1", "2"])})
    fit_calibrator(texts, ScoredLog(tmp_path / "a.csv"), verbose=0)


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(
    "values", [["a", "b"], [2**60, 2**60 + 1], [3, 4], [True, False], [0.5, 2]]
)
def test_a_day_without_any_field_value_adds_to_the_other_days(values, tmp_path):
    """A source guesses a type for a column without values: pandas takes numbers."""
    rows = {"label": [1, 0], "probability": [0.5, 0.25]}
    days = [pa.table({**rows, "site": pa.array(part)}) for part in (values, [None, None])]
    first, empty = (as_sources(day, tmp_path / str(number)) for number, day in enumerate(days))
    log = ScoredLog(fields=["site"])
    for kind in ("csv", "arrow", "pandas", "polars"):
        parts = [log_sums(log.of(day[kind]), log_queries(log)) for day in (first, empty, first)]
        for order in (parts, parts[1:] + parts[:1]):
            table = sum(order, type(parts[0])()).table("field/site")
            found = dict(
                zip(table["key_value_0"].tolist(), table["residual"].tolist(), strict=True)
            )
            missing = [key for key in found if key is None or key != key]
            assert found.pop(*missing) == 0.25, kind
            assert found == {values[0]: 1.0, values[1]: -0.5}, kind


@pytest.mark.parametrize("column", ["label", "probability", "at", "weight"])
def test_a_day_without_labels_predictions_times_or_weights_is_refused(column, tmp_path):
    rows = {"label": [1, 0], "probability": [0.5, 0.25], "at": ["2026-03-01"] * 2, "weight": [1, 2]}
    sources = as_sources(pa.table({**rows, column: [None, None]}), tmp_path)
    for kind in ("csv", "arrow", "pandas", "polars"):
        log = ScoredLog(sources[kind], sample_weight="weight", timestamp="at")
        with pytest.raises(ValueError, match=r"Received: 2 invalid .* in 2 rows"):
            score_by_period(log, LogLoss())


def test_the_index_of_a_frame_is_no_column():
    plain = score(ScoredLog(frame()), LogLoss(), verbose=0)
    for index in (pd.Index(P, name="label"), pd.Index([*range(N - 1), "the last"])):
        assert score(ScoredLog(frame().set_index(index)), LogLoss(), verbose=0) == plain


@pytest.mark.parametrize(
    "sites",
    [
        pd.arrays.SparseArray(np.arange(N) % 3),
        (np.arange(N) % 3).astype(np.float16),
        [10**30 + row for row in range(N)],
        pl.Series(range(N), dtype=pl.Int128),
        pa.array(range(N), pa.decimal256(70)),
    ],
    ids=["sparse", "float16", "int", "int128", "decimal256"],
)
def test_columns_that_duckdb_cannot_read_are_refused(sites):
    kind = type(sites).__module__.partition(".")[0]
    columns = {"label": Y, "probability": P, "site": sites}
    make = {"polars": pl.DataFrame, "pyarrow": pa.table}.get(kind, pd.DataFrame)
    with pytest.raises(ValueError, match="Columns of a log"):
        log_sums(ScoredLog(make(columns), fields=["site"]), {})
    assert num_rows(make(columns)) == N


@pytest.mark.parametrize(
    ("name", "value"), [("row_key", ["site"]), ("label", 0), ("where", "  "), ("where", "")]
)
def test_what_names_no_column_and_is_no_condition_is_refused(name, value):
    with pytest.raises(ValueError, match=f"`{name}`"):
        ScoredLog(frame(), **{name: value})


def test_a_list_of_data_frames_is_no_source():
    with pytest.raises(ValueError, match="`source`"):
        num_rows([frame(), frame()])
