"""Data frames and their columns as inputs of a model."""

import datetime

import keras
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import tensorflow as tf

import keras_calibration as kc
from calibration_records._columns import column_of, ids_of
from keras_calibration._rows.inputs import entering, expected_inputs, inputs_of
from keras_calibration._rows.weights import counted_rows
from keras_calibration.layers import PlattScaling
from symbols import symbols

pytestmark = pytest.mark.tensorflow


@pytest.fixture(scope="module")
def frame():
    generator = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "site": generator.choice(["a", "b", "c"], 400),
            "price": generator.normal(size=400),
            "label": generator.integers(0, 2, 400),
        }
    )


@pytest.mark.parametrize(
    "column",
    [
        pd.Series(["a", None]),
        pd.Series(["a", np.nan], dtype=object).astype("category"),
        pd.Series(["a", None], dtype="string[pyarrow]"),
        pl.Series(["a", None]),
        pl.Series(["a", None], dtype=pl.Categorical),
        pa.chunked_array([["a", None]]).dictionary_encode(),
        np.array(["a", None], object),
        ["a", float("nan")],
        ["a", None],
    ],
    ids=lambda column: type(column).__name__,
)
def test_missing_strings_are_empty_and_said_to_be(column):
    site = keras.Input((), dtype="string", name="site")
    with pytest.warns(UserWarning, match="'site'.* 1 of 2 rows"):
        array = inputs_of({"site": column}, {"site": site})["site"]
    np.testing.assert_array_equal(array, ["a", ""])


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([1e9 + 1, 1e9 + 2]), [10**9 + 1, 10**9 + 2]),
        (np.array([2.0**53 - 1, -(2.0**53) + 1]), [2**53 - 1, -(2**53) + 1]),
        (np.array([2.0**24 - 1], "float32"), [2**24 - 1]),
        (np.array([2047], "float16"), [2047]),
        (pl.Series([1e9 + 1]), [10**9 + 1]),
        (pd.Series([10**18 + 1], dtype="Int64"), [10**18 + 1]),
        (tf.constant([1e9 + 1], tf.float64), [10**9 + 1]),
        (tf.constant([255], tf.bfloat16), [255]),
        ([True, False], [1, 0]),
    ],
)
def test_whole_numbers_are_exact_ids(values, expected):
    np.testing.assert_array_equal(ids_of(values, "'site'").astype(object), expected)
    site = keras.Input((), dtype="int64", name="site")
    received = entering(values, "'site'", site)
    assert received.dtype == "int64"
    np.testing.assert_array_equal(received, expected)


@pytest.mark.parametrize(
    ("values", "dtype", "message"),
    [
        (np.array([2.0**24], "float32"), "int64", r"16777216 in row 0 as float32"),
        (np.array([3, 2048], "float16"), "int32", r"2048 in row 1 as float16"),
        (tf.constant([256], tf.bfloat16), "int32", r"256 in row 0 as bfloat16"),
        (np.array([2.0**53]), "int64", r"as float64.*Read"),
        (np.array([np.inf]), "int64", "inf in row 0"),
        ([1e9 + 1.5], "int64", r"1000000001\.5 in row 0"),
        ([2**31], "int32", r'2147483648 in row 0.*dtype="int64"'),
        ([5, -1], "uint8", "from 0 to 255.*-1 in row 1"),
        ([2**63], "int64", "below 2⁶³.*StringLookup"),
        ([2**64 + 1, 1], "int64", "as float64"),
        ([10**9], "float32", r"to 16777216.*1000000000 in row 0.*int64"),
        ([10**9], "float64", "to 16777216"),
        ([2049], "float16", "to 2048"),
        ([257], "bfloat16", "to 256"),
        ([1.0, np.nan], "float32", "nan in row 1"),
        ([0.5], "float32", "0.5 in row 0"),
    ],
)
def test_ids_that_would_change_are_refused(values, dtype, message):
    with pytest.raises(ValueError, match="(?s)'site'.*" + message):
        entering(values, "'site'", keras.Input((), dtype=dtype, name="site"), is_id=True)


def test_a_column_of_missing_values_is_one_of_empty_strings_for_a_string_input():
    site = keras.Input((), dtype="string", name="site")
    with pytest.warns(UserWarning, match="'site'.* 2 of 2 rows"):
        received = entering([None, np.nan], "'site'", site)
    assert received.tolist() == ["", ""]


@pytest.mark.parametrize(
    ("values", "dtype", "is_exact"),
    [
        (np.array([1e9 + 1]), "int64", True),
        (np.array([2**24], "float32"), "int64", False),
        (np.array([1.5]), "int32", False),
        (np.array([np.nan]), "int32", False),
        (np.array([2**31]), "int32", False),
        (np.array([2**31 - 1]), "int32", True),
        (np.array([-(2**31)]), "int32", True),
        (np.array([2**31]), "int64", True),
        (np.array([7], "int8"), "float32", True),
        (np.array([10**9]), "float32", False),
    ],
)
def test_graphs_refuse_ids_that_would_change(values, dtype, is_exact):
    site = keras.Input((), dtype=dtype, name="site")
    step = tf.function(lambda ids: tf.cast(entering(ids, "'site'", site, is_id=True), dtype))
    if is_exact:
        assert int(step(tf.constant(values))[0]) == int(values[0])
        return
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"site.* whole numbers"):
        step(tf.constant(values))


UNREAD = {
    "at": [datetime.datetime(2026, 1, 1)] * 3,
    "tags": [["x"], ["y", "z"], []],
    "none": [None] * 3,
    "when": [datetime.date(2026, 1, 1)] * 3,
}


@pytest.mark.parametrize("table", [dict, pd.DataFrame, pl.DataFrame, pa.table])
def test_only_columns_that_are_read_are_converted(table):
    x = table({"site": [3.0, 1.0, 2.0], "price": [1, 2, 3], **UNREAD})
    expected = symbols(site="int32", price=())
    for form in (expected, list(expected.values())):
        received = inputs_of(x, form, ids=["site"])
        assert list(received) == ["site", "price"]
        np.testing.assert_array_equal(received["site"], np.int32([3, 1, 2]))
        np.testing.assert_array_equal(received["price"], np.float32([1, 2, 3]))
    one = inputs_of(x, expected["price"])
    np.testing.assert_array_equal(one["price"], np.float32([1, 2, 3]))
    with pytest.raises(ValueError, match=r"no 'prices'\. Did you mean 'price'\?"):
        inputs_of(x, {"prices": keras.Input(())})


def test_nested_inputs_are_exact_too():
    site = keras.Input((), dtype="int64", name="site")
    price, age = keras.Input((), name="price"), keras.Input((1,), name="age")
    expected = {"user": {"site": site}, "numbers": [price, age]}
    frame = pl.DataFrame({"site": [1e9 + 1], "at": [datetime.date(2026, 1, 1)]})
    x = {"user": frame, "numbers": [[2], np.array([[3]])], "more": [[]]}
    received = inputs_of(x, expected)
    assert received["user"]["site"].tolist() == [10**9 + 1]
    assert [array.dtype for array in received["numbers"]] == ["float32", "float32"]
    with pytest.raises(ValueError, match=r"'numbers\[0\]'.*strings"):
        inputs_of({**x, "numbers": [["a"], [[3]]]}, expected)


@pytest.mark.parametrize("width", [1, 4])
def test_a_column_of_another_width_is_refused_by_name(width):
    with pytest.raises(ValueError, match=rf"'x'.*\(None, 3\).*\(5, {width}\)"):
        inputs_of({"x": np.zeros((5, width))}, {"x": keras.Input((3,))})


def test_tables_that_cannot_be_read_say_so():
    frame = pd.DataFrame([[1, 2, 3, 4, 5]], columns=["site", "site", 0, "0", "price"])
    inputs_of(frame, {"price": keras.Input(())})
    for name in ("site", "0"):
        with pytest.raises(ValueError, match=f"several columns '{name}'"):
            inputs_of(frame, {name: keras.Input((), name="it")})
    with pytest.raises(ValueError, match=r"in memory.*LazyFrame.*collect"):
        inputs_of(pl.DataFrame({"site": [1]}).lazy(), {"site": keras.Input(())})
    relation = pytest.importorskip("duckdb").from_df(frame[["price"]])
    with pytest.raises(ValueError, match=r"'price'.*DuckDB"):
        inputs_of(relation, {"price": keras.Input(())})
    for column in ([[1], [2, 3]], [2, "b"], [b"a", 1]):
        with pytest.raises(ValueError, match="'it'"):
            column_of(column, "'it'")


def test_a_data_frame_is_one_matrix_where_the_model_takes_one(frame):
    base = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, "sigmoid")])
    x = frame[["price"]].assign(other=frame["price"] ** 2).astype(object)
    model = kc.calibrate(base, x, frame["label"], methods="bias", verbose=0)
    expected = model.predict(x.to_numpy().astype("float32"), verbose=0)
    np.testing.assert_array_equal(model.predict(x, verbose=0), expected)


@pytest.mark.parametrize("form", [np.asarray, pd.DataFrame, pl.DataFrame, pa.table])
@pytest.mark.parametrize("takes", ["matrix", "names", "structure"])
def test_rows_of_weight_0_may_hold_anything_in_every_form(form, takes):
    """They count as if they were not there, also beside columns that are not read."""
    generator = np.random.default_rng(0)
    columns = {name: generator.normal(size=200).tolist() for name in "ab"}
    labels, weights = generator.random(200) < 0.4, generator.choice([0.0, 1.0, 2.5], 200)
    broken = {n: np.where(weights == 0, np.nan, c).astype("float32") for n, c in columns.items()}
    if takes == "matrix":
        inputs = logit = keras.Input((2,))
        x = np.stack(list(broken.values()), axis=1) if form is np.asarray else form(broken)
    else:
        inputs = {name: keras.Input((1,), name=name) for name in "ab"}
        logit = keras.layers.Concatenate()(list(inputs.values()))
        x = {**broken, "tags": [[1] * (row % 3) for row in range(200)]}
        x = x if form is np.asarray else form(x)
    if takes == "structure":
        inputs, x = {"all": inputs}, {"all": x}
    logit = keras.layers.Dense(1, kernel_initializer="ones")(logit)
    model = keras.Model(inputs, keras.layers.Activation("sigmoid")(PlattScaling()(logit)))
    kc.fit_head(model, x, labels, weights, verbose=0)
    received = [np.array(weight) for weight in model.layers[-2].weights]
    logits = np.float32(columns["a"]) + np.float32(columns["b"])
    expected = PlattScaling()
    expected.fit(logits[weights > 0], labels[weights > 0], sample_weight=weights[weights > 0])
    for value, weight in zip(received, expected.weights, strict=True):
        np.testing.assert_allclose(value, weight, rtol=1e-4)


def test_a_row_of_weight_0_needs_no_value_that_a_column_could_hold():
    expected = {"price": keras.Input((), name="price"), "user": [keras.Input((), dtype="int64")]}
    x = {"price": [None, 2.0, "?"], "user": [[1.5, 7.0, 2.0**70]], "tags": [[], [1], [2]]}
    frame = pd.DataFrame(x["price"], columns=["price"])
    counted = counted_rows(np.array([0.0, 1.0, 0.0]))
    received = inputs_of(x, expected, counted=counted)
    assert received["price"].tolist() == [2.0]
    assert received["user"][0].tolist() == [7]
    for structure in (keras.Input((1,)), {"all": {"price": expected["price"]}}):
        inputs = {"all": frame} if isinstance(structure, dict) else frame
        (column,) = keras.tree.flatten(inputs_of(inputs, structure, counted=counted))
        assert column.reshape(-1).tolist() == [2.0]


def test_inputs_keep_their_structure_and_take_the_rank_of_the_model():
    late, early = keras.Input((1,), name="z"), keras.Input((), name="a")
    columns = {"a": np.zeros((3, 1)), "z": np.ones(3), "more": np.zeros(3)}
    received = expected_inputs(columns, [late, early])
    assert [array.shape for array in received] == [(3, 1), (3,)]
    assert received[0][0, 0] == 1
    wide = keras.Input((4,), name="wide")
    assert expected_inputs(np.zeros((3, 4)), wide).shape == (3, 4)
    assert expected_inputs(np.zeros((3, 4)), early).shape == (3, 4)  # Keras refuses it
