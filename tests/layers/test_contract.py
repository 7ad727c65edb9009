"""What Keras and this package ask of every layer, held for each public class.

A new layer is covered once `LAYERS` has it; `test_every_layer_is_listed` asks for that. What can
be compiled, saved or exported is so once, in one model of all layers.
"""

import importlib.util
import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass

import keras
import numpy as np
import pytest

from backends import compiled
from every_head import HEADS, NUM_CLASSES, NUM_SITES, has_classes
from keras_calibration import layers
from symbols import symbols

NUM_ROWS = 400
RNG = np.random.default_rng(0)
SITES = RNG.integers(0, NUM_SITES + 1, NUM_ROWS).astype("int32")  # the last is unknown
LOGITS = RNG.normal(-0.5, 1.5, (NUM_ROWS, 1)).astype("float32")
CHANCES = 1 / (1 + np.exp(-0.6 * LOGITS[:, 0] - 0.5 * SITES + 1))
LABELS = (RNG.random(NUM_ROWS) < CHANCES).astype("float32")
CLASS_LOGITS = RNG.normal(0, 1.5, (NUM_ROWS, NUM_CLASSES)).astype("float32")
CLASSES = np.argmax(0.6 * CLASS_LOGITS + RNG.gumbel(size=CLASS_LOGITS.shape), axis=1)
WEIGHTS = RNG.exponential(size=NUM_ROWS)
ALL, NO_ROWS = slice(None), slice(0, 0)


def network():
    return layers.FieldNetwork(
        {"site": NUM_SITES}, ["price"], embedding_dim=2, hidden_units=(4,), dropout=0, seed=0
    )


@dataclass(frozen=True)
class Case:
    """How a layer is made and called.

    Args:
        make: Makes the layer.
        has_classes: Whether the logits are of classes.
        has_network: Whether a fit would train a network: then `adapt` is called instead.
        has_logits: Whether it takes logits, or features alone.
    """

    make: Callable
    has_classes: bool = False
    has_network: bool = False
    has_logits: bool = True

    @property
    def width(self):
        return NUM_CLASSES if self.has_classes else 1

    def rows(self, part=ALL):
        """The arguments of a call."""
        logits = (CLASS_LOGITS if self.has_classes else LOGITS)[part]
        features = {"site": SITES[part], "price": LOGITS[part][:, 0] ** 2}
        return [logits, features] if self.has_logits else [features]

    def inputs(self):
        """The same as inputs of a Functional model."""
        features = symbols(site="int32", price=())
        return [keras.Input((self.width,)), features] if self.has_logits else [features]

    def learn(self, layer, part=ALL, weights=None):
        """Fits the layer, or adapts one with a network."""
        if not self.has_logits:
            layer.adapt(*self.rows(part))
        else:
            labels = CLASSES if self.has_classes else LABELS
            learn = layer.adapt if self.has_network else layer.fit
            logits, features = self.rows(part)
            learn(logits, labels[part], features, sample_weight=weights)


def blend_of_classes():
    return layers.BlendedHead([layers.TemperatureScaling(), layers.VectorScaling(NUM_CLASSES)])


def blend():
    by_site = layers.FieldBias({"site": NUM_SITES}, layers.PlattScaling())
    neural = layers.NeuralCalibration(layers.ILPS(5), network())
    return layers.BlendedHead([by_site, layers.BetaCalibration(), neural])


def neural():
    # While Keras loads, it may give one object for several copies of a network.
    return layers.NeuralCalibration(layers.ILPS(5), network(), num_members=3)


LAYERS = {
    **{name: Case(make, has_classes(name)) for name, (make, _) in HEADS.items()},
    "SamplingCorrection": Case(lambda: layers.SamplingCorrection(1)),
    "FieldNetwork": Case(network, has_network=True, has_logits=False),
    "NeuralCalibration": Case(neural, has_network=True),
    "BlendedHead, classes": Case(blend_of_classes, has_classes=True),
    "BlendedHead": Case(blend, has_network=True),
}


def city():
    """A lookup of two words, or two ids where there is no TensorFlow, which Keras' lookups need."""
    if importlib.util.find_spec("tensorflow") is None:
        return 2
    return keras.layers.StringLookup(vocabulary=["a", "b"])


every_layer = pytest.mark.parametrize("case", LAYERS.values(), ids=LAYERS)
# Values other than the defaults, of all arguments that a class adds to Keras' own.
ARGUMENTS = {
    "BoostedTrees": {
        "fields": {"site": NUM_SITES, "city": city()},
        "numeric": ["price"],
        "head": layers.PlattScaling(),
        "num_rounds": 9,
    },
    "FieldBias": {
        "fields": {"site": NUM_SITES, "city": city()},
        "calibrator": layers.PlattScaling(),
        "numeric": ["price"],
        "prior_scale": 2.0,
        "num_knots": 5,
        "follows_time": True,
    },
    "FieldILPS": {
        "fields": {"site": NUM_SITES},
        "calibrator": layers.PlattScaling(),
        "num_knots": 5,
        "prior_scale": 2.0,
    },
    "FieldNetwork": {
        "fields": {"site": NUM_SITES, "city": city()},
        "numeric": ["price"],
        "embedding_dim": 2,
        "hidden_units": [4],
        "num_numeric_knots": 9,
        "regularization": 2.0,
        "seed": 3,
        "num_coarse_knots": 4,
        "dropout": 0.5,
    },
    "ILPS": {
        "num_knots": 2,
        "knots": [-1.0, 0.5],
        "extrapolation": "constant",
        "monotonic": "strict",
        "smoothness": 2.0,
        "penalty": 0.25,
    },
    "IsotonicRegression": {"keep_ranking": False, "max_num_steps": 9},
    "NeuralCalibration": {
        "calibrator": layers.ILPS(5, "sigmoid"),
        "field_network": network(),
        "num_members": 2,
    },
    "SamplingCorrection": {"rate": "price"},
}


def taught(case):
    """A layer that has learnt something, and whose networks are no longer zero."""
    layer = case.make()
    case.learn(layer, weights=WEIGHTS)
    layer(*case.rows(slice(0, 2)))
    if case.has_network:
        generator = np.random.default_rng(1)
        for weight in layer.trainable_weights:
            noise = 0.1 * generator.normal(size=weight.shape)
            weight.assign(keras.ops.convert_to_numpy(weight) + noise)
    return layer


@pytest.fixture(scope="module")
def every_taught():
    return {name: taught(case) for name, case in LAYERS.items()}


def values_of(layer):
    return [keras.ops.convert_to_numpy(weight) for weight in layer.weights]


def called(layer, case, part=ALL):
    return keras.ops.convert_to_numpy(layer(*case.rows(part)))


def test_every_layer_is_listed():
    public = {
        name
        for name, member in inspect.getmembers(layers, inspect.isclass)
        if issubclass(member, keras.layers.Layer)
    }
    assert public - {"Head"} == {name.split(",")[0] for name in LAYERS}
    fitted = public - {"Head", "FieldNetwork", "SamplingCorrection"}
    assert fitted == {name.split(",")[0] for name in HEADS}


@every_layer
def test_the_config_is_plain_and_makes_the_same_layer(case):
    layer = case.make()
    layer.trainable = False
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(layer)))
    copy = keras.saving.deserialize_keras_object(config)
    assert type(copy) is type(layer)
    assert copy.get_config() == layer.get_config()
    assert (copy.name, copy.trainable) == (layer.name, False)
    case.learn(layer)
    case.learn(copy)
    np.testing.assert_array_equal(called(copy, case), called(layer, case))


@pytest.mark.parametrize("name", ARGUMENTS)
def test_the_config_holds_every_argument(name):
    kind, arguments = getattr(layers, name), ARGUMENTS[name]
    assert set(arguments) == set(inspect.signature(kind).parameters) - {"kwargs"}
    layer = kind(**arguments, name="own_name", trainable=False)
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(layer)))
    copy = keras.saving.deserialize_keras_object(config)
    assert copy.get_config() == layer.get_config()
    assert (copy.name, copy.trainable) == ("own_name", False)
    for argument, value in arguments.items():
        held = config["config"][argument]
        if isinstance(value, keras.layers.Layer):
            assert held["class_name"] == type(value).__name__
        else:
            assert held.keys() == value.keys() if argument == "fields" else held == value
    if isinstance(arguments.get("fields", {}).get("city"), keras.layers.Layer):
        assert copy.fields["city"].get_vocabulary() == ["[UNK]", "a", "b"]


@every_layer
def test_it_starts_as_the_identity(case):
    expected = case.rows()[0] if case.has_logits else np.zeros((NUM_ROWS, 1))
    received = called(case.make(), case)
    np.testing.assert_allclose(received, expected, rtol=1e-5, atol=1e-5)
    assert received.dtype == "float32"


@every_layer
def test_shapes_also_of_no_rows_and_of_symbols(case):
    layer = case.make()
    inputs = case.inputs()
    output = layer(*inputs)
    assert (output.shape, output.dtype) == ((None, case.width), "float32")
    shapes = keras.tree.map_structure(lambda tensor: tensor.shape, inputs)
    assert tuple(layer.compute_output_shape(*shapes)) == (None, case.width)
    assert layer(*case.rows(NO_ROWS)).shape == (0, case.width)
    assert layer(*case.rows(slice(0, 3))).shape == (3, case.width)


WITH_FEATURES = {name: case for name, case in LAYERS.items() if case.has_logits}


@pytest.mark.parametrize("case", WITH_FEATURES.values(), ids=WITH_FEATURES)
def test_one_row_of_features_is_not_broadcast(case):
    layer = case.make()
    logits, features = case.rows(slice(0, 3))
    layer(logits, features)
    for name in features if layer.feature_names is None else layer.feature_names:
        with pytest.raises(ValueError, match=rf"features of .* 3\. .*'{name}': 1"):
            layer(logits, {**features, name: features[name][:1]})
        with pytest.raises(ValueError, match=r"features of .* 1\. Received"):
            layer(logits[:1], features)


def test_rows_of_weight_zero_do_not_move_the_curve_under_a_network():
    half = np.where(np.arange(NUM_ROWS) % 2, WEIGHTS, 0.0)
    case = LAYERS["NeuralCalibration"]
    head, curve = case.make(), layers.ILPS(5)
    case.learn(head, weights=half)
    odd = slice(1, None, 2)
    curve.adapt(LOGITS[odd], LABELS[odd], sample_weight=half[odd])
    np.testing.assert_array_equal(head.calibrator.get_knots(), curve.get_knots())


@every_layer
def test_rows_that_are_refused_change_nothing(case, every_taught):
    layer = next(every_taught[name] for name, layer_case in LAYERS.items() if layer_case is case)
    before = values_of(layer)
    bad = (CLASSES if case.has_classes else LABELS).astype("float64")
    bad[3] = np.nan
    message = r"`labels` must be|[Ll]abels.* class numbers"
    if not case.has_logits:
        with pytest.raises(ValueError, match=r"Received: no 'price'"):
            layer.adapt({"site": SITES})
    else:
        logits, features = case.rows()
        with pytest.raises(ValueError, match=message):
            layer.fit(logits, bad, features)
    for received, expected in zip(values_of(layer), before, strict=True):
        np.testing.assert_array_equal(received, expected)


@pytest.fixture(scope="module")
def model(every_taught):
    """All layers side by side."""
    logits, class_logits = keras.Input((1,), name="logits"), keras.Input((3,), name="class_logits")
    features = symbols(site="int32", price=())
    outputs = {}
    for name, case in LAYERS.items():
        scores = [class_logits if case.has_classes else logits] if case.has_logits else []
        outputs[name.replace(", ", "_")] = every_taught[name](*scores, features)
    return keras.Model({"logits": logits, "class_logits": class_logits, **features}, outputs)


@pytest.fixture(scope="module")
def rows():
    price = LOGITS[:, 0] ** 2
    arrays = {"logits": LOGITS, "class_logits": CLASS_LOGITS, "site": SITES, "price": price}
    return {name: keras.ops.convert_to_tensor(values[:60]) for name, values in arrays.items()}


def agree(received, expected, tolerance=1e-5):
    assert received.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(
            keras.ops.convert_to_numpy(received[name]),
            keras.ops.convert_to_numpy(values),
            rtol=tolerance,
            atol=tolerance,
            err_msg=name,
        )


def test_under_xla_the_same(model, rows):
    agree(compiled(lambda batch: model(batch))(rows), model(rows))


def test_after_a_file_exactly_the_same(model, rows, tmp_path):
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    agree(loaded(rows), model(rows), tolerance=0)
    model.save_weights(tmp_path / "it.weights.h5")
    for weight in loaded.weights:
        weight.assign(np.zeros(weight.shape))
    loaded.load_weights(tmp_path / "it.weights.h5")
    agree(loaded(rows), model(rows), tolerance=0)


def test_float32_under_a_mixed_policy(mixed_bfloat16, every_taught):
    for name, case in LAYERS.items():
        layer = case.make()
        layer(*case.rows(slice(0, 2)))
        for weight, value in zip(layer.weights, every_taught[name].weights, strict=True):
            weight.assign(value)
        received = layer(*case.rows())
        assert keras.backend.standardize_dtype(received.dtype) == "float32", name
        dtypes = {keras.backend.standardize_dtype(w.dtype) for w in layer.weights}
        assert dtypes <= {"float32", "int32"}, name
        agree({name: received}, {name: every_taught[name](*case.rows())}, tolerance=0)
        if case.has_logits:
            logits, *features = case.rows()
            half = layer(keras.ops.cast(logits, "bfloat16"), *features)
            assert keras.backend.standardize_dtype(half.dtype) == "float32", name


@pytest.mark.slow
@pytest.mark.tensorflow
def test_exported_the_same(model, rows, tmp_path):
    import tensorflow as tf

    model.export(tmp_path / "model", verbose=False)
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    agree(loaded.serve(rows), model(rows))
