"""The base model's other outputs are served beside the calibrated one, unchanged."""

import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_calibration as kc
from keras_calibration.export import export_onnx, refresh_savedmodel
from keras_calibration.export.onnx.export import run_onnx
from keras_calibration.export.spec import Spec
from keras_calibration.export.verification import largest_difference
from served import outputs_of, provenance_of
from symbols import symbols

pytestmark = pytest.mark.tensorflow
RNG = np.random.default_rng(0)
X = {
    "scores": RNG.normal(size=(300, 3)).astype("float32"),
    "site": RNG.integers(0, 4, 300).astype("int32"),
}
Y = RNG.random(300) < 1 / (1 + np.exp(1 - X["scores"].sum(axis=1)))
OWN = {"probability", "uncalibrated_probability", "logit"}


def base_model(with_strings=True, rename=None):
    """A list of words, half precision, an amount of millions, ids and a column of no dimension."""
    keras.utils.set_random_seed(0)
    inputs = symbols(scores=(3,), site="int32")
    scores = inputs["scores"]
    ones = keras.initializers.Ones()
    outputs = {
        "topic": keras.layers.Dense(3, "softmax")(scores),
        "click": keras.layers.Dense(1, "sigmoid", kernel_initializer=ones)(scores),
        "amount paid": keras.layers.Reshape(())(1e6 * keras.layers.Dense(1)(scores)),
        "best": keras.ops.cast(keras.ops.round(scores[:, 0]), "int32"),
        "id": inputs["site"],
    }
    if with_strings:
        words = keras.layers.IntegerLookup(vocabulary=[0, 1, 2, 3], num_oov_indices=0)
        names = keras.layers.StringLookup(vocabulary=list("abcd"), num_oov_indices=1, invert=True)
        outputs["word"] = names(words(inputs["site"]) + 1)
        outputs["half"] = keras.layers.Dense(2, dtype="bfloat16")(scores)
    for old, new in (rename or {}).items():
        outputs[new] = outputs.pop(old)
    return keras.Model(inputs, outputs)


def calibrated(base, key="click"):
    head = kc.layers.VectorScaling(3) if key == "topic" else kc.layers.PlattScaling()
    model = kc.models.CalibratedModel(base, head, calibrated_output=key)
    kc.fit_head(model, X, X["site"] % 3 if key == "topic" else Y, verbose=0)
    return model


def tensors():
    return {name: tf.constant(values) for name, values in X.items()}


def arrays(outputs):
    return {name: keras.ops.convert_to_numpy(values) for name, values in outputs.items()}


def check_others(received, expected):
    """Floats to rounding, everything else exactly, and in the same dtypes and shapes."""
    assert received.keys() == expected.keys()
    for name, values in expected.items():
        assert (received[name].dtype, received[name].shape) == (values.dtype, values.shape)
        if values.dtype.kind == "f":
            scale = max(1, np.abs(values).max())
            np.testing.assert_allclose(received[name], values, rtol=0, atol=4e-6 * scale)
        elif values.dtype.kind != "V":
            np.testing.assert_array_equal(received[name], values)
        else:  # bfloat16
            pair = (received[name].astype("float32"), values.astype("float32"))
            np.testing.assert_allclose(*pair, rtol=0, atol=0.05)


@pytest.fixture(scope="module")
def model():
    return calibrated(base_model())


@pytest.fixture(scope="module")
def exported(model, tmp_path_factory):
    """An export that was verified in a new process, which has TensorFlow only."""
    path = tmp_path_factory.mktemp("exported") / "1"
    return kc.export_savedmodel(model, path, X, interval=0.9)


def test_the_other_outputs_are_served_by_name(exported, model):
    expected = arrays(model.base_model(tensors()))
    del expected["click"]
    provenance = provenance_of(exported)
    assert provenance["calibrated_output"] == "click"
    assert sorted(provenance["other_outputs"]) == sorted(expected)
    differences = provenance["verification"]["largest_differences"]
    assert {f"serving_default/{name}" for name in expected} <= differences.keys()
    interval = {"probability_lower", "probability_upper"}
    for signature, names in (("serving_default", OWN | interval), ("raw", OWN - {"probability"})):
        outputs = outputs_of(exported, X, signature)
        assert outputs.keys() == {*names, *expected}
        check_others({name: outputs[name] for name in expected}, expected)
        np.testing.assert_allclose(outputs["logit"], kc.base_logits(model, X), atol=1e-5)
    probability = outputs_of(exported, X)["probability"]
    np.testing.assert_allclose(probability, model.predict(X, verbose=0), atol=1e-6)


def test_what_outputs_have_in_common_is_computed_once():
    inputs = keras.Input((3,), name="scores")
    hidden = keras.layers.Dense(4, "relu")(inputs)
    outputs = {name: keras.layers.Dense(1, "sigmoid")(hidden) for name in ("click", "buy")}
    model = kc.models.CalibratedModel(
        keras.Model(inputs, outputs), kc.layers.PlattScaling(), calibrated_output="buy"
    )
    spec = Spec.from_model(model)
    rows = {"scores": tf.TensorSpec((None, 3))}
    for part, part_inputs in ((spec.base, rows["scores"]), (spec.outputs, rows)):
        traced = tf.function(part).get_concrete_function(part_inputs)
        kinds = [operation.type for operation in traced.graph.get_operations()]
        assert kinds.count("MatMul") == 3


def test_a_refresh_keeps_the_other_outputs(exported, model, tmp_path):
    logits = kc.base_logits(model, X)
    labels = RNG.random(300) < 1 / (1 + np.exp(2 - 0.5 * logits[:, 0]))
    path = shutil.copytree(exported, tmp_path / "1")
    second = refresh_savedmodel(path, logits, labels, from_logits=True)
    before, after = outputs_of(exported, X), outputs_of(second, X)
    assert before.keys() == after.keys()
    for name in before.keys() - {"probability", "probability_lower", "probability_upper"}:
        np.testing.assert_array_equal(before[name], after[name])
    assert not np.allclose(before["probability"], after["probability"], atol=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("key", ["click", "topic"])
def test_the_other_outputs_in_an_onnx_file(key, tmp_path):
    for package in ("tf2onnx", "onnx", "onnxruntime"):
        pytest.importorskip(package)
    base = base_model(with_strings=False)
    expected = arrays(base(tensors()))
    del expected[key]
    model = calibrated(base, key)
    outputs = run_onnx(export_onnx(model, tmp_path / "model", X), X)
    assert outputs.keys() == {*OWN, *expected}
    check_others({name: outputs[name] for name in expected}, expected)
    np.testing.assert_allclose(outputs["probability"], model.predict(X, verbose=0), atol=1e-6)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("name", ["probability_lower", "table"])
def test_a_name_of_the_export_and_what_is_not_by_row_are_refused(name, tmp_path):
    base = base_model(rename=None if name == "table" else {"best": name})
    if name == "table":
        table = keras.ops.zeros((5, 2)) + keras.ops.sum(base.output["click"])
        base = keras.Model(base.input, {**base.output, "table": table})
    message = "'table' of shape" if name == "table" else f"named {name}: .* Rename the output"
    with pytest.raises(ValueError, match=message):
        kc.export_savedmodel(calibrated(base), tmp_path / "1", X)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("received", "expected", "difference"),
    [
        ([2**53 + 1], [2**53], np.inf),
        (np.array([b"news", b"mail"], object), np.array([b"news", b"post"]), np.inf),
        ([1.5, np.nan, np.inf], [1.0, np.nan, np.inf], 0.5),
        ([[1.0]], [1.0], np.inf),
    ],
)
def test_what_counts_as_different(received, expected, difference):
    assert largest_difference(np.asarray(received), np.asarray(expected)) == difference
