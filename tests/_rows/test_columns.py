"""Columns of data frames, arrays and lists, as arrays."""

import decimal
import types
import warnings

import keras
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import keras_calibration as kc
from calibration_records._columns import as_array, column_of, ids_of
from keras_calibration._rows.columns import field_values, is_sparse, numbers_in_float32, take
from keras_calibration.calibration.candidates import vocabularies
from keras_calibration.scoring.rows_to_score import RowsToScore

pytestmark = pytest.mark.tensorflow


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pd.Series(["a", "b"]), ["a", "b"]),
        (pd.Series(["a", "b"], dtype=object), ["a", "b"]),
        (pd.Series(["a", "b"]).astype("category"), ["a", "b"]),
        (pd.Series([b"a", b"b"]), ["a", "b"]),
        (pd.Series([3, 1]).astype("category"), [3, 1]),
        (pd.Series([3, 1], dtype="Int64"), [3, 1]),
        (pd.Series([3, None], dtype="Int64"), [3, np.nan]),
        (pd.Series([True, None], dtype="boolean"), [1, np.nan]),
        (pd.Series([0.5, 2], dtype=object), [0.5, 2]),
        (pd.Series([1, None, np.nan], dtype=object), [1, np.nan, np.nan]),
        ([1, 2], [1, 2]),
        (list(np.array([1, 2])), [1, 2]),
        (pd.Series([3, 1], dtype="int64[pyarrow]"), [3, 1]),
        (pd.Series([2**60 + 1, 3], dtype="Int64"), [2**60 + 1, 3]),
        (pl.Series([3, None]), [3, np.nan]),
        (pl.Series(["a", "b"], dtype=pl.Categorical), ["a", "b"]),
        (pl.Series(["a", "b"], dtype=pl.Enum(["b", "a"])), ["a", "b"]),
        (pa.chunked_array([[3], [None]]), [3, np.nan]),
        (pa.chunked_array([["a"], ["b"]]).dictionary_encode(), ["a", "b"]),
        # NumPy reads another value of the dictionary in place of the missing one.
        (pa.chunked_array([[5, None, 7]]).dictionary_encode(), [5, np.nan, 7]),
        ([decimal.Decimal("1.5"), None], [1.5, np.nan]),
    ],
)
def test_columns_become_arrays(column, expected):
    array = column_of(column, "'it'")
    assert isinstance(array, np.ndarray)
    assert array.dtype.kind in "iufU"
    np.testing.assert_array_equal(array, expected)


def test_masked_arrays_are_refused():
    with pytest.raises(ValueError, match=r"'it'.*mask.*tolist"):
        column_of(np.ma.array([7, 2], mask=[False, True]), "'it'")
    values = np.ma.array([7, 2], mask=[False, True]).tolist()
    np.testing.assert_array_equal(column_of(values, "'it'"), [7, np.nan])


GAPS = {
    "floats": pd.Series([7.0, np.nan]),
    "nullable": pd.Series([7, None], dtype="Int64"),
    "nullable floats": pd.Series([7.0, None], dtype="Float64"),
    "category": pd.Series([7.0, np.nan]).astype("category"),
    "category of integers": pd.Series([7, None], dtype="Int64").astype("category"),
    "objects": pd.Series([7, None], dtype=object),
    "Arrow in pandas": pd.Series([7, None], dtype="int64[pyarrow]"),
    "array": np.array([7.0, np.nan]),
    "array of objects": np.array([7, pd.NA], object),
    "list": [7, None],
    "list of floats": [7.0, float("nan")],
    "Polars": pl.Series([7, None], dtype=pl.UInt32),
    "Polars floats": pl.Series([7.0, float("nan")]),
    "Polars floats with null": pl.Series([7.0, None]),
    "Arrow": pa.chunked_array([[7, None]]),
    "Arrow floats": pa.chunked_array([[7.0, None]]),
    "Arrow dictionary": pa.chunked_array([[7, None]]).dictionary_encode(),
}


@pytest.mark.parametrize("kind", GAPS)
def test_ids_with_gaps_are_refused(kind):
    with pytest.raises(ValueError, match=r"'site'.*nan in row 1.*-1, or the one"):
        ids_of(GAPS[kind], "'site'")


def test_field_values_of_metrics_may_be_missing_but_not_fractions():
    np.testing.assert_array_equal(field_values(pl.Series([1, None]), "'site'"), [1, np.nan])
    with pytest.raises(ValueError, match=r"'site'.*1\.5 in row 1"):
        field_values([1, 1.5], "'site'")
    metric = kc.metrics.FieldECE(3)
    with pytest.raises(ValueError, match=r"'field'.*0\.5 in row 0"):
        metric.update_state([1, 0], [0.5, 0.5], field=np.array([0.5, 1.0]))
    metric.update_state([1, 0, 1], [0.5] * 3, field=pa.chunked_array([[2, None, 2]]))
    assert metric.per_field()["value"].tolist() == [2, -1]


@pytest.mark.parametrize(
    ("column", "is_warned"),
    [
        (20180130 + np.arange(8), True),  # dates as numbers, two apart in float32
        (1_517_270_400.0 + 30 * np.arange(20), True),  # seconds since 1970
        (1_517_270_400.0 + 86_400 * np.arange(2000), False),
        (np.arange(8) * 1e30, False),
        (np.float32([20180130, 20180132]), False),  # nothing is lost any more
        (np.full(9, 20180130), False),
        (np.r_[np.nan, 20180130 + np.arange(8), np.inf], True),
        (np.r_[20180130 + np.arange(200), 3e38], True),
        (np.r_[np.arange(200), 3e38], False),
    ],
)
def test_numbers_that_are_equal_in_float32_are_warned_of(column, is_warned):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        numbers_in_float32(column, "day")
    is_told = ["'day' loses digits" in str(warning.message) for warning in caught]
    assert is_told == [True] * is_warned


def test_a_long_text_does_not_make_the_others_long():
    texts = ["a", "b" * 10**5] + ["c"] * 2000
    column = column_of(texts, "'it'")
    assert column.tolist() == texts
    assert column.nbytes < 10**5
    assert column_of(texts[2:], "'it'").dtype == "U1"


LATIN, IS_LATIN = [b"tea", "café".encode("latin-1"), b"tea", b"bar"], "of UTF-8.*caf.xe9.*latin"


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        *((column, IS_LATIN) for column in (LATIN, np.array(LATIN), np.array(LATIN, object))),
        (["tea", "tea\0", "tea", "bar"], "null character"),  # NumPy and Keras drop it
        (np.array([b"tea", b"tea\0", b"tea", b"bar"], object), "null character"),
    ],
)
def test_texts_that_would_change_are_refused_by_name(column, expected):
    """Also in the vocabulary of a field, and where the head's own lookup reads them."""
    scores, labels = [0.2, 0.8, 0.4, 0.6], [0, 1, 1, 0]
    columns, lookup = {"shop": column}, keras.layers.StringLookup(vocabulary=["tea"])
    doors = {
        "column": lambda: column_of(column, "'shop'"),
        "vocabulary": lambda: vocabularies(["shop"], {"shop": as_array(column)}),
        "fit": lambda: kc.layers.FieldBias({"shop": lookup}).fit(scores, labels, columns),
        "scores": lambda: kc.calibrate_scores(scores, labels, columns, fields=["shop"], verbose=0),
    }
    for door in doors.values():
        with pytest.raises(ValueError, match=f"'shop'.*{expected}"):
            door()
    with pytest.raises(ValueError, match=r"labels.*strings"):
        kc.layers.ILPS().fit(scores, column)
    texts = np.array(["café", "tea"])
    np.testing.assert_array_equal(column_of([text.encode() for text in texts], "'shop'"), texts)
    encoded = np.char.encode(texts)
    assert column_of(encoded, "'shop'") is encoded
    assert vocabularies(["shop"], {"shop": encoded})["shop"].get_vocabulary()[1:] == [*texts]


NUMBERS = [np.array([2, 0, 2]), np.array([], int), np.array([True, False, True]), slice(1, 3)]


@pytest.mark.parametrize("numbers", NUMBERS)
@pytest.mark.parametrize(
    "column", [np.array([7, 8, 9]), np.array([[1.0], [2.0], [3.0]]), np.array(["a", "b", "c"])]
)
def test_rows_of_a_column(column, numbers):
    expected = np.array([column[n] for n in np.arange(3)[numbers]], column.dtype)
    expected = expected.reshape(-1, *column.shape[1:])
    np.testing.assert_array_equal(take(column, numbers), expected)
    tensor = take(keras.ops.convert_to_tensor(column), numbers)
    assert keras.ops.is_tensor(tensor)
    values = np.asarray(tensor.numpy()).astype(column.dtype)
    np.testing.assert_array_equal(values, expected)


def test_rows_of_structures():
    first, second = np.arange(3), np.arange(6.0).reshape(3, 2)
    structure = {"z": first, "a": types.MappingProxyType({"x": second, "none": None})}
    taken = take(types.MappingProxyType(structure), np.array([2]))
    assert list(taken) == ["z", "a"]
    assert list(taken["a"]) == ["x", "none"]
    assert taken["a"]["none"] is None
    np.testing.assert_array_equal(taken["a"]["x"], [[4.0, 5.0]])
    rows = RowsToScore(first, second, None, {"site": first})
    taken = take(rows, slice(1, 2))
    assert isinstance(taken, RowsToScore)
    assert taken.sample_weight is None
    np.testing.assert_array_equal(taken.fields["site"], [1])
    taken = take([first, (second, {"b": first})], np.array([1, 1]))
    assert isinstance(taken[1], tuple)
    np.testing.assert_array_equal(taken[1][1]["b"], [1, 1])
    assert take(None, slice(1)) is None


@pytest.mark.tensorflow
def test_what_is_sparse():
    import scipy.sparse
    import tensorflow as tf

    dense = np.eye(3)
    for values in (scipy.sparse.csr_matrix(dense), scipy.sparse.coo_array(dense)):
        assert is_sparse(values)
    assert is_sparse(tf.sparse.from_dense(dense))
    for values in (dense, tf.constant(dense), dense.tolist(), "column", None):
        assert not is_sparse(values)
