"""A C program on TensorFlow's C API serves what the Keras model gives; bad input never ends it."""

import json
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_calibration as kc
from served import symbolic_inputs
from serving import c_client

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.skipif(c_client.find_compiler() is None, reason=c_client.NO_COMPILER),
]
SAMPLES = sorted((Path(__file__).parents[2] / "savedmodels").glob("*/sample_*.json"))
VALUES = {"string": ["news", "mail", "shop", "straße"], "int32": [0, 1, 2, 3]}


def make_rows(dtype, num_rows):
    """Rows with values that the field lacks and missing numbers."""
    rng = np.random.default_rng(num_rows)
    values = VALUES[dtype]
    sites = np.array(values)[rng.integers(0, 4, num_rows)]
    return {
        "site": sites if dtype == "string" else sites.astype("int32"),
        "class": rng.integers(0, 6, (num_rows, 1)),
        "bid-price": rng.normal(size=num_rows).astype("float32"),
    }


def make_model(dtype):
    """A fitted model on a string or a numeric field, one on int64, and a number."""
    keras.utils.set_random_seed(0)
    inputs, price = symbolic_inputs(dtype)
    ids = inputs["site"]
    if dtype == "string":
        ids = keras.layers.StringLookup(vocabulary=VALUES["string"])(ids)
    columns = [
        price,
        keras.layers.Embedding(8, 4)(ids),
        keras.layers.Flatten()(keras.layers.Embedding(6, 2)(inputs["class"])),
    ]
    hidden = keras.layers.Dense(16, "relu")(keras.layers.Concatenate()(columns))
    base = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(hidden))
    lookup = keras.layers.StringLookup(vocabulary=VALUES["string"]) if dtype == "string" else 4
    head = kc.layers.FieldBias({"site": lookup, "class": 5}, kc.layers.ILPS(), ["bid-price"])
    model = kc.models.CalibratedModel(base, head)
    rows = make_rows(dtype, 600)
    shop = rows["site"] == VALUES[dtype][2]
    labels = np.random.default_rng(0).random(600) < np.where(shop, 0.6, 0.2)
    kc.fit_head(model, rows, labels, verbose=0)
    return model


@pytest.fixture(scope="module", params=["int32", "string"])
def served(request, tmp_path_factory):
    """Dtype of the field, the Keras model and its SavedModel."""
    model = make_model(request.param)
    folder = tmp_path_factory.mktemp("served") / "ctr" / "1"
    rows = make_rows(request.param, 64)
    path = kc.export_savedmodel(model, folder, rows)
    return request.param, model, path


def expected_of(model, rows):
    tensors = {name: keras.ops.convert_to_tensor(values) for name, values in rows.items()}
    outputs = {
        "probability": model(tensors),
        "uncalibrated_probability": model.base_model(tensors),
        "logit": model.base(tensors),
    }
    return {name: np.asarray(values)[:, 0] for name, values in outputs.items()}


def as_inputs(rows):
    """The signature's name of `class`, which is a keyword."""
    return {{"class": "class_"}.get(name, name): values for name, values in rows.items()}


@pytest.mark.slow
def test_the_c_program_gives_the_models_probabilities(served):
    dtype, model, path = served
    for num_rows in (1, 257):
        rows = make_rows(dtype, num_rows)
        received = c_client.serve(path, as_inputs(rows))
        for name, expected in expected_of(model, rows).items():
            np.testing.assert_allclose(received[name], expected, rtol=1e-6, atol=1e-6)
        assert np.abs(received["probability"] - received["uncalibrated_probability"]).max() > 1e-3


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.parent.name)
def test_the_shipped_models_are_served_from_c(sample):
    recorded = json.loads(sample.read_text(encoding="utf-8"))
    columns = {
        name: [np.nan if value is None else value for value in values]
        for name, values in recorded["inputs"].items()
    }
    received = c_client.serve(sample.parent / sample.stem.removeprefix("sample_"), columns)
    np.testing.assert_allclose(received["probability"], recorded["probability"], atol=1e-6)


@pytest.mark.slow
def test_bad_requests_are_errors_and_not_the_end_of_the_process(served, tmp_path):
    dtype, _, path = served
    inputs = as_inputs(make_rows(dtype, 4))
    bad = {
        "site": {name: values for name, values in inputs.items() if name != "site"},
        "": {**inputs, "bid-price": inputs["bid-price"][:2]},
        # An id that the base model's own embedding does not have.
        "is not in [0, 6)": {**inputs, "class_": np.full((4, 1), 10**9)},
    }
    request = tmp_path / "request"
    for words, columns in bad.items():
        c_client.write_request(request, path, columns)
        done = c_client.run([str(path), str(request)])
        assert done.returncode == 1, done.stderr
        assert words in done.stderr
