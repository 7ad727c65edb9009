"""`read_parquet`: the rows of the files, and nothing else of them."""

import sys

import keras
import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from backends import digits
from keras_calibration.metrics import CalibratedLogLoss, FieldECE
from keras_calibration.scoring import read_parquet, score

RNG = np.random.default_rng(1)
N = 4000
P = RNG.random(N)
Y = RNG.random(N) < P
W = RNG.exponential(size=N)
SITE = RNG.integers(0, 9, N)
NAMES = np.array([f"site {number}" for number in range(9)])
LOOKUP = {name: number for number, name in enumerate(NAMES.tolist())}


def table(**replaced):
    columns = {
        "clicked": Y,
        "ctr": P,
        "weight": W,
        "site_id": SITE.astype("int32"),
        "site": pa.array(NAMES[SITE]),
        "site_encoded": pa.array(NAMES[SITE]).dictionary_encode(),
        "long": pa.array(["much text that nobody reads"] * N),
    }
    return pa.table({**columns, **replaced})


@pytest.fixture
def files(tmp_path):
    whole = table()
    pq.write_table(whole.slice(0, 2500), tmp_path / "a.parquet", row_group_size=700)
    pq.write_table(whole.slice(2500), tmp_path / "b.parquet", row_group_size=400)
    return [tmp_path / "a.parquet", tmp_path / "b.parquet"]


def expected():
    loss, error = CalibratedLogLoss(), FieldECE(9)
    loss.update_state(Y, P, W)
    error.update_state(Y, P, W, field=SITE)
    return float(loss.result()), float(error.result())


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(
    "fields",
    [["site_id"], {"site_id": None}, {"site": LOOKUP}, {"site_encoded": LOOKUP}],
    ids=str,
)
@pytest.mark.parametrize("batch_size", [130, 10**6])
def test_files_give_what_arrays_give(files, fields, batch_size):
    batches = read_parquet(
        files,
        label="clicked",
        probability="ctr",
        sample_weight="weight",
        fields=fields,
        batch_size=batch_size,
    )
    assert batches.num_rows == N
    (field,) = fields
    for _ in range(2):  # it can be gone through again
        scores = score(batches, CalibratedLogLoss(), {field: FieldECE(9)}, verbose=0)
        assert list(scores.values()) == pytest.approx(expected(), rel=digits(1e-12))


def test_a_folder_a_single_file_and_a_dataset(files):
    for source in (files[0].parent, str(files[0].parent)):
        batches = read_parquet(source, label="clicked", probability="ctr")
        np.testing.assert_array_equal(np.concatenate([batch.predictions for batch in batches]), P)
    assert read_parquet(str(files[1]), label="clicked", probability="ctr").num_rows == 1500
    dataset = pa.dataset.dataset([str(file) for file in files])
    some = read_parquet(
        dataset.filter(pa.dataset.field("site_id") == 3), label="clicked", probability="ctr"
    )
    assert some.num_rows == (SITE == 3).sum()
    np.testing.assert_array_equal(np.concatenate([batch.labels for batch in some]), Y[SITE == 3])


def test_hive_partitions_are_columns(tmp_path):
    pa.dataset.write_dataset(
        table().select(["clicked", "ctr", "site_id"]),
        tmp_path,
        format="parquet",
        partitioning=["site_id"],
        partitioning_flavor="hive",
    )
    batches = read_parquet(tmp_path, label="clicked", probability="ctr", fields=["site_id"])
    scores = score(batches, field_metrics={"site_id": FieldECE(9)}, verbose=0)
    error = FieldECE(9)
    error.update_state(Y, P, field=SITE)
    assert scores["site_id_field_ece"] == pytest.approx(float(error.result()), rel=digits(1e-12))


def test_keras_lookups_and_values_without_an_id(files):
    words = keras.layers.StringLookup(vocabulary=NAMES[:5].tolist())
    numbers = keras.layers.IntegerLookup(vocabulary=[3, 1])
    fields = {"site": words, "site_encoded": {"site 2": 0}, "site_id": numbers}
    batches = list(read_parquet(files, label="clicked", probability="ctr", fields=fields))
    ids = {name: np.concatenate([batch.fields[name] for batch in batches]) for name in fields}
    np.testing.assert_array_equal(ids["site"], np.where(SITE < 5, SITE + 1, 0))
    np.testing.assert_array_equal(ids["site_encoded"], np.where(SITE == 2, 0, -1))
    np.testing.assert_array_equal(ids["site_id"], np.select([SITE == 3, SITE == 1], [1, 2], 0))


def test_only_named_columns_are_read_a_batch_at_a_time(files):
    read = []

    class Recorder:
        """What the iteration asks of the data set."""

        def __init__(self, dataset):
            self.dataset = dataset

        def to_batches(self, **arguments):
            read.append(arguments)
            for batch in self.dataset.to_batches(**arguments):
                read.append(batch.num_rows)
                yield batch

    batches = read_parquet(
        files,
        label="clicked",
        probability="ctr",
        sample_weight="weight",
        fields=["site_id"],
        batch_size=300,
    )
    batches._dataset = Recorder(batches._dataset)
    iterator = iter(batches)
    first = next(iterator)
    assert read[0]["columns"] == ["clicked", "ctr", "site_id", "weight"]
    assert read[1:] == [300]  # nothing beyond the first batch was asked for
    assert len(first.labels) == 300
    assert sum(len(batch.labels) for batch in iterator) == N - 300
    assert max(read[1:]) <= 300


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize(
    "labels",
    [
        pa.array(Y.astype("int8")),
        pa.array(Y.astype("float32")),
        pa.array(Y.astype("uint64")),
        pa.array(Y.astype(int).tolist(), pa.decimal128(3, 1)),
        pa.array(Y.astype("int32")).dictionary_encode(),
    ],
    ids=lambda labels: str(labels.type),
)
def test_labels_of_any_numeric_type(tmp_path, labels):
    pq.write_table(table(clicked=labels), tmp_path / "a.parquet")
    scores = score(
        read_parquet(
            tmp_path / "a.parquet", label="clicked", probability="ctr", sample_weight="weight"
        ),
        CalibratedLogLoss(),
        verbose=0,
    )
    assert scores["calibrated_log_loss"] == pytest.approx(expected()[0], rel=digits(1e-12))


def test_the_progress_bar_knows_the_rows(files, capsys):
    score(read_parquet(files, label="clicked", probability="ctr"), CalibratedLogLoss())
    assert f"{N}/{N}" in capsys.readouterr().out


@pytest.mark.parametrize("column", ["clicked", "ctr", "weight", "site_id", "site", "site_encoded"])
def test_null_values_are_refused(tmp_path, column):
    whole = table()
    array = whole[column].combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0)
    with_nulls = pa.concat_arrays([array[:1990], pa.nulls(7, array.type), array[1997:]])
    pq.write_table(table(**{column: with_nulls}), tmp_path / "a.parquet")
    fields = {"site_id": None, "site": LOOKUP, "site_encoded": LOOKUP}
    batches = read_parquet(
        tmp_path,
        label="clicked",
        probability="ctr",
        sample_weight="weight",
        fields=fields,
        batch_size=1000,
    )
    with pytest.raises(
        ValueError, match=f"'{column}' has 7 null values among the rows 1000 to 1999"
    ):
        list(batches)


def test_errors(files, monkeypatch):
    with pytest.raises(ValueError, match=r"no columns \['click', 'hour'\].*'clicked', 'ctr'"):
        read_parquet(files, label="click", probability="ctr", fields=["hour"])
    with pytest.raises(ValueError, match="no columns"):
        read_parquet(files, label="clicked", probability="ctr", sample_weight="sample_weight")
    with pytest.raises(ValueError, match=r"'long' must hold numbers\. Received: string"):
        read_parquet(files, label="clicked", probability="long")
    for field in ("site", "site_encoded"):
        with pytest.raises(ValueError, match=f"fields={{'{field}': {{value: id"):
            read_parquet(files, label="clicked", probability="ctr", fields=[field])
    with pytest.raises(ValueError, match="batch_size"):
        read_parquet(files, label="clicked", probability="ctr", batch_size=0)
    with pytest.raises(FileNotFoundError):
        read_parquet(files[0].parent / "no such file", label="clicked", probability="ctr")
    monkeypatch.setitem(sys.modules, "pyarrow.dataset", None)
    with pytest.raises(ImportError, match=r"keras-calibration\[parquet\]"):
        read_parquet(files, label="clicked", probability="ctr")


def class_table():
    shares = np.random.default_rng(2).dirichlet(np.ones(4), N)
    columns = {f"p{number}": shares[:, number] for number in range(4)}
    number = SITE % 4
    lists = pa.array(list(shares))
    fixed = pa.FixedSizeListArray.from_arrays(pa.array(shares.reshape(-1)), 4)
    names = pa.array(NAMES[number])
    given = {"number": number, "name": names, "lists": lists, "fixed": fixed, **columns}
    return pa.table(given), shares, number


@pytest.mark.parametrize("probability", [["p0", "p1", "p2", "p3"], "lists", "fixed"], ids=str)
def test_classes_are_columns_or_lists(tmp_path, probability):
    whole, shares, number = class_table()
    # A slice begins within the values of its lists.
    for place, part in enumerate([whole.slice(0, 1500), whole.slice(1500)]):
        pq.write_table(part, tmp_path / f"{place}.parquet", row_group_size=700)
    for options in ({"label": "number"}, {"label": "name", "label_lookup": LOOKUP}):
        batches = list(read_parquet(tmp_path, probability=probability, batch_size=300, **options))
        received = np.concatenate([batch.predictions for batch in batches])
        np.testing.assert_array_equal(received, shares)
        np.testing.assert_array_equal(np.concatenate([b.labels for b in batches]), number)
    in_memory = pa.dataset.dataset(whole.slice(7, 5))
    (batch,) = read_parquet(in_memory, label="number", probability=probability)
    np.testing.assert_array_equal(batch.predictions, shares[7:12])


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([[0.5, 0.5], [1.0]], r"lists of lengths \[1, 2\] among the rows 0 to 1"),
        ([[0.5, 0.5], [1.0, None]], "'p' has 1 null"),
        ([[0.5, 0.5], None], "'p' has 1 null"),
        ([["a", "b"], ["c", "d"]], "'p' must hold numbers"),
        ([[[0.5]], [[0.5]]], "'p' must hold numbers"),
    ],
)
def test_lists_that_are_no_probabilities_of_classes(values, words):
    dataset = pa.dataset.dataset(pa.table({"label": [0, 1], "p": values}))
    with pytest.raises(ValueError, match=words):
        list(read_parquet(dataset, probability="p"))
