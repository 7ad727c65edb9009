"""The SavedModel gives the Keras model's probabilities, in a process that knows only TensorFlow."""

import importlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

import keras_calibration as kc
from keras_calibration.export import signature_input, verification
from keras_calibration.export.provenance import describe_model
from keras_calibration.export.spec import Spec
from served import answers, provenance_of, serve_here

export_module = importlib.import_module("keras_calibration.export.savedmodel.export")

OUTPUTS = {"probability", "uncalibrated_probability", "logit"}


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
    head = kc.layers.FieldBias({"site": lookup, "class": 10}, kc.layers.ILPS(), ["bid-price"])
    model = kc.models.CalibratedModel(base, head)
    kc.fit_head(model, features, labels, verbose=0)
    return model, features


@pytest.fixture
def new_process(monkeypatch):
    """Exports are verified as users' are: in a new process with TensorFlow alone."""
    monkeypatch.setattr(verification, "in_new_process", True)


def small_model():
    """Two numbers in, a probability out."""
    keras.utils.set_random_seed(0)
    inputs = {name: keras.Input((1,), name=name) for name in ("x", "z")}
    hidden = keras.layers.Concatenate()(list(inputs.values()))
    base = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(hidden))
    return kc.models.CalibratedModel(base, kc.layers.ILPS())


def saved_model_of(path):
    saved = saved_model_pb2.SavedModel()
    saved.ParseFromString((path / "saved_model.pb").read_bytes())
    return saved.meta_graphs[0]


@pytest.mark.slow
def test_a_new_process_serves_the_same_probabilities(string_model, new_process, tmp_path):
    model, features = string_model
    path = kc.export_savedmodel(model, tmp_path / "1", features)
    tensors = {**features, "site": tf.constant(features["site"])}
    expected = model.predict(tensors, verbose=0)[:, 0]
    rows = {signature_input(name): column for name, column in features.items()}
    base = model.base_model.predict(tensors, verbose=0)[:, 0]
    logits = kc.base_logits(model, tensors)
    # The head reads all three features, so that they all go into `calibrate` too.
    requests = [(rows, "serving_default"), (rows, "raw"), ({**rows, "logit": logits}, "calibrate")]
    whole, raw, calibrated = answers(path, requests)
    assert set(whole) == OUTPUTS
    np.testing.assert_allclose(whole["probability"], expected, rtol=0, atol=1e-6)
    assert set(raw) == OUTPUTS - {"probability"}
    for outputs in (whole, raw):
        np.testing.assert_allclose(outputs["uncalibrated_probability"], base, rtol=0, atol=1e-6)
        np.testing.assert_allclose(outputs["logit"], logits[:, 0], rtol=1e-5, atol=1e-5)
    assert set(calibrated) == {"probability"}
    np.testing.assert_allclose(calibrated["probability"], expected, rtol=0, atol=1e-6)
    # Calibration has changed something: the outputs are not one and the same.
    assert np.abs(whole["probability"] - whole["uncalibrated_probability"]).max() > 0.05
    assert provenance_of(path)["verification"]["rows"] == "sample"
    # The base model is served by its own variables: no weight is a constant of the graph.
    functions = saved_model_of(path).graph_def.library.function
    nodes = [node for function in functions for node in function.node_def]
    constants = [node.attr["value"].tensor for node in nodes if node.op == "Const"]
    shapes = [[dim.size for dim in tensor.tensor_shape.dim] for tensor in constants]
    sizes = [np.prod(weight.shape) for weight in model.base_model.weights]
    assert max(np.prod(shape) for shape in shapes) < max(sizes)
    assert sum(node.op == "ReadVariableOp" for node in nodes) >= len(sizes)


def test_a_list_of_inputs(tmp_path):
    """A single one is among the stories."""
    inputs = [keras.Input((2,), name="first"), keras.Input((3,), name="second")]
    output = keras.layers.Dense(1, "sigmoid")(keras.layers.Concatenate()(inputs))
    model = kc.models.CalibratedModel(keras.Model(inputs, output), kc.layers.ILPS())
    path = kc.export_savedmodel(model, tmp_path / "1")
    rng = np.random.default_rng(0)
    rows = {"first": rng.normal(size=(5, 2)), "second": rng.normal(size=(5, 3))}
    expected = model.predict(list(rows.values()))[:, 0]
    np.testing.assert_allclose(serve_here(path, rows)["probability"], expected, atol=1e-6)


def test_compiled_by_xla_any_batch_size_gives_the_same(tmp_path):
    model = small_model()
    path = kc.export_savedmodel(model, tmp_path / "1", jit_compile=True)
    assert provenance_of(path)["xla"] == {"base": "on", "head": "on"}
    functions = saved_model_of(path).graph_def.library.function
    assert sum("_XlaMustCompile" in function.attr for function in functions) >= 3
    signatures = tf.saved_model.load(str(path)).signatures
    for num_rows in (0, 1, 65):
        rng = np.random.default_rng(num_rows)
        rows = {name: tf.constant(rng.normal(size=(num_rows, 1)), "float32") for name in ("x", "z")}
        serving, raw = (signatures[name](**rows) for name in ("serving_default", "raw"))
        again = signatures["calibrate"](logit=raw["logit"])
        np.testing.assert_allclose(raw["logit"], serving["logit"], atol=1e-6)
        for outputs in (serving, again):
            np.testing.assert_allclose(outputs["probability"], model(rows), rtol=0, atol=1e-6)


def test_the_provenance_says_what_was_fitted(tmp_path):
    rng = np.random.default_rng(0)
    rows = {name: rng.normal(size=(500, 1)).astype("float32") for name in ("x", "z")}
    model = small_model()
    curve = model.head
    summary = curve.fit(kc.base_logits(model, rows), rng.random(500) < 0.3)
    told = provenance_of(kc.export_savedmodel(model, tmp_path / "1", rows))
    assert told["fit"]["num_rows"] == 500
    for name in ("log_loss_before", "log_loss_in_sample", "fitted_at"):
        assert told["fit"][name] == getattr(summary, name)
    np.testing.assert_array_equal(told["head"]["curve"]["knots"], curve.get_knots())
    np.testing.assert_array_equal(told["head"]["curve"]["values"], curve.get_values())
    assert told["head"]["class"] == "ILPS"
    assert told["versions"]["tensorflow"] == tf.__version__
    assert told["versions"]["keras_calibration"] == kc.__version__
    assert all(why.startswith("off: jit_compile=False") for why in told["xla"].values())
    labels = rng.random(500) < 0.7 * model.base_model.predict(rows, verbose=0)[:, 0]
    model = kc.calibrate(model.base_model, rows, labels, methods="platt", verbose=0)
    assert describe_model(Spec.from_model(model))["report"] == model.report.to_dict()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("path", None),
        ("version", "last"),
        ("version", -1),
        ("version", np.float64(2)),
        ("jit_compile", "always"),
        ("sample", {"x": np.zeros(3)}),
        ("sample", (np.zeros(3), np.zeros(3))),
        ("sample", tf.data.Dataset.from_tensors(({"x": [0.0], "z": [0.0]}, [1]))),
        *(("interval", level) for level in (0, 1, 2.0, "0.9", True)),
    ],
)
def test_arguments_out_of_their_range(name, value, tmp_path):
    with pytest.raises(ValueError, match=f"`?{name}.*Received: "):
        kc.export_savedmodel(small_model(), **{"path": tmp_path / "1", name: value})
    assert not list(tmp_path.iterdir())


def small_ids(offset):
    inputs = {"id": keras.Input((1,), dtype="int32", name="id")}
    hidden = keras.layers.Flatten()(keras.layers.Embedding(3, 2)(inputs["id"] + offset))
    base = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(hidden))
    return kc.models.CalibratedModel(base, kc.layers.ILPS())


def test_random_rows_that_the_base_cannot_take_ask_for_a_sample(tmp_path):
    model = small_ids(offset=3)
    with pytest.raises(ValueError, match=r"ids below 10.*`sample`"):
        kc.export_savedmodel(model, tmp_path / "1")
    assert not list(tmp_path.iterdir())
    assert len(Spec.from_model(model, {"id": np.array([[-3], [-1]])}).expected["logit"]) == 2
    assert len(Spec.from_model(small_ids(offset=0)).expected["logit"]) == 64


def test_a_width_that_the_model_leaves_open(tmp_path):
    tags = keras.Input((None,), dtype="int32", name="tags")
    mean = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(10, 4)(tags))
    head = kc.layers.PlattScaling(dtype="float64")
    head.fit(np.linspace(-2, 2, 40), np.arange(40) > 20 + 9 * np.sin(np.arange(40)))
    base = keras.Model(tags, keras.layers.Dense(1, "sigmoid")(mean))
    model = kc.models.CalibratedModel(base, head)
    path = kc.export_savedmodel(model, tmp_path / "1", {"tags": np.ones((4, 3), "int32")})
    serve = tf.saved_model.load(str(path)).signatures["serving_default"]
    for width in (1, 3, 7):
        rows = {"tags": np.arange(2 * width, dtype="int32").reshape(2, width) % 10}
        expected = model.predict(rows, verbose=0)
        received = serve(tags=tf.constant(rows["tags"]))["probability"]
        np.testing.assert_allclose(received, expected, atol=1e-6)


def model_in(policy):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((20,), name="x")
    biased = {"bias_initializer": "random_normal", "dtype": policy}
    hidden = keras.layers.Dense(32, "relu", **biased)(inputs)
    base = keras.Model(inputs, keras.layers.Dense(1, "sigmoid", **biased)(hidden))
    return kc.models.CalibratedModel(base, kc.layers.PlattScaling())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "rounding"),
    [("mixed_float16", 2**-10), ("mixed_bfloat16", 2**-7), ("float32", 2**-10)],
)
def test_rounding_of_half_precision_is_no_difference(policy, rounding, tmp_path, monkeypatch):
    """Whether two programs round alike depends on the processor: here, one is off by a bit."""
    expected = Spec.expected.func

    def rounded(spec):
        outputs = expected(spec)
        return {**outputs, "logit": outputs["logit"] * (1 + rounding)}

    monkeypatch.setattr(Spec, "expected", property(rounded))
    rows = np.random.default_rng(0).normal(size=(64, 20)).astype("float32")
    if policy == "float32":
        with pytest.raises(RuntimeError, match="Received: a difference"):
            kc.export_savedmodel(model_in(policy), tmp_path / "1", rows)
        return
    told = provenance_of(kc.export_savedmodel(model_in(policy), tmp_path / "1", rows))
    assert told["verification"]["largest_differences"]["raw/logit"] > rounding / 4


def named_model(*names):
    inputs = {name: keras.Input((1,), name=name) for name in names}
    hidden = keras.layers.Concatenate()(list(inputs.values()))
    base = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(hidden))
    network = kc.layers.FieldNetwork({}, numeric=list(names))
    return kc.models.CalibratedModel(base, kc.layers.NeuralCalibration(kc.layers.ILPS(), network))


@pytest.mark.slow
def test_names_that_tensorflow_does_not_take_are_served_under_others(tmp_path):
    names = {"site id": "site_id", "größe": "gr__e", "_x": "input_x", "日本": "input__"}
    names |= {"class": "class_", "self": "self_", "-price": "input-price", ">y": "input>y"}
    assert {name: signature_input(name) for name in names} == names
    model = named_model(*names)
    path = kc.export_savedmodel(model, tmp_path / "1")
    rows = {name: np.array([[0.5], [k]], "float32") for k, name in enumerate(names)}
    expected = model.predict(rows, verbose=0)[:, 0]
    by_signature = {names[name]: column for name, column in rows.items()}
    np.testing.assert_allclose(serve_here(path, by_signature)["probability"], expected, atol=1e-6)


@pytest.mark.parametrize(
    "names", [("logit", "x"), ("a b", "a_b"), ("user.id", "user_id"), ("a>b", "a-b"), ("x", "X")]
)
def test_names_that_would_be_served_as_one_are_refused(names, tmp_path):
    with pytest.raises(ValueError, match="Rename"):
        kc.export_savedmodel(named_model(*names), tmp_path / "1")
    assert not list(tmp_path.iterdir())


def test_a_savedmodel_that_differs_is_not_left(new_process, tmp_path, monkeypatch):
    """One that does not load neither: the function of Python below."""
    model = small_model()
    write, curve = export_module.write_signatures, model.head._free_values
    values = curve.numpy()

    def write_another(spec, path, *arguments):
        curve.assign(values + 0.01)
        xla = write(spec, path, *arguments)
        curve.assign(values)
        return xla

    monkeypatch.setattr(export_module, "write_signatures", write_another)
    message = r"'calibrate/probability' of the SavedModel may differ .* Nothing was written"
    with pytest.raises(RuntimeError, match=message):
        kc.export_savedmodel(model, tmp_path / "1")
    assert not list(tmp_path.iterdir())


def test_a_head_that_was_never_fitted_brings_a_warning():
    model = small_model()
    with pytest.warns(UserWarning, match="fit_head"):
        Spec.from_model(model).warn_if_unfitted()
    rows = {name: np.linspace(-2, 2, 300)[:, None] for name in ("x", "z")}
    kc.fit_head(model, rows, np.arange(300) % 3 == 0, verbose=0)
    Spec.from_model(model).warn_if_unfitted()


def through_python(values):
    result = tf.py_function(lambda v: 2 * v, [values], tf.float32)
    result.set_shape(values.shape)
    return result


@pytest.mark.slow
@pytest.mark.parametrize("function", [lambda v: 2 * v, through_python], ids=["traced", "python"])
def test_a_lambda_is_exported_if_tensorflow_traces_it(function, new_process, tmp_path):
    base = keras.Sequential([keras.Input((1,), name="x")])
    base.add(keras.layers.Lambda(function, output_shape=(1,)))
    base.add(keras.layers.Dense(1, "sigmoid"))
    model = kc.models.CalibratedModel(base, kc.layers.PlattScaling())
    if function is through_python:
        with pytest.raises(RuntimeError, match="does not load and run"):
            kc.export_savedmodel(model, tmp_path / "1")
        assert [*tmp_path.iterdir()] == []
        return
    path = kc.export_savedmodel(model, tmp_path / "1")
    x = np.linspace(-1, 1, 8, dtype="float32")[:, None]
    served = serve_here(path, {"x": x})["probability"]
    np.testing.assert_allclose(served, model.predict(x, verbose=0)[:, 0], rtol=1e-5)


@pytest.mark.slow
def test_inputs_of_any_float_dtype_are_compared(new_process, tmp_path):
    x = {name: keras.Input((1,), dtype=name, name=name) for name in ("bfloat16", "float16")}
    wide = [keras.ops.cast(column, "float32") for column in x.values()]
    base = keras.Model(x, keras.layers.Activation("sigmoid")(keras.layers.Add()(wide)))
    path = kc.export_savedmodel(
        kc.models.CalibratedModel(base, kc.layers.PlattScaling()), tmp_path, version=np.int64(3)
    )
    assert path.name == "3"
    told = provenance_of(path)["verification"]["largest_differences"]
    assert told["serving_default/logit"] == 0


@pytest.mark.slow
def test_an_embedding_is_written_once(tmp_path):
    """4,000 rows of 16: Keras' own export would write them twice."""
    inputs = {"user": keras.Input((1,), name="user", dtype="int32")}
    embedded = keras.layers.Flatten()(keras.layers.Embedding(4000, 16)(inputs["user"]))
    base = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(embedded))
    model = kc.models.CalibratedModel(base, kc.layers.PlattScaling())
    rows = {"user": np.arange(8, dtype="int32")[:, None]}
    path = kc.export_savedmodel(model, tmp_path / "1", rows)
    size = (path / "variables" / "variables.data-00000-of-00001").stat().st_size
    assert size < 1.1 * 4 * sum(np.prod(weight.shape) for weight in model.weights)
