"""ONNX files give the Keras model's outputs, without TensorFlow, or there is no file.

Those of every head are in `test_other_tools.py`.
"""

import json
import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_calibration as kc
from keras_calibration.export import export_onnx
from keras_calibration.export.onnx.export import run_onnx
from served import tensors_of
from symbols import symbols

onnx = pytest.importorskip("onnx")
pytest.importorskip("tf2onnx")
pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.tensorflow

SITES = ["news", "mail", "ümlaut", "a b", "'; DROP", "[UNK]x", "1", "1.0"]
# What no vocabulary has, and what is easily mistaken.
HOSTILE = [*SITES, "", " news", "News", "[UNK]", "news\n", "日本", "NaN", "0"]


def make_rows(num_rows, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "site": rng.choice(np.array(HOSTILE, object), num_rows),
        "class": rng.choice([-1, 0, 3, 5, 7, 2**40, -(2**40)], num_rows),
        "bid-price": rng.normal(size=(num_rows, 1)).astype("float32"),
    }


def labels_of(rows, seed=1):
    rate = np.where(rows["site"] == "news", 0.7, 0.2) + 0.1 * (rows["class"] == 3)
    return (np.random.default_rng(seed).random(len(rate)) < rate).astype("float32")


@pytest.fixture(scope="module")
def model():
    """Strings and whole numbers are looked up by the base and by the head, with other words."""
    keras.utils.set_random_seed(0)
    inputs = symbols(**{"site": "string", "class": "int64", "bid-price": (1,)})
    site = keras.layers.StringLookup(vocabulary=SITES[:5], mask_token="")(inputs["site"])
    number = keras.layers.IntegerLookup(vocabulary=[3, 5, 2**40], mask_token=0)(inputs["class"])
    ids = [keras.layers.Embedding(7, 3)(site), keras.layers.Embedding(6, 3)(number)]
    hidden = keras.layers.Dense(8, "tanh")(keras.layers.Concatenate()([*ids, inputs["bid-price"]]))
    base = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(hidden))
    fields = {
        "site": keras.layers.StringLookup(vocabulary=SITES[1:]),
        "class": keras.layers.IntegerLookup(vocabulary=[-1, 3, 7]),
    }
    fitted = kc.models.CalibratedModel(base, kc.layers.FieldBias(fields, kc.layers.ILPS()))
    rows = make_rows(3000)
    kc.fit_head(fitted, tensors_of(rows), labels_of(rows), verbose=0)
    return fitted


@pytest.fixture(scope="module")
def path(model, tmp_path_factory):
    return export_onnx(model, tmp_path_factory.mktemp("onnx") / "deep" / "ctr", interval=0.9)


def as_served(rows):
    """The columns under the names that TensorFlow takes."""
    return {("class_" if name == "class" else name): values for name, values in rows.items()}


def test_a_file_gives_the_models_outputs(model, path):
    rows = make_rows(500, seed=2)
    received = run_onnx(path, as_served(rows))
    tensors = tensors_of(rows)
    features = {name: tensors[name] for name in ("site", "class")}
    low, high = model.head.interval(received["logit"], features, level=0.9)
    expected = {
        "probability": model(tensors),
        "uncalibrated_probability": model.base_model(tensors),
        "logit": model.base(tensors),
        "probability_lower": low,
        "probability_upper": high,
    }
    assert received.keys() == expected.keys()
    for name, values in expected.items():
        assert received[name].dtype == np.float32
        atol = 5e-6 if name == "logit" else 1e-6
        np.testing.assert_allclose(received[name], np.asarray(values), rtol=0, atol=atol)
    assert np.ptp(received["probability"]) > 0.1
    # The lookups of the base are at work, and tell unknown values from missing ones.
    assert len(np.unique(received["logit"][rows["class"] == 0])) > 5
    assert [entry.name for entry in path.parent.iterdir()] == ["ctr"]


def test_an_id_of_each_value_is_its_place_in_the_vocabulary(path):
    """Of rows that differ in one value alone, those of unknown values are equal, and no others."""
    rows = {name: np.repeat(values[:1], len(HOSTILE), 0) for name, values in make_rows(1).items()}
    logits = run_onnx(path, as_served({**rows, "site": np.array(HOSTILE, object)}))["logit"][:, 0]
    by_value = dict(zip(HOSTILE, logits, strict=True))
    of_vocabulary = [by_value[value] for value in [*SITES[:5], ""]]
    unknown = {by_value[value] for value in HOSTILE if value not in [*SITES[:5], ""]}
    assert len(unknown) == 1
    assert len({*of_vocabulary, *unknown}) == 7


def test_older_runtimes_can_load_the_intervals(path):
    """ONNX Runtime before 1.26 cannot fold the `Unique` that a sum over segments becomes."""
    assert "Unique" not in {node.op_type for node in onnx.load(path).graph.node}


@pytest.mark.filterwarnings("ignore:1 of 8 predictions are NaN")  # a row has no score
def test_it_runs_in_a_process_without_tensorflow(model, path, tmp_path):
    rows = make_rows(8)
    rows["bid-price"][::2] = [[np.nan], [np.inf], [-np.inf], [1e30]]
    program = f"""
import json, sys
import numpy as np, onnxruntime
session = onnxruntime.InferenceSession({str(path)!r}, providers=["CPUExecutionProvider"])
rows = json.loads(sys.stdin.read())
kinds = {{"site": object, "class_": "int64", "bid-price": "float32"}}
inputs = {{name: np.array(values, kinds[name]) for name, values in rows.items()}}
probabilities = session.run(["probability"], inputs)[0]
assert not {{"tensorflow", "keras", "keras_calibration"}} & set(sys.modules)
print(json.dumps(probabilities.tolist()))
"""
    process = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps({name: values.tolist() for name, values in as_served(rows).items()}),
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    expected = model.predict(tensors_of(rows), verbose=0)
    np.testing.assert_allclose(json.loads(process.stdout), expected, rtol=0, atol=1e-6)


def test_a_file_that_is_wrong_for_a_single_row_is_not_left(model, tmp_path, monkeypatch):
    def wrong_alone(path, inputs):
        outputs = run_onnx(path, inputs)
        is_alone = len(outputs["probability"]) == 1
        return {name: values + 0.1 * is_alone for name, values in outputs.items()}

    monkeypatch.setattr("keras_calibration.export.onnx.export.run_onnx", wrong_alone)
    with pytest.raises(RuntimeError, match=r"0\.1"):
        export_onnx(model, tmp_path / "model.onnx")
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("dtype", "lookup"),
    [
        ("int32", keras.layers.Hashing(4)),
        ("int32", keras.layers.IntegerLookup(vocabulary=[3, 5], num_oov_indices=2)),
        ("string", keras.layers.StringLookup(vocabulary=["a"], num_oov_indices=0)),
    ],
    ids=["hashing", "buckets", "strict"],
)
def test_models_that_cannot_run_there_are_refused(dtype, lookup, tmp_path):
    inputs = symbols(site=dtype, x=(1,))
    base = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(inputs["x"]))
    model = kc.models.CalibratedModel(base, kc.layers.FieldBias({"site": lookup}))
    with pytest.raises(ValueError, match=r"which is a Hashing|which has num_oov_indices"):
        export_onnx(model, tmp_path / "new" / "model")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_is_named(model, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match=r"keras-calibration\[onnx\]"):
        export_onnx(model, tmp_path / "new" / "model.onnx")
    assert list(tmp_path.iterdir()) == []
