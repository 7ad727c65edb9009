"""Requests of every shape: one answer for (n,) and (n, 1), an error for all that does not fit."""

import importlib.util

import keras
import numpy as np
import pytest
import tensorflow as tf

import every_head
import keras_calibration as kc
from keras_calibration.export.checked_inputs import CHECK
from served import serve_as_c

pytestmark = pytest.mark.tensorflow

HAS_ONNX = all(map(importlib.util.find_spec, ("tf2onnx", "onnx", "onnxruntime")))
if HAS_ONNX:
    from onnxruntime.capi import onnxruntime_pybind11_state as onnx_errors

    REFUSALS = (onnx_errors.Fail, onnx_errors.InvalidArgument, onnx_errors.RuntimeException)
else:
    REFUSALS = ()
NUM_ROWS = 3
# Inputs of one value a row, in the base model or in the head, and of several.
INPUTS = {
    "x": ((1,), "float32"),
    "site": ((), "int32"),
    "device": ((1,), "int64"),
    "price": ((), "float32"),
    "vector": ((3,), "float32"),
}


# What checks the shapes is the export's; of heads, their features and classes matter.
KINDS = ("ILPS", "FieldILPS", "BoostedTrees", "NeuralCalibration", "BlendedHead", "VectorScaling")
HEADS = {
    "two fields": lambda: kc.layers.FieldBias({"site": 3, "device": 2}, numeric=["price"]),
    **{name: every_head.HEADS[name][0] for name in KINDS},
}


def make_rows(num_rows, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "x": rng.normal(size=(num_rows, 1)).astype("float32"),
        "site": (np.arange(num_rows) % 3).astype("int32"),
        "device": (np.arange(num_rows)[:, None] // 3 % 2).astype("int64"),
        "price": rng.normal(size=num_rows).astype("float32"),
        "vector": rng.normal(size=(num_rows, 3)).astype("float32"),
    }


def make_model(kind):
    """A model with a fitted head, whose logits differ between the rows."""
    keras.utils.set_random_seed(1)
    inputs = {n: keras.Input(shape, dtype=dtype, name=n) for n, (shape, dtype) in INPUTS.items()}
    number_of_logits = 3 if every_head.has_classes(kind) else 1
    hidden = keras.layers.Concatenate()([inputs["x"], inputs["vector"]])
    logit = keras.layers.Dense(number_of_logits, name="logit")(hidden)
    head = HEADS[kind]()
    features = {name: inputs[name] for name in head.feature_names or ()}
    activation = "softmax" if every_head.has_classes(kind) else "sigmoid"
    output = keras.layers.Activation(activation)(head(logit, features))
    model = keras.Model(inputs, output)
    rows = make_rows(400)
    logits = np.asarray(keras.Model(inputs, logit)(rows))
    rng = np.random.default_rng(2)
    if every_head.has_classes(kind):
        labels = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
    else:
        shift = np.array([-2.0, 0.0, 2.0])[rows["site"]]
        labels = rng.random(400) < 1 / (1 + np.exp(-0.5 * logits[:, 0] - shift))
    head.fit(logits, labels, {name: rows[name] for name in features})
    return model


@pytest.fixture(scope="module", params=HEADS)
def model(request):
    return make_model(request.param)


@pytest.fixture(scope="module")
def requests(model):
    """Signature → a request, from which the wrong ones are made."""
    rows = make_rows(NUM_ROWS, seed=5)
    logit = np.asarray(keras.Model(model.inputs, model.get_layer("logit").output)(rows))
    (head,) = (layer for layer in model.layers if isinstance(layer, kc.layers.Head))
    features = {name: rows[name] for name in head.feature_names or ()}
    return {"serving_default": rows, "raw": rows, "calibrate": {"logit": logit, **features}}


def read_by(model):
    """The inputs that the model's answer depends on; of others, nothing is checked."""
    (head,) = (layer for layer in model.layers if isinstance(layer, kc.layers.Head))
    return ["x", "vector", *(head.feature_names or ())]


def other_forms(request, names):
    """The same request with the columns in their other form: each one alone, and all together."""
    turned = {
        name: request[name][:, 0] if request[name].ndim == 2 else request[name][:, None]
        for name in names
        if request[name][0].size == 1
    }
    return [{**request, name: values} for name, values in turned.items()] + [{**request, **turned}]


def wrong_forms(request, names):
    """Requests that fit neither the signature nor each other, by what is wrong."""
    wrong = {}
    for name in names:
        values = request[name]
        flat = values.reshape(-1)
        if len(request) > 1:
            wrong[f"{name} of one row"] = {**request, name: values[:1]}
            wrong[f"{name} of no row"] = {**request, name: values[:0]}
            wrong[f"{name} of a row too many"] = {**request, name: np.repeat(values, 2, 0)[:4]}
        wrong[f"{name} with one dimension more"] = {**request, name: flat.reshape(-1, 1, 1)}
        wrong[f"{name} twice a row"] = {**request, name: np.stack([flat, flat], 1)}
        wrong[f"{name} as one row"] = {**request, name: flat[None]}
        wrong[f"{name} without width"] = {**request, name: np.zeros((NUM_ROWS, 0), flat.dtype)}
        one = {other: column[:1] for other, column in request.items()}
        wrong[f"{name} as a number"] = {**one, name: flat[0]}
        if values[0].size > 1:
            wrong[f"{name} flat"] = {**request, name: flat}
            wrong[f"{name} of one value a row"] = {**request, name: values[:, :1]}
            wrong[f"all of one value, {name} too"] = {**one, name: flat[:1]}
    columns = {name: values.reshape(1, -1) for name, values in request.items()}
    wrong["all as one row"] = columns
    return wrong


def check(run, request, names=None, takes_both_forms=True, takes_no_rows=True):
    """Runs every form of a request: `run` gives outputs by name, or raises."""
    names = request if names is None else names
    expected = run(request)
    for name, values in expected.items():
        assert values.shape[0] == NUM_ROWS, name
        assert values.ndim == 2, name
        assert np.ptp(values, axis=0).max() > 1e-3, name
    for form in other_forms(request, names):
        if not takes_both_forms:
            with pytest.raises(Exception, match="Invalid rank"):
                run(form)
            continue
        for name, values in run(form).items():
            np.testing.assert_array_equal(values, expected[name])
    for what, form in wrong_forms(request, names).items():
        assert is_refused(run, form), what
    check_rows(run, request, expected, takes_no_rows)


def is_refused(run, request):
    try:
        run(request)
    except (tf.errors.OpError, ValueError, RuntimeError, *REFUSALS):
        return True
    return False


def check_rows(run, request, expected, takes_no_rows):
    """A row's answer depends neither on the other rows nor on their order."""
    none = {name: values[:0] for name, values in request.items()}
    if takes_no_rows or not is_refused(run, none):
        shapes = {name: values.shape for name, values in run(none).items()}
        assert shapes == {name: (0, values.shape[1]) for name, values in expected.items()}
    backwards = run({name: values[::-1] for name, values in request.items()})
    one_by_one = [
        run({name: values[row : row + 1] for name, values in request.items()})
        for row in range(NUM_ROWS)
    ]
    for name, values in expected.items():
        near = {"rtol": 0, "atol": 1e-6}
        np.testing.assert_allclose(backwards[name], values[::-1], **near)
        np.testing.assert_allclose(np.concatenate([e[name] for e in one_by_one]), values, **near)


@pytest.mark.quick_cases(1)
def test_every_signature_of_a_savedmodel(model, requests, tmp_path):
    path = kc.export_savedmodel(model, tmp_path / "1", make_rows(64))
    signatures = tf.saved_model.load(str(path)).signatures
    expected = np.asarray(model(requests["serving_default"]))
    for name in ("serving_default", "calibrate"):
        inputs = {key: tf.constant(values) for key, values in requests[name].items()}
        served = signatures[name](**inputs)["probability"]
        np.testing.assert_allclose(served, expected, rtol=0, atol=1e-6)
    for name, request in requests.items():

        def run(columns, signature=signatures[name]):
            outputs = signature(**{key: tf.constant(values) for key, values in columns.items()})
            return {key: values.numpy() for key, values in outputs.items()}

        names = {"serving_default": read_by(model), "raw": ["x", "vector"]}.get(name)
        check(run, request, names)
        check(serve_as_c(path, name), request, names)


@pytest.mark.quick_cases(1)
def test_onnx_runtime(model, requests, tmp_path):
    """An ONNX file declares one form of each input, as it must; the runtime refuses the other.

    The format demands shapes of inputs (`onnx.checker`), and Triton loads no model without.
    """
    onnx = pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("tf2onnx")
    file = kc.export_onnx(model, tmp_path / "model.onnx", make_rows(64))
    onnx.checker.check_model(str(file), full_check=True)
    nodes = [node for node in onnx.load(file).graph.node if CHECK in node.name]
    assert len(nodes) <= 2 * len(INPUTS)  # each costs time in every request
    quiet = onnxruntime.SessionOptions()
    quiet.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(file), quiet)
    outputs = [output.name for output in session.get_outputs()]
    shapes = {argument.name: tuple(argument.shape) for argument in session.get_inputs()}
    assert shapes == {name: ("batch", *shape) for name, (shape, _) in INPUTS.items()}

    def run(columns):
        return dict(zip(outputs, session.run(outputs, columns), strict=True))

    check(run, requests["serving_default"], read_by(model), takes_both_forms=False)
