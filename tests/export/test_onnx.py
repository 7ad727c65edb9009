"""ONNX files give the Keras model's probabilities, or there is no file."""

import sys

import keras
import numpy as np
import pytest

import keras_calibration as kc
from keras_calibration.export import export_onnx
from keras_calibration.export.onnx.export import run_onnx
from served import symbolic_inputs
from trained_heads import train_head

for package in ("tf2onnx", "onnx", "onnxruntime"):
    pytest.importorskip(package)
pytestmark = pytest.mark.tensorflow


def make_inputs(num_rows):
    """Rows with ids that no field has and with missing numbers."""
    rng = np.random.default_rng(0)
    inputs = {
        "site": rng.integers(0, 10, num_rows).astype("int32"),
        "class": rng.integers(-1, 7, (num_rows, 1)),
        "bid-price": rng.normal(size=num_rows).astype("float32"),
    }
    inputs["bid-price"][::7] = np.nan
    return inputs


def as_served(inputs):
    """The columns under the names that TensorFlow takes."""
    return {("class_" if name == "class" else name): values for name, values in inputs.items()}


def make_model(dtype="int32", vocabulary=9):
    keras.utils.set_random_seed(0)
    inputs, price = symbolic_inputs(dtype)
    columns = [price, keras.ops.cast(inputs["class"], "float32")]
    if dtype != "string":
        columns.append(keras.layers.Embedding(10, 4)(inputs["site"]))
    hidden = keras.layers.Dense(8, "relu")(keras.layers.Concatenate()(columns))
    base = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(hidden))
    network = kc.layers.FieldNetwork(
        {"site": vocabulary, "class": 5}, numeric=["bid-price"], num_coarse_knots=4
    )
    head = kc.layers.NeuralCalibration(kc.layers.ILPS(), network)
    return kc.models.CalibratedModel(base, head)


@pytest.fixture(scope="module")
def model():
    """A fitted model of numeric inputs."""
    fitted = make_model()
    inputs = make_inputs(600)
    labels = np.random.default_rng(1).random(600) < 0.1 + 0.06 * inputs["site"]
    train_head(fitted, inputs, labels.astype("float32"), batch_size=50, epochs=3)
    return fitted


def test_a_file_gives_the_models_outputs(model, tmp_path):
    path = export_onnx(model, tmp_path / "deep" / "model", sample=make_inputs(64))
    inputs = make_inputs(301)
    outputs = run_onnx(path, as_served(inputs))
    tensors = {name: keras.ops.convert_to_tensor(values) for name, values in inputs.items()}
    expected = {
        "probability": np.asarray(model(tensors)),
        "logit": np.asarray(model.base(tensors)),
        "uncalibrated_probability": np.asarray(model.base_model(tensors)),
    }
    assert outputs.keys() == expected.keys()
    assert not np.array_equal(expected["probability"], expected["uncalibrated_probability"])
    for name, values in outputs.items():
        assert values.dtype == np.float32
        np.testing.assert_allclose(
            values, expected[name], rtol=0, atol=1e-6 + 4e-6 * (name == "logit")
        )
    assert [entry.name for entry in path.parent.iterdir()] == ["model"]


def test_a_file_that_is_wrong_for_a_single_row_is_not_left(tmp_path, monkeypatch):
    def wrong_alone(path, inputs):
        outputs = run_onnx(path, inputs)
        is_alone = len(outputs["probability"]) == 1
        return {name: values + 0.1 * is_alone for name, values in outputs.items()}

    inputs = keras.Input((1,), name="x")
    base = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(inputs))
    model = kc.models.CalibratedModel(base, kc.layers.PlattScaling())
    model.head.fit(np.linspace(-1, 1, 50), np.arange(50) % 3 < np.arange(50) // 20)
    monkeypatch.setattr("keras_calibration.export.onnx.export.run_onnx", wrong_alone)
    with pytest.raises(RuntimeError, match=r"0\.1"):
        export_onnx(model, tmp_path / "model.onnx")
    assert [*tmp_path.iterdir()] == []


@pytest.mark.slow
def test_a_weighted_mean_with_trees(tmp_path):
    rows = make_inputs(600)
    trees = kc.layers.BoostedTrees({"site": 9, "class": 5}, ["bid-price"])
    curve = kc.layers.FieldBias({"site": 9}, kc.layers.ILPS())
    mean = kc.layers.BlendedHead([trees, curve, kc.layers.PlattScaling()], [0.5, 0.3, 0.1])
    model = kc.models.CalibratedModel(make_model().base_model, mean)
    logits = np.asarray(model.base(rows))[:, 0].astype(float)
    off = np.where((rows["site"] > 4) & (rows["bid-price"] > 0), 2.0, -0.5)
    labels = np.random.default_rng(2).random(600) < 1 / (1 + np.exp(-logits - off))
    mean.fit(logits, labels, {name: rows[name] for name in mean.feature_names})
    path = export_onnx(model, tmp_path / "model", sample=make_inputs(64))
    new = make_inputs(301)
    new["bid-price"][:4] = [50.0, -50.0, np.nan, 0.0]
    received = run_onnx(path, as_served(new))
    expected = np.asarray(model({n: keras.ops.convert_to_tensor(c) for n, c in new.items()}))
    np.testing.assert_allclose(received["probability"], expected, rtol=0, atol=1e-6)
    assert np.abs(expected - received["uncalibrated_probability"]).max() > 0.05


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
    with pytest.raises(ValueError, match=r"which is a Hashing|which has num_oov_indices"):
        export_onnx(make_model(dtype, lookup), tmp_path / "new" / "model")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_is_named(model, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match=r"keras-calibration\[onnx\]"):
        export_onnx(model, tmp_path / "new" / "model.onnx")
    assert list(tmp_path.iterdir()) == []
