"""ONNX models of other libraries below a head, in one file."""

import warnings

import keras
import numpy as np
import pandas as pd
import pytest

import keras_calibration as kc
from keras_calibration.export import export_onnx, refresh_onnx
from keras_calibration.export.onnx.export import run_onnx

onnx = pytest.importorskip("onnx")
pytest.importorskip("tf2onnx")
pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.tensorflow

SITES = np.array(["news", "mail", "ümlaut", "a b", "", "never seen"], object)


def graph_of(nodes, inputs, outputs, constants=(), opset=17, **arguments):
    """A model of nodes; inputs and outputs are names → shapes of float32."""
    from onnx import TensorProto, helper, numpy_helper

    opsets = [helper.make_opsetid("", opset), *arguments.pop("opset_imports", [])]
    values = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in given]
        for given in (inputs.items(), outputs.items())
    ]
    tensors = [numpy_helper.from_array(value, name) for name, value in dict(constants).items()]
    nodes = [helper.make_node(kind, taken, given, **more) for kind, taken, given, more in nodes]
    graph = helper.make_graph(nodes, "base", *values, tensors)
    model = helper.make_model(graph, opset_imports=opsets, **arguments)
    model.ir_version = 8
    return model


def other_base(columns, opset=13):
    """A model as converters of other libraries write it: two or K columns of probabilities."""
    from onnx import TensorProto, helper

    weights = np.random.default_rng(0).normal(size=(3, columns)).astype("float32")
    weights[:, 0] = 0.0
    nodes = [
        ("MatMul", ["input", "weights"], ["logits"], {}),
        ("Softmax", ["logits"], ["probabilities"], {"axis": 1}),
        ("ArgMax", ["probabilities"], ["label"], {"axis": 1, "keepdims": 0}),
    ]
    outputs = {"probabilities": ["n", columns]}
    model = graph_of(nodes, {"input": ["n", 3]}, outputs, {"weights": weights}, opset)
    label = helper.make_tensor_value_info("label", TensorProto.INT64, ["n"])
    model.graph.output.insert(0, label)
    return model


@pytest.mark.slow
@pytest.mark.parametrize(("columns", "opset"), [(2, 13), (2, 17), (4, 15)])
def test_the_scores_of_another_model_in_one_graph(columns, opset, tmp_path):
    rng = np.random.default_rng(1)
    inputs = rng.normal(size=(4000, 3)).astype("float32")
    site = rng.choice(SITES, 4000)
    below = tmp_path / "base.onnx"
    onnx.save(other_base(columns, opset), below)
    scores = run_onnx(below, {"input": inputs})["probabilities"]
    is_binary = columns == 2
    labels = (rng.random((4000, 1)) < scores.cumsum(axis=1)).argmax(axis=1)
    labels = np.where(site == "news", 1, labels)
    scores = scores[:, 1] if is_binary else np.log(scores)
    model = kc.calibrate_scores(
        scores,
        labels,
        {"site": site},
        fields=["site"],
        from_logits=not is_binary,
        methods=["platt", "field_bias"] if is_binary else "quick",
        verbose=0,
    )
    alone = export_onnx(model, tmp_path / "head.onnx")
    expected = model.predict({"score": scores, "site": site}, verbose=0)
    received = run_onnx(alone, {"score": scores.astype("float32"), "site": site})["probability"]
    np.testing.assert_allclose(received, expected, rtol=0, atol=1e-6)
    if not is_binary:
        return
    merged = export_onnx(model, tmp_path / "all.onnx", base=below)
    rows = {"input": inputs, "site": site}
    received = run_onnx(merged, rows)
    assert set(received) == {"probability", "uncalibrated_probability", "logit"}
    np.testing.assert_allclose(received["probability"], expected, rtol=0, atol=1e-6)
    one = {name: values[:1] for name, values in rows.items()}
    assert run_onnx(merged, one)["probability"].shape == (1, 1)
    new = refresh_onnx(
        merged,
        received["uncalibrated_probability"],
        np.ones(4000) * (rng.random(4000) < 0.1),
        {"site": site},
        destination=tmp_path / "next.onnx",
    )
    again = run_onnx(new, rows)
    np.testing.assert_array_equal(again["logit"], received["logit"])
    assert again["probability"].mean() == pytest.approx(0.1, abs=0.02)


def calibrated(scores, labels, features, **arguments):
    """A model of `calibrate_scores` with an offset for each value of the fields."""
    arguments = {"fields": list(features), "methods": ["field_bias"], **arguments}
    return kc.calibrate_scores(scores, labels, features, verbose=0, **arguments)


@pytest.fixture(scope="module")
def table():
    """Columns and labels, in which the site and the id move the rate."""
    rng = np.random.default_rng(2)
    frame = pd.DataFrame(
        {
            "site": rng.choice(SITES[:4], 2000),
            "age": rng.normal(size=2000).astype("float32"),
            "id": rng.integers(0, 9, 2000),
        }
    )
    logits = frame["age"] - 1 + 1.5 * (frame["site"] == "news") - 2 * (frame["id"] == 3)
    return frame, (rng.random(2000) < 1 / (1 + np.exp(-logits))).astype(int)


SIGMOID = [("Sigmoid", ["x"], ["p"], {})]
NUMBERS = np.linspace(-2, 2, 9, dtype="float32").reshape(-1, 1)


@pytest.mark.slow
def test_columns_that_base_and_head_share(table, tmp_path):
    """scikit-learn's converter has columns of shape (n, 1), where the head has (n,)."""
    skl2onnx = pytest.importorskip("skl2onnx")
    from skl2onnx.common import data_types
    from sklearn.compose import make_column_transformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    frame, labels = table
    encoder = (OneHotEncoder(handle_unknown="ignore"), ["site"])
    columns = make_column_transformer(encoder, ("passthrough", ["age"]))
    pipeline = make_pipeline(columns, LogisticRegression()).fit(frame, labels)
    kinds = [
        ("site", data_types.StringTensorType([None, 1])),
        ("age", data_types.FloatTensorType([None, 1])),
        ("id", data_types.Int64TensorType([None, 1])),
    ]
    base = skl2onnx.to_onnx(
        pipeline, initial_types=kinds, options={"zipmap": False}, target_opset=19
    )
    onnx.save(base, tmp_path / "base.onnx")
    scores = pipeline.predict_proba(frame)[:, 1]
    features = frame[["site", "id", "age"]]
    model = calibrated(
        scores, labels, features, fields=["site", "id"], numeric=["age"], methods=["additive"]
    )
    path = export_onnx(
        model, tmp_path / "all.onnx", frame, base=tmp_path / "base.onnx", interval=0.9
    )
    rows = {name: frame[[name]].to_numpy() for name in frame}
    received = run_onnx(path, rows)
    expected = model.predict({"score": scores, **features}, verbose=0)
    np.testing.assert_allclose(received["probability"], expected, rtol=0, atol=1e-6)
    assert np.ptp(expected) > 0.3
    bounds = model.head.interval(received["logit"], features, level=0.9)
    for name, values in zip(("probability_lower", "probability_upper"), bounds, strict=True):
        np.testing.assert_allclose(received[name], np.asarray(values), rtol=0, atol=1e-6)
    new = np.random.default_rng(3).random(2000) < 0.1
    refreshed = refresh_onnx(
        path, received["logit"], new, features, from_logits=True, destination=tmp_path / "2.onnx"
    )
    again = run_onnx(refreshed, rows)
    np.testing.assert_array_equal(again["logit"], received["logit"])
    assert again["probability"].mean() == pytest.approx(new.mean(), abs=1e-3)


def test_a_softmax_keeps_the_meaning_of_its_version(tmp_path):
    """Before version 13 it is over all axes from 1 on; the head's version is 17."""
    nodes = [
        ("Reshape", ["x", "pairs"], ["folded"], {}),
        ("Softmax", ["folded"], ["shares"], {}),
        ("Reshape", ["shares", "flat"], ["p"], {}),
    ]
    constants = {"pairs": np.array([-1, 2, 2]), "flat": np.array([-1, 4])}
    base = graph_of(nodes, {"x": ["n", 4]}, {"p": ["n", 4]}, constants, opset=9)
    onnx.save(base, tmp_path / "base.onnx")
    rng = np.random.default_rng(4)
    scores = rng.dirichlet(np.ones(4), 500)
    labels = (rng.random((500, 1)) < scores.cumsum(axis=1)).argmax(axis=1)
    too_sure = scores**2 / np.sum(scores**2, axis=1, keepdims=True)
    model = kc.calibrate_scores(too_sure, labels, methods=["temperature"], verbose=0)
    path = export_onnx(model, tmp_path / "all.onnx", base=tmp_path / "base.onnx")
    x = rng.normal(size=(9, 4)).astype("float32")
    expected = np.exp(x) / np.exp(x).sum(axis=1, keepdims=True)
    received = run_onnx(path, {"x": x})["uncalibrated_probability"]
    np.testing.assert_allclose(received, expected, rtol=0, atol=1e-6)


def function_base():
    from onnx import helper

    opsets = [helper.make_opsetid("", 17)]
    nodes = [helper.make_node("Sigmoid", ["a"], ["b"])]
    function = helper.make_function("local", "Squash", ["a"], ["b"], nodes, opsets)
    return graph_of(
        [("Squash", ["x"], ["p"], {"domain": "local"})],
        {"x": ["n", 1]},
        {"p": ["n", 1]},
        functions=[function],
        opset_imports=[helper.make_opsetid("local", 1)],
    )


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("kind", ["function", "external", "named score"])
def test_what_a_base_may_have(kind, table, tmp_path):
    frame, labels = table
    base, options, name = graph_of(SIGMOID, {"x": ["n", 1]}, {"p": ["n", 1]}), {}, "x"
    if kind == "function":
        base = function_base()
    elif kind == "external":
        nodes = [("Mul", ["x", "w"], ["l"], {}), ("Sigmoid", ["l"], ["p"], {})]
        base = graph_of(nodes, {"x": ["n", 1]}, {"p": ["n", 1]}, {"w": np.ones(1, "float32")})
        options = {"save_as_external_data": True, "location": "w.data", "size_threshold": 0}
    else:
        name = "score"
        base = graph_of([("Sigmoid", ["score"], ["p"], {})], {"score": ["n", 1]}, {"p": ["n", 1]})
    below = tmp_path / "base" / "base.onnx"
    below.parent.mkdir()
    onnx.save(base, below, **options)
    scores = 1 / (1 + np.exp(-frame["age"]))
    model = calibrated(scores, labels, frame[["site"]])
    path = export_onnx(model, tmp_path / "all.onnx", base=below)
    received = run_onnx(path, {name: NUMBERS, "site": np.resize(SITES, 9)})["probability"]
    given = {"score": 1 / (1 + np.exp(-NUMBERS[:, 0])), "site": np.resize(SITES, 9)}
    np.testing.assert_allclose(received, model.predict(given, verbose=0), rtol=0, atol=1e-6)


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(
    ("base", "words"),
    [
        ([SIGMOID, {"x": [1, 1]}, {"p": [1, 1]}], "any number of rows.*'x' for 1"),
        ([SIGMOID, {"x": ["n", 2]}, {"p": ["n", 2]}], "Two columns of scores"),
        ([[("Neg", ["x"], ["p"], {})], {"x": ["n", 1]}, {"p": ["n", 1]}], "must be probabilities"),
        (
            [[("Sigmoid", ["logit"], ["p"], {})], {"logit": ["n", 1]}, {"p": ["n", 1]}],
            "must not have the names of the outputs.*logit",
        ),
        (
            [[("Sigmoid", ["site"], ["p"], {})], {"site": ["n", 1]}, {"p": ["n", 1]}],
            "must be that feature.*'site', in the base float32",
        ),
    ],
)
def test_what_would_be_wrong_is_refused(base, words, table, tmp_path):
    frame, labels = table
    onnx.save(graph_of(*base), tmp_path / "base.onnx")
    model = calibrated(1 / (1 + np.exp(-frame["age"])), labels, frame[["site"]])
    with pytest.raises(ValueError, match=words):
        export_onnx(model, tmp_path / "all.onnx", base=tmp_path / "base.onnx")
    assert not (tmp_path / "all.onnx").exists()


@pytest.mark.slow
def test_probabilities_where_logits_were_are_warned_of(table, tmp_path):
    frame, labels = table
    onnx.save(graph_of(SIGMOID, {"x": ["n", 1]}, {"p": ["n", 1]}), tmp_path / "base.onnx")
    model = calibrated(frame["age"], labels, frame[["site"]], from_logits=True)
    with pytest.warns(UserWarning, match=r"all in \[0, 1\], while those"):
        export_onnx(model, tmp_path / "all.onnx", base=tmp_path / "base.onnx")


def test_bases_that_do_not_fit_are_refused(tmp_path):
    rng = np.random.default_rng(0)
    scores = rng.random(600)
    labels = (rng.random(600) < scores).astype(int)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        own = kc.calibrate_scores(scores, labels, methods=["platt"], verbose=0)
    below = tmp_path / "base.onnx"
    onnx.save(other_base(5), below)
    (tmp_path / "text.onnx").write_text("no model")
    for given, words in (
        ({"base": below}, "must have 1 columns, or 2"),
        ({"base": below, "base_output": "label"}, "must name an output of numbers"),
        ({"base": tmp_path / "text.onnx"}, "must name an ONNX file"),
    ):
        with pytest.raises(ValueError, match=words):
            export_onnx(own, tmp_path / "new.onnx", **given)
    x = keras.Input((3,))
    headed = keras.Model(x, kc.layers.PlattScaling()(keras.layers.Dense(1)(x)))
    with pytest.raises(ValueError, match="for a model of `calibrate_scores`"):
        export_onnx(headed, tmp_path / "new.onnx", base=below)
    assert not (tmp_path / "new.onnx").exists()
