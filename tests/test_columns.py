"""Data frames and their columns as inputs."""

import keras
import numpy as np
import pandas as pd
import pytest

import keras_calibration as kc
from keras_calibration._columns import column_of, inputs_of

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


@pytest.fixture(scope="module")
def base():
    inputs = {
        "site": keras.Input((), dtype="string", name="site"),
        "price": keras.Input((), name="price"),
    }
    column = keras.ops.expand_dims(inputs["price"], 1)
    return keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(column))


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
    ],
)
def test_columns_become_arrays(column, expected):
    array = column_of(column, "'it'")
    assert isinstance(array, np.ndarray)
    assert array.dtype.kind in "iufU"
    np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize(
    "column", [pd.Series(["a", None]), pd.Series(["a", np.nan], dtype=object).astype("category")]
)
def test_missing_strings_are_empty_and_said_to_be(column):
    with pytest.warns(UserWarning, match=r"Input 'site' has missing .* 1 of 2 rows.*fillna"):
        array = inputs_of({"site": column})["site"]
    np.testing.assert_array_equal(array, ["a", ""])


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pd.Series(["a", 3]), r"'it'.*\['int', 'str'\]"),
        (pd.Series([(1, 2), (3, 4)]), r"'it'.*\['tuple'\]"),
        (pd.Series(pd.to_datetime(["2026-01-01"])), "'it'.*datetime64"),
    ],
)
def test_other_columns_are_refused_by_name(column, message):
    with pytest.raises(ValueError, match=message):
        inputs_of(pd.DataFrame({"it": column}))


def test_what_the_model_does_not_take_is_refused_by_name():
    expected = {"id": keras.Input((), dtype="int32"), "price": keras.Input(())}
    good = {"id": pd.Series([1.0, 2.0]), "price": np.array([1, 2])}
    inputs_of(good, expected)
    for name, column, message in [
        ("id", pd.Series([1.0, np.nan]), r"'id'.*integers \(int32\).*nan in row 1"),
        ("id", [1.5, 2], r"'id'.*1.5 in row 0"),
        ("price", ["1", "2"], r"'price'.*numbers \(float32\)"),
    ]:
        with pytest.raises(ValueError, match=message):
            inputs_of({**good, name: column}, expected)


def test_a_data_frame_goes_all_the_way(frame, base):
    x = frame[["site", "price"]]
    model = kc.calibrate(base, x, frame["label"], fields=["site"], method="field_bias", verbose=0)
    arrays = {name: frame[name].to_numpy() for name in x}
    arrays["site"] = keras.ops.convert_to_tensor(arrays["site"].astype(str))
    expected = model.predict(arrays, verbose=0)
    for given in (x, dict(x), x.astype({"site": "category", "price": object})):
        np.testing.assert_array_equal(model.predict(given, verbose=0), expected)
        np.testing.assert_array_equal(model.base_logits(given), model.base_logits(arrays))
    model.compile()
    labels = frame["label"].to_numpy()
    scores = [model.evaluate(given, labels, verbose=0) for given in (arrays, x, dict(x))]
    assert scores == scores[:1] * 3
    model.fit(x, frame["label"].astype("Int64"), validation_data=(x, frame["label"]), verbose=0)
    with pytest.warns(UserWarning, match="'site' has missing"):
        model.predict(x.assign(site=x["site"].where(x.index > 0)), verbose=0)


def test_a_data_frame_is_one_matrix_where_the_model_takes_one(frame):
    base = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, "sigmoid")])
    x = frame[["price"]].assign(other=frame["price"] ** 2).astype(object)
    model = kc.calibrate(base, x, frame["label"], method="bias", verbose=0)
    expected = model.predict(x.to_numpy().astype("float32"), verbose=0)
    np.testing.assert_array_equal(model.predict(x, verbose=0), expected)
