"""ONNX files give the Keras model's probabilities, or there is no file."""

import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_calibration as kc
from keras_calibration.export import export_onnx, spec
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


def make_model(curve=None, site_spec=("int32", 9)):
    keras.utils.set_random_seed(0)
    dtype, vocabulary = site_spec
    inputs, known = symbolic_inputs(dtype)
    columns = [known, keras.ops.cast(inputs["class"], "float32")]
    if dtype != "string":
        columns.append(keras.layers.Embedding(10, 4)(inputs["site"]))
    hidden = keras.layers.Dense(8, "relu")(keras.layers.Concatenate()(columns))
    base = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(hidden))
    network = kc.layers.FieldNetwork(
        {"site": vocabulary, "class": 5}, numeric=["bid-price"], num_coarse_knots=4
    )
    head = kc.layers.NeuralCalibration(curve or kc.layers.ILPS(), network)
    return kc.models.CalibratedModel(base, head)


@pytest.fixture(scope="module")
def model():
    """A fitted model of numeric inputs."""
    found = make_model()
    inputs = make_inputs(600)
    labels = np.random.default_rng(1).random(600) < 0.1 + 0.06 * inputs["site"]
    train_head(found, inputs, labels.astype("float32"), batch_size=50, epochs=3)
    return found


def test_a_file_gives_the_models_outputs(model, tmp_path):
    path = export_onnx(model, tmp_path / "deep" / "model", sample=make_inputs(64))
    inputs = make_inputs(301)
    inputs["class_"] = inputs.pop("class")
    outputs = run_onnx(path, inputs)
    inputs["class"] = inputs.pop("class_")
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


@pytest.mark.slow
@pytest.mark.parametrize(
    "curve",
    [
        kc.layers.ILPS.from_paper(),
        pytest.param(kc.layers.ILPS(monotonic="strict"), marks=pytest.mark.slow),
        pytest.param(kc.layers.PlattScaling(), marks=pytest.mark.slow),
        pytest.param(kc.layers.BetaCalibration(), marks=pytest.mark.slow),
        kc.layers.IsotonicRegression(),
    ],
    ids=lambda curve: type(curve).__name__,
)
def test_every_curve_can_be_exported(curve, tmp_path):
    model, rows = make_model(curve), make_inputs(400)
    model.head.field_network.adapt(rows)
    logits = np.asarray(model.base(rows))
    labels = np.random.default_rng(2).random(400) < 1 / (1 + np.exp(-logits[:, 0]))
    curve.fit(logits, labels)
    assert export_onnx(model, tmp_path / "model", sample=make_inputs(64)).is_file()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["weighted mean", "trees"])
def test_trees_and_a_weighted_mean_can_be_exported(kind, tmp_path):
    rows = make_inputs(600)
    base = make_model().base_model
    fields = {"site": 9, "class": 5}
    trees = kc.layers.BoostedTrees(fields, ["bid-price"])
    curve = kc.layers.FieldBias({"site": 9}, kc.layers.ILPS())
    mean = kc.layers.BlendedHead([trees, curve, kc.layers.PlattScaling()], [0.5, 0.3, 0.1])
    model = kc.models.CalibratedModel(base, trees if kind == "trees" else mean)
    logits = np.asarray(model.base(rows))[:, 0].astype(float)
    off = np.where((rows["site"] > 4) & (rows["bid-price"] > 0), 2.0, -0.5)
    labels = np.random.default_rng(2).random(600) < 1 / (1 + np.exp(-logits - off))
    features = {name: rows[name] for name in model.head.feature_names}
    model.head.fit(logits, labels, features)
    assert trees.fit_summary is None or trees.fit_summary.num_iterations > 0
    path = export_onnx(model, tmp_path / "model", sample=make_inputs(64))
    new = make_inputs(301)
    new["bid-price"][:4] = [50.0, -50.0, np.nan, 0.0]
    received = run_onnx(path, {("class_" if n == "class" else n): c for n, c in new.items()})
    expected = np.asarray(model({n: keras.ops.convert_to_tensor(c) for n, c in new.items()}))
    np.testing.assert_allclose(received["probability"], expected, rtol=0, atol=1e-6)
    assert np.abs(expected - received["uncalibrated_probability"]).max() > 0.05


LOOKUPS = {
    "hashing": ("int32", keras.layers.Hashing(4)),
    "buckets": ("int32", keras.layers.IntegerLookup(vocabulary=[3, 5], num_oov_indices=2)),
    "strict": ("string", keras.layers.StringLookup(vocabulary=["a"], num_oov_indices=0)),
}


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("hashing", "which is a Hashing"),
        ("buckets", "which has num_oov_indices=2"),
        ("strict", "which has num_oov_indices=0"),
    ],
)
def test_models_that_cannot_run_there_are_refused(kind, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        export_onnx(make_model(site_spec=LOOKUPS[kind]), tmp_path / "new" / "model")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_file_that_gives_other_probabilities_is_not_left(model, tmp_path, monkeypatch):
    right = spec.head_outputs

    def halved(*arguments):
        outputs = right(*arguments)
        # Only what Keras gives, not what is traced.
        is_traced = not tf.executing_eagerly()
        return outputs if is_traced else {name: v / 2 for name, v in outputs.items()}

    monkeypatch.setattr(spec, "head_outputs", halved)
    with pytest.raises(RuntimeError, match="'serving_default/probability' of the ONNX file may"):
        export_onnx(model, tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_search_in_the_base_model_is_exported(tmp_path):
    inputs = keras.Input((), name="x")
    edges = np.array([-1.0, 0.0, 2.0], "float32")
    sides = [keras.ops.searchsorted(edges, inputs, side=side) for side in ("left", "right")]
    columns = keras.ops.cast(keras.ops.stack(sides, axis=1), "float32")
    base = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(columns))
    model = kc.models.CalibratedModel(base, kc.layers.PlattScaling())
    model.head.fit([-1.0, 0.0, 1.0, 2.0], [0, 1, 0, 1])
    sample = np.array([-2.0, -1.0, 0.0, 1.0, 2.0, 3.0], "float32")
    path = export_onnx(model, tmp_path / "model", sample=sample)
    hostile = np.array([np.inf, -np.inf, -1.0, 1e30], "float32")
    received = run_onnx(path, {"x": hostile})["probability"]
    np.testing.assert_allclose(received, model.predict(hostile, verbose=0), rtol=0, atol=1e-6)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("package", ["tf2onnx", "onnxruntime"])
def test_a_missing_package_is_named(model, package, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match=r"keras-calibration\[onnx\]"):
        export_onnx(model, tmp_path / "new" / "model.onnx")
    assert list(tmp_path.iterdir()) == []
