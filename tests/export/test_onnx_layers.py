"""ONNX files of Keras' preprocessing layers give the Keras model's probabilities."""

import keras
import numpy as np
import pytest

import keras_calibration as kc
from keras_calibration.export import export_onnx
from keras_calibration.export.onnx.export import run_onnx
from served import tensors_of
from symbols import symbols

pytest.importorskip("onnx")
pytest.importorskip("tf2onnx")
pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.tensorflow

NUM_ROWS, EDGES = 60, [2.0, 5.0, 7.5]


def make_rows():
    rng = np.random.default_rng(0)
    words = np.array(["a", "b", "c", "other", ""], object)
    number = rng.normal(5, 3, (NUM_ROWS, 1)).astype("float32")
    number[:3, 0] = EDGES
    return {
        "word": rng.choice(words, (NUM_ROWS, 1)),
        "words": rng.choice(words, (NUM_ROWS, 3)),
        "id": rng.integers(0, 9, (NUM_ROWS, 1)),
        "ids": rng.integers(0, 9, (NUM_ROWS, 3)),
        "number": number,
        "wide": (rng.normal(size=(NUM_ROWS, 200)) * np.arange(1, 201)).astype("float32"),
        "weights": rng.random((NUM_ROWS, 3)).astype("float32"),
    }


def normalized(values):
    layer = keras.layers.Normalization()
    layer.adapt(values)
    return layer


def words():
    return keras.layers.StringLookup(vocabulary=["a", "b", "c"])


def ids():
    return keras.layers.IntegerLookup(vocabulary=[1, 4, 7])


def encoding(mode, num_tokens=4):
    return keras.layers.CategoryEncoding(num_tokens, output_mode=mode)


def searched(values, side):
    places = keras.ops.searchsorted(np.array(EDGES, "float32"), values[:, 0], side=side)
    return keras.ops.cast(keras.ops.expand_dims(places, 1), "float32")


# What a base model makes of symbolic inputs `x`, which are as the rows.
ENCODINGS = {
    "normalized": lambda x, rows: normalized(rows["number"])(x["number"]),
    # Beyond 128 values, TensorFlow captures the mean as a tensor of its own.
    "normalized, wide": lambda x, rows: normalized(rows["wide"])(x["wide"]),
    "given mean": lambda x, rows: keras.layers.Normalization(mean=4, variance=9)(x["number"]),
    "one-hot id": lambda x, rows: encoding("one_hot")(ids()(x["id"])),
    "searched, left": lambda x, rows: searched(x["number"], "left"),
    "searched, right": lambda x, rows: searched(x["number"], "right"),
}


def model_of(encode, rows):
    """A fitted model on top of an encoding, and the rows that it reads."""
    kinds = {name: "string" if "word" in name else rows[name].dtype.name for name in rows}
    inputs = symbols(**{name: (rows[name].shape[1:], kind) for name, kind in kinds.items()})
    encoded = encode(inputs, rows)
    rows = {tensor.name: rows[tensor.name] for tensor in keras.utils.get_source_inputs(encoded)}
    keras.utils.set_random_seed(0)
    base = keras.Model(
        {name: inputs[name] for name in rows}, keras.layers.Dense(1, "sigmoid")(encoded)
    )
    model = kc.models.CalibratedModel(base, kc.layers.PlattScaling())
    model.head.fit([-1.0, 0.0, 1.0, 2.0], [0, 1, 0, 1])
    return model, rows


REFUSED = {
    "multi-hot words": lambda x, rows: encoding("multi_hot")(words()(x["words"])),
    "counts": lambda x, rows: encoding("count")(ids()(x["ids"])),
    "bins": lambda x, rows: keras.layers.Discretization(EDGES, output_mode="one_hot")(x["number"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_layer_that_the_converter_writes_wrongly_is_refused(name, tmp_path):
    rows = make_rows()
    model, rows = model_of(REFUSED[name], rows)
    with pytest.raises(ValueError, match=r"onnxruntime.*SavedModel"):
        export_onnx(model, tmp_path / "model.onnx", rows)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ENCODINGS)
def test_a_layer(name, tmp_path):
    """Compares all rows, each row alone and no rows with Keras."""
    model, rows = model_of(ENCODINGS[name], make_rows())
    file = export_onnx(model, tmp_path / "model.onnx", rows)
    expected = np.asarray(model(tensors_of(rows)))
    assert np.ptp(expected) > 0.01
    for part in (slice(None), slice(0, 1), slice(1, 2), slice(0, 0)):
        received = run_onnx(file, {name: values[part] for name, values in rows.items()})
        np.testing.assert_allclose(received["probability"], expected[part], rtol=0, atol=1e-6)


def test_axes_are_counted_from_the_start_in_branches_too():
    """Negative axes are not reduced in a request without rows."""
    from onnx import TensorProto, helper, numpy_helper

    from keras_calibration.export.onnx.operators import correct

    axes = numpy_helper.from_array(np.array([-1, -3]), "axes")

    def branch(name):
        nodes = [
            helper.make_node("ReduceSum", ["x", "axes"], [f"{name}/sum"]),
            helper.make_node("ReduceMax", ["x"], [f"{name}/max"], axes=[-2]),
        ]
        outputs = [
            helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, None) for node in nodes
        ]
        return helper.make_graph(nodes, name, [], outputs, [axes])

    then, other = branch("then"), branch("else")
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "ab"]
    choose = helper.make_node("If", ["flag"], ["a", "b"], then_branch=then, else_branch=other)
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 2, 3]),
        helper.make_tensor_value_info("flag", TensorProto.BOOL, []),
    ]
    opset = [helper.make_opsetid("", 17)]
    graph = helper.make_graph([choose], "model", inputs, outputs)
    model = helper.make_model(graph, opset_imports=opset)
    correct(model)
    for attribute in model.graph.node[0].attribute:
        total, largest = attribute.g.node
        counted = {tensor.name: tensor for tensor in attribute.g.initializer}[total.input[1]]
        assert numpy_helper.to_array(counted).tolist() == [2, 0]
        assert [*largest.attribute[0].ints] == [1]
