"""The SavedModel gives the Keras model's probabilities, in a process that knows only TensorFlow."""

import json
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

import keras_calibration as kc
from keras_calibration import export

REPOSITORY = Path(__file__).parents[1]

# Loads a SavedModel with TensorFlow alone and prints what a signature gives for rows in JSON.
SERVE = """
import json, sys
import numpy as np

sys.modules["keras_calibration"] = None  # cannot be imported
import tensorflow as tf

request = json.load(sys.stdin)
loaded = tf.saved_model.load(sys.argv[1])
signature = loaded.signatures[request["signature"]]
_, specs = signature.structured_input_signature
specs = {name: specs[name.replace("-", "_")] for name in request["inputs"]}
inputs = {
    name: tf.constant([np.nan if v is None else v for v in values], specs[name].dtype)
    for name, values in request["inputs"].items()
}
inputs = {name: tf.reshape(v, [-1, *specs[name].shape[1:]]) for name, v in inputs.items()}
outputs = signature(**inputs)
print(json.dumps({name: value.numpy()[:, 0].tolist() for name, value in outputs.items()}))
"""


def serve(path, inputs, signature="serving_default"):
    """What a new process gets from the SavedModel."""
    columns = {
        name: [v.decode() if isinstance(v, bytes) else v for v in np.ravel(column).tolist()]
        for name, column in inputs.items()
    }
    request = json.dumps({"signature": signature, "inputs": columns})
    done = subprocess.run(
        [sys.executable, "-c", SERVE, str(path)], input=request, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return {name: np.array(v) for name, v in json.loads(done.stdout.splitlines()[-1]).items()}


@pytest.fixture(scope="module")
def string_model():
    """A fitted model with string, integer and float inputs, one with an odd name."""
    keras.utils.set_random_seed(0)
    inputs = {
        "site": keras.Input((), dtype="string", name="site"),
        "class": keras.Input((1,), dtype="int64", name="class"),
        "bid-price": keras.Input((), name="bid-price"),
    }
    price = keras.ops.expand_dims(inputs["bid-price"], 1)
    category = keras.layers.Embedding(10, 4)(keras.layers.Flatten()(inputs["class"]))
    hidden = keras.layers.Concatenate()([price, keras.layers.Flatten()(category)])
    base = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(hidden))
    rng = np.random.default_rng(0)
    features = {
        "site": rng.choice(["news", "mail", "shop", "new"], 400),
        "class": rng.integers(0, 10, (400, 1)),
        "bid-price": rng.normal(size=400).astype("float32"),
    }
    labels = rng.random(400) < np.where(features["site"] == "news", 0.6, 0.2)
    lookup = keras.layers.StringLookup(vocabulary=["news", "mail", "shop"])
    network = kc.layers.FieldNetwork({"site": lookup, "class": 10}, numeric=["bid-price"])
    model = kc.models.CalibratedModel(base, kc.layers.NeuralCalibration(kc.layers.ILPS(), network))
    model.compile(keras.optimizers.Adam(1e-2))
    model.fit(features, labels, batch_size=50, epochs=3, verbose=0)
    return model, features


def test_a_new_process_serves_the_same_probabilities(string_model, tmp_path):
    model, features = string_model
    path = kc.export_savedmodel(model, tmp_path / "ctr" / "1")
    tensors = {**features, "site": tf.constant(features["site"])}
    expected = model.predict(tensors, verbose=0)[:, 0]
    rows = {export.signature_input(name): column for name, column in features.items()}
    outputs = serve(path, rows)
    assert set(outputs) == {"probability", "uncalibrated_probability", "logit"}
    np.testing.assert_allclose(outputs["probability"], expected, rtol=0, atol=1e-6)
    base = model.base_model.predict(tensors, verbose=0)[:, 0]
    np.testing.assert_allclose(outputs["uncalibrated_probability"], base, rtol=0, atol=1e-6)
    np.testing.assert_allclose(outputs["logit"], np.log(base / (1 - base)), rtol=1e-5, atol=1e-5)
    # Calibration has changed something: the outputs are not one and the same.
    assert np.abs(outputs["probability"] - outputs["uncalibrated_probability"]).max() > 0.05

    # The head reads all three features, so that they all go into this signature too.
    again = serve(path, {**rows, "logit": outputs["logit"]}, "calibrate")
    np.testing.assert_allclose(again["probability"], expected, rtol=0, atol=1e-6)


def test_names_and_dtypes_of_the_inputs_are_kept(string_model, tmp_path):
    model, _ = string_model
    path = kc.export_savedmodel(model, tmp_path / "1")
    saved = saved_model_pb2.SavedModel()
    saved.ParseFromString((path / "saved_model.pb").read_bytes())
    inputs = saved.meta_graphs[0].signature_def["serving_default"].inputs
    dtypes = {name: tf.dtypes.as_dtype(info.dtype).name for name, info in inputs.items()}
    assert dtypes == {"site": "string", "class_": "int64", "bid-price": "float32"}
    sizes = {name: [d.size for d in info.tensor_shape.dim] for name, info in inputs.items()}
    assert sizes == {"site": [-1], "class_": [-1, 1], "bid-price": [-1]}


@pytest.mark.parametrize("structure", ["single", "list"])
def test_inputs_without_a_dictionary(structure, tmp_path):
    inputs = [keras.Input((2,), name="first"), keras.Input((3,), name="second")]
    inputs = inputs[0] if structure == "single" else inputs
    merged = inputs if structure == "single" else keras.layers.Concatenate()(inputs)
    base = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(merged))
    model = kc.models.CalibratedModel(base, kc.layers.ILPS())
    path = kc.export_savedmodel(model, tmp_path / "1")
    rng = np.random.default_rng(0)
    rows = {"first": rng.normal(size=(5, 2)), "second": rng.normal(size=(5, 3))}
    rows = {"first": rows["first"]} if structure == "single" else rows
    expected = model.predict(rows["first"] if structure == "single" else list(rows.values()))
    np.testing.assert_allclose(serve(path, rows)["probability"], expected[:, 0], atol=1e-6)


def test_logits_where_the_sigmoid_has_rounded_to_one(tmp_path):
    inputs = {"x": keras.Input((1,), name="x")}
    layer = keras.layers.Dense(1, "sigmoid", kernel_initializer="ones")
    model = kc.models.CalibratedModel(keras.Model(inputs, layer(inputs["x"])), kc.layers.ILPS())
    path = kc.export_savedmodel(model, tmp_path / "1")
    outputs = serve(path, {"x": [[-50.0], [30.0], [50.0]]})
    np.testing.assert_allclose(outputs["logit"], [-50, 30, 50], rtol=1e-6)


def test_an_existing_path_is_left_alone(string_model, tmp_path):
    model, _ = string_model
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "precious").write_text("kept")
    with pytest.raises(ValueError, match=r"which exists.*choose a new"):
        kc.export_savedmodel(model, tmp_path / "1")
    assert [entry.name for entry in tmp_path.iterdir()] == ["1"]
    assert (tmp_path / "1" / "precious").read_text() == "kept"


def test_only_calibrated_models_are_taken(tmp_path):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    with pytest.raises(ValueError, match=r"Expected a CalibratedModel\. Received: Sequential"):
        kc.export_savedmodel(model, tmp_path / "1")
    assert not list(tmp_path.iterdir())


def test_a_sample_without_an_input_is_refused(string_model, tmp_path):
    model, features = string_model
    with pytest.raises(ValueError, match=r"without \['class'\]"):
        kc.export_savedmodel(model, tmp_path / "1", {k: features[k] for k in ("site", "bid-price")})
    assert not list(tmp_path.iterdir())


def test_a_savedmodel_that_differs_is_not_left_behind(string_model, tmp_path, monkeypatch):
    model, _ = string_model
    write, curve = export._write, model.head.calibrator._free_values
    values = curve.numpy()

    def write_another(model, path):
        curve.assign(values + 0.01)
        write(model, path)
        curve.assign(values)

    monkeypatch.setattr(export, "_write", write_another)
    with pytest.raises(RuntimeError, match=r"gives probabilities up to .* Nothing was written"):
        kc.export_savedmodel(model, tmp_path / "1")
    assert not list(tmp_path.iterdir())


def test_an_export_that_dies_leaves_nothing(string_model, tmp_path, monkeypatch):
    model, _ = string_model

    def fail(model, path):
        path.mkdir()
        raise OSError("disk full")

    monkeypatch.setattr(export, "_write", fail)
    with pytest.raises(OSError, match="disk full"):
        kc.export_savedmodel(model, tmp_path / "1")
    assert not list(tmp_path.iterdir())


def test_the_shipped_model_still_gives_its_numbers():
    for sample in sorted((REPOSITORY / "savedmodels" / "click_log").glob("sample_*.json")):
        recorded = json.loads(sample.read_text())
        outputs = serve(sample.parent / sample.stem.removeprefix("sample_"), recorded["inputs"])
        np.testing.assert_allclose(
            outputs["probability"], recorded["probability"], rtol=0, atol=1e-6
        )
        assert len(recorded["probability"]) == 32
