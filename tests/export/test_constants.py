"""Small weights are constants of the served graph, and a refresh finds those of the head."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

import keras_calibration as kc
from keras_calibration.export import refresh_savedmodel
from keras_calibration.export.checkpoint import collection_keys, read_tensors
from keras_calibration.export.constants import small_weights, with_constants
from keras_calibration.export.signatures import write_signatures

NUM_SITES = 40_000


def sizes_of_constants(path):
    """Name of the head's constants → their sizes; and the largest size of the others."""
    saved = saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes())
    of_head, others = {}, [0]
    for function in saved.meta_graphs[0].graph_def.library.function:
        for node in function.node_def:
            if node.op == "Const":
                size = tf.make_ndarray(node.attr["value"].tensor).size
                if "head_weight_" in node.name:
                    of_head.setdefault(node.name, set()).add(size)
                else:
                    others.append(size)
    return of_head, max(others)


def calibrated_model():
    """A base model with a large matrix, and a head with a table of more than four megabytes."""
    keras.utils.set_random_seed(0)
    inputs = {
        "site": keras.Input((), dtype="int32", name="site"),
        "x": keras.Input((1100,), name="x"),
    }
    hidden = keras.layers.Dense(1000, "relu")(inputs["x"])
    hidden = keras.layers.Dense(4, "relu")(hidden)
    base = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(hidden))
    network = kc.layers.FieldNetwork({"site": NUM_SITES}, hidden_units=[32], seed=0)
    return kc.models.CalibratedModel(base, kc.layers.NeuralCalibration(kc.layers.ILPS(), network))


def test_large_weights_stay_variables_and_are_refreshed_with_the_small(tmp_path):
    model = calibrated_model()
    first = kc.export_savedmodel(model, tmp_path / "1", verify="same_process")
    weights = [read_tensors(first)[key] for key in collection_keys(first, "head_weights")]
    sizes = [weight.size for weight in weights]
    assert max(sizes) > 2**20
    of_head, largest = sizes_of_constants(first)
    numbers = {int(name.split("head_weight_")[1].split("_")[0]) for name in of_head}
    assert numbers == {number for number, size in enumerate(sizes) if size < 2**20}
    assert all(found == {sizes[int(name.split("_")[2])]} for name, found in of_head.items())
    assert largest == 4000

    rng = np.random.default_rng(0)
    site = rng.integers(0, NUM_SITES, 900).astype("int32")
    logits = rng.normal(size=900).astype("float32")
    labels = rng.random(900) < 1 / (1 + np.exp(1 - logits - (site % 2)))
    features = {"site": site}
    second = refresh_savedmodel(
        first, logits, labels, features, verify="same_process", max_epochs=2, folds=2
    )
    model.head.fit(logits, labels, features, settings=kc.layers.FitSettings(max_epochs=2, folds=2))
    expected = 1 / (1 + np.exp(-model.head(logits, features).numpy()))
    calibrate = tf.saved_model.load(str(second)).signatures["calibrate"]
    served = calibrate(logit=tf.constant(logits[:, None]), site=tf.constant(site))
    np.testing.assert_allclose(served["probability"].numpy(), expected, rtol=0, atol=1e-6)


def test_the_fingerprint_is_up_to_date_after_a_refresh(tmp_path):
    inputs = keras.Input((1,), name="x")
    base = keras.Model({"x": inputs}, keras.layers.Dense(1, "sigmoid")(inputs))
    model = kc.models.CalibratedModel(base, kc.layers.PlattScaling())
    first = kc.export_savedmodel(model, tmp_path / "1", verify="same_process")
    logits = np.linspace(-3, 3, 300)
    labels = np.random.default_rng(0).random(300) < 1 / (1 + np.exp(-2 * logits))
    second = refresh_savedmodel(first, logits, labels, verify="same_process")
    before, after = (
        tf.saved_model.experimental.read_fingerprint(str(path)) for path in (first, second)
    )
    assert before.checkpoint_hash != after.checkpoint_hash
    assert before.saved_model_checksum != after.saved_model_checksum
    assert before.signature_def_hash == after.signature_def_hash


def test_the_smallest_are_taken_first():
    shapes = [(2**19,), (3,), (2**19,), (2**19 + 1,), ()]
    weights = [keras.Variable(np.zeros(shape)) for shape in shapes]
    taken = [weight.shape for weight in small_weights(weights)]
    assert taken == [(), (3,), (2**19,)]


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_a_function_with_constants_reads_no_variable(dtype):
    layer = keras.layers.Dense(3, "relu", dtype=dtype)
    layer.build((None, 2))
    spec = tf.TensorSpec((None, 2))
    function = tf.function(with_constants(layer, layer.weights), autograph=False)
    traced = function.get_concrete_function(spec)
    assert not traced.variables
    rows = np.random.default_rng(0).normal(size=(5, 2)).astype("float32")
    before = layer(rows)
    np.testing.assert_array_equal(traced(tf.constant(rows)), before)
    layer.kernel.assign_add(keras.ops.ones((2, 3)))
    np.testing.assert_array_equal(traced(tf.constant(rows)), before)
    half = tf.function(with_constants(layer, [layer.bias]), autograph=False)
    assert len(half.get_concrete_function(spec).variables) == 1


@pytest.mark.parametrize(("layer", "is_table"), [("ILPS", True), ("IsotonicRegression", False)])
def test_xla_gets_constants_of_tables_only(layer, is_table, tmp_path):
    inputs = {"x": keras.Input((1,), name="x")}
    base = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(inputs["x"]))
    model = kc.models.CalibratedModel(base, getattr(kc.layers, layer)())
    for jit_compile in (False, True):
        path = tmp_path / str(jit_compile)
        write_signatures(model, path, {"x": np.zeros((2, 1), "float32")}, jit_compile)
        assert bool(sizes_of_constants(path)[0]) == (is_table or not jit_compile)


def test_xla_gets_small_constants_of_the_base_model_only(tmp_path):
    inputs = {"x": keras.Input((200,), name="x")}
    hidden = keras.layers.Dense(100, "relu")(inputs["x"])
    base = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(hidden))
    model = kc.models.CalibratedModel(base, kc.layers.ILPS())
    rows = {"x": np.zeros((2, 200), "float32")}
    for jit_compile, largest in ((False, 20_000), (True, 100)):
        path = tmp_path / str(jit_compile)
        write_signatures(model, path, rows, jit_compile)
        assert sizes_of_constants(path)[1] == largest
