"""Exported files survive what others do to them: quantization, float16, checks, LiteRT."""

import warnings

import keras
import numpy as np
import pytest

import every_head
import keras_calibration as kc
from keras_calibration.export.onnx.export import run_onnx
from keras_calibration.layers import FieldBias, FieldNetwork, IsotonicRegression, NeuralCalibration
from served import tensors_of
from symbols import symbols
from tiers import slow_except

onnx = pytest.importorskip("onnx")
for package in ("tf2onnx", "onnxruntime"):
    pytest.importorskip(package)
pytestmark = pytest.mark.tensorflow

LARGEST = 65504  # of float16
EXTREME = [0, 30, -30, 100, -100, 1e4, -1e4, 40, 6e4, -6e4]


def named():
    return {"name": keras.layers.StringLookup(vocabulary=list("abcde"))}


def network():
    return FieldNetwork({"site": 5}, ["price"], embedding_dim=2, hidden_units=(4,), dropout=0)


HEADS = {
    **{name: make for name, (make, _) in every_head.HEADS.items()},
    "steps": lambda: IsotonicRegression(keep_ranking=False),
    "strings": lambda: FieldBias(named(), kc.layers.ILPS(6), ["price"]),
    "missing numbers": lambda: NeuralCalibration(kc.layers.ILPS(6), network()),
    "curve of the paper": kc.layers.ILPS.from_paper,
}
QUICK = ("IsotonicRegression", "strings", "missing numbers", "BoostedTrees", "BetaCalibration")


def make_rows(num_rows, seed):
    """Rows, and the same with unknown and missing values and some extreme logits."""
    rng = np.random.default_rng(seed)
    site = rng.integers(0, 5, num_rows)
    rows = {
        "score": rng.normal(-1, 1.5, (num_rows, 3)).astype("float32"),
        "site": site.astype("int32"),
        "price": rng.normal(size=num_rows).astype("float32"),
        "name": np.array(list("abcde"), object)[site],
    }
    hostile = {name: column.copy() for name, column in rows.items()}
    hostile["score"][: len(EXTREME), 0] = EXTREME
    hostile["site"][::5], hostile["price"][::7], hostile["name"][::6] = 2**31 - 1, np.nan, "ü"
    return rows, hostile


def fitted(name):
    """A model whose base is the score itself, with a fitted head; the features that it takes."""
    has_classes = every_head.has_classes(name)
    head = HEADS[name]()
    inputs = symbols(score=(3,), site="int32", price=(), name="string")
    inputs = {feature: inputs[feature] for feature in ("score", *(head.feature_names or ()))}
    logit = inputs["score"] if has_classes else inputs["score"][:, :1]
    features = {feature: inputs[feature] for feature in head.feature_names or ()}
    activation = "softmax" if has_classes else "sigmoid"
    outputs = keras.layers.Activation(activation)(head(keras.ops.multiply(logit, 1.0), features))
    rows, _ = make_rows(600, seed=0)
    rng, shift = np.random.default_rng(1), np.array([-2.0, 0.0, 2.0, 1.0, -1.0])[rows["site"]]
    score = rows["score"] if has_classes else rows["score"][:, 0]
    labels = np.argmax(score + rng.gumbel(size=score.shape), axis=1) if has_classes else None
    if labels is None:
        labels = rng.random(600) < 1 / (1 + np.exp(-score - shift))
    head.fit(score, labels, {feature: rows[feature] for feature in features})
    return keras.Model(inputs, outputs), [*inputs]


@pytest.fixture(scope="module", params=slow_except(QUICK, HEADS))
def case(request):
    """A model, rows of its inputs, and its probabilities."""
    model, names = fitted(request.param)
    rows = {name: column for name, column in make_rows(60, seed=2)[1].items() if name in names}
    return model, rows, np.asarray(model(tensors_of(rows)))


def are_narrow(constants):
    """Whether all numbers are finite and within float16."""
    floats = [array for array in map(np.asarray, constants) if array.dtype.kind == "f"]
    return bool(floats) and all((np.abs(array) <= LARGEST).all() for array in floats)


def constants_of(graph):
    """The constants of an ONNX graph."""
    yield from map(onnx.numpy_helper.to_array, graph.initializer)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield onnx.numpy_helper.to_array(attribute.t)


@pytest.mark.filterwarnings("ignore")  # of the tools
def test_an_onnx_file_is_quantized_halved_and_checked(case, tmp_path):
    from onnxruntime.quantization import quantize_dynamic
    from onnxruntime.transformers.float16 import convert_float_to_float16

    model, rows, expected = case
    path = kc.export_onnx(model, tmp_path / "model.onnx")
    written = onnx.load(path)
    assert are_narrow(constants_of(written.graph))
    onnx.checker.check_model(written, full_check=True)
    onnx.shape_inference.infer_shapes(written, check_type=True, strict_mode=True, data_prop=True)
    quantize_dynamic(str(path), str(tmp_path / "quantized.onnx"))
    onnx.save(convert_float_to_float16(written, keep_io_types=True), tmp_path / "half.onnx")
    # Of the network, the products are in 8 bits; of isotonic steps, some are as narrow as float16.
    for file, error in ("model", 2e-6), ("quantized", 0.01), ("half", 0.03):
        probabilities = run_onnx(tmp_path / f"{file}.onnx", rows)["probability"]
        np.testing.assert_allclose(probabilities, expected, rtol=0, atol=error, err_msg=file)


@pytest.mark.filterwarnings("ignore")  # of the tools
@pytest.mark.parametrize(
    "case", slow_except(("missing numbers",), HEADS), indirect=True, scope="module"
)
def test_a_savedmodel_is_converted_to_litert(case, tmp_path):
    import tensorflow as tf
    from tensorflow.python.saved_model.loader_impl import parse_saved_model

    model, rows, expected = case
    path = kc.export_savedmodel(model, tmp_path / "1")
    graph = parse_saved_model(str(path)).meta_graphs[0].graph_def
    nodes = [
        *graph.node,
        *(node for function in graph.library.function for node in function.node_def),
    ]
    assert are_narrow(tf.make_ndarray(n.attr["value"].tensor) for n in nodes if n.op == "Const")
    saved = tf.train.load_checkpoint(str(path / "variables" / "variables"))
    tensors = [saved.get_tensor(name) for name in saved.get_variable_to_shape_map()]
    assert are_narrow(tensor for tensor in tensors if not isinstance(tensor, bytes))
    signature = {"signature_keys": ["serving_default"]}
    converter = tf.lite.TFLiteConverter.from_saved_model(str(path), **signature)
    kinds = tf.lite.OpsSet
    converter.target_spec.supported_ops = [kinds.TFLITE_BUILTINS, kinds.SELECT_TF_OPS]
    interpreter = tf.lite.Interpreter(model_content=converter.convert())
    texts = {name: np.array([v.encode() for v in rows[name]]) for name in {"name"} & {*rows}}
    try:
        runner = interpreter.get_signature_runner("serving_default")
        probabilities = runner(**{**rows, **texts})["probability"]
    except RuntimeError as error:
        pytest.skip(f"converted; to run, it needs operations of TensorFlow: {error!s:.60}")
    np.testing.assert_allclose(probabilities, expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    "case",
    slow_except(("missing numbers",), ("ILPS", "FieldBias, curve", "missing numbers")),
    indirect=True,
    scope="module",
)
def test_keras_writes_litert_of_built_in_operators(case, tmp_path):
    """Which every interpreter runs."""
    import tensorflow as tf

    model, rows, expected = case
    file = tmp_path / "model.tflite"
    model.export(file, format="litert", verbose=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that it moves to a package of its own
        interpreter = tf.lite.Interpreter(
            str(file), experimental_op_resolver_type=tf.lite.experimental.OpResolverType.BUILTIN
        )
    (received,) = interpreter.get_signature_runner()(**rows).values()
    np.testing.assert_allclose(received, expected, rtol=0, atol=2e-6)
