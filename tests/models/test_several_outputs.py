"""One output of a base model with several is calibrated, and the others are passed on unchanged."""

import keras
import numpy as np
import pytest

import keras_calibration as kc
from keras_calibration._graph.base_logits import BaseLogits
from keras_calibration.models import CalibratedModel

RNG = np.random.default_rng(0)
X = {
    "scores": RNG.normal(size=(200, 3)).astype("float32"),
    "site": RNG.integers(0, 4, 200).astype("int32"),
}
Y = RNG.random(200) < 1 / (1 + np.exp(1 - X["scores"].sum(axis=1)))


def inputs():
    return {
        "scores": keras.Input((3,), name="scores"),
        "site": keras.Input((), dtype="int32", name="site"),
    }


def task(name, seed=0, units=1, activation="sigmoid", **arguments):
    """A layer whose weights do not change from model to model."""
    kernel = keras.initializers.RandomNormal(mean=1.0, stddev=0.5, seed=seed)
    bias = keras.initializers.Constant(-0.5)
    return keras.layers.Dense(
        units, activation, kernel_initializer=kernel, bias_initializer=bias, name=name, **arguments
    )


def two_tasks(scores, **arguments):
    return {"click": task("click")(scores), "buy": task("buy", 1, **arguments)(scores)}


def dictionary():
    """Keys that are not sorted, a logit, classes, ids and half precision."""
    given = inputs()
    scores = given["scores"]
    outputs = {
        "topic": task("topic_output", 2, units=3, activation="softmax")(scores),
        **two_tasks(scores),
        "site": given["site"],
        "half": keras.layers.Dense(2, dtype="float16", name="halves")(scores),
        "argmax": keras.ops.argmax(scores, axis=1),
        "amount": task("amount_output", 3, activation=None)(scores),
    }
    return keras.Model(given, outputs)


def flat():
    """Outputs of shape (batch,)."""
    given = inputs()
    tasks = two_tasks(given["scores"])
    return keras.Model(given, [keras.layers.Reshape(())(tensor) for tensor in tasks.values()])


def two_head(name="heads"):
    given = keras.Input((3,))
    return keras.Model(given, list(two_tasks(given).values()), name=name)


def one_layer_model():
    """A list of outputs of one nested model, whose operations hence share a name."""
    given = inputs()
    return keras.Model(given, two_head()(given["scores"]))


def structures():
    given = inputs()
    tasks = two_tasks(given["scores"])
    outputs = {"tasks": [tasks["click"], tasks["buy"]], "site": given["site"]}
    return keras.Model(given, outputs)


def as_list():
    given = inputs()
    return keras.Model(given, list(two_tasks(given["scores"]).values()))


# The base model, which of its outputs is "buy", and the scale of its logits.
BASES = {
    "dictionary": (dictionary, "buy", 1.0),
    "index": (as_list, 1, 1.0),
    "index from the end": (as_list, np.int64(-1), 1.0),
    "name": (as_list, "buy", 1.0),
    "flat": (flat, 1, 1.0),
    "of one layer": (one_layer_model, "output_1", 1.0),
    "structures": (structures, "tasks/1", 1.0),
}


def fitted(base, key, head=None, **arguments):
    model = CalibratedModel(
        base, head or kc.layers.PlattScaling(), calibrated_output=key, **arguments
    )
    kc.fit_head(model, X, Y, verbose=0)
    return model


def flat_outputs(model):
    found = model(X, training=False)
    return [keras.ops.convert_to_numpy(tensor) for tensor in keras.tree.flatten(found)]


def layer_named(model, name):
    return next(each for each in model._flatten_layers() if each.name == name)


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("name", BASES)
def test_one_output_is_calibrated_and_the_others_are_as_they_were(name):
    make, key, scale = BASES[name]
    base = make()
    before, names = flat_outputs(base), base.output_names
    model = fitted(base, key)
    kernel, bias = (w.astype("float64") for w in layer_named(base, "buy").get_weights())
    logits = scale * X["scores"].astype("float64") @ kernel + bias
    np.testing.assert_allclose(kc.base_logits(model, X), logits, rtol=1e-5, atol=1e-5)

    both = model.with_all_outputs()
    assert type(both) is type(keras.Model(base.input, base.output))
    after = flat_outputs(both)
    keras.tree.assert_same_structure(both.output, base.output)
    position = model.base.position
    probability = model.predict(X, verbose=0)
    np.testing.assert_array_equal(after[position], probability.reshape(before[position].shape))
    assert not np.allclose(after[position], before[position], atol=0.01)
    for number, (old, new) in enumerate(zip(before, after, strict=True)):
        assert old.dtype == new.dtype
        if number != position:
            np.testing.assert_array_equal(old, new)
    if len(set(names)) == len(names) and "site" not in names:
        assert both.output_names == names


@pytest.mark.parametrize("key", ["topic", "amount"])
def test_classes_and_logits_among_binary_outputs(key):
    base = dictionary()
    before = flat_outputs(base)[sorted(base.output).index(key)]
    head = kc.layers.VectorScaling(3) if key == "topic" else None
    model = CalibratedModel(base, head or kc.layers.PlattScaling(), calibrated_output=key)
    labels = np.random.default_rng(1).integers(0, 3, 200) if key == "topic" else Y
    uncalibrated = keras.ops.convert_to_numpy(model.with_all_outputs()(X)[key])
    expected = before if key == "topic" else 1 / (1 + np.exp(-before))
    np.testing.assert_allclose(uncalibrated, expected, atol=1e-6)
    both = model.with_all_outputs()
    # The model is made once, and shares the head.
    kc.fit_head(model, X, labels, verbose=0)
    calibrated = model.predict(X, verbose=0)
    assert not np.allclose(calibrated, expected, atol=0.01)
    np.testing.assert_array_equal(both.predict(X, verbose=0)[key], calibrated)


@pytest.mark.slow
def test_two_outputs_in_turn_are_joined(tmp_path):
    base = dictionary()
    before = {key: keras.ops.convert_to_numpy(values) for key, values in base(X).items()}
    alone = {key: fitted(base, key).predict(X, verbose=0) for key in ("click", "buy")}
    both = base
    for key in ("click", "buy"):
        model = fitted(both, key)
        both = model.with_all_outputs()
    both.save(tmp_path / "both.keras")
    for each in (both, keras.saving.load_model(tmp_path / "both.keras")):
        after = {key: keras.ops.convert_to_numpy(values) for key, values in each(X).items()}
        assert list(after) == list(before)
        for key, values in after.items():
            np.testing.assert_array_equal(values, {**before, **alone}[key])
    np.testing.assert_array_equal(kc.base_logits(model, X), kc.base_logits(fitted(base, "buy"), X))


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("name", ["dictionary", "of one layer", "flat"])
def test_saved_loaded_copied_and_cloned(name, tmp_path):
    make, key, _ = BASES[name]
    model = fitted(make(), key)
    both = model.with_all_outputs()
    expected = flat_outputs(both)
    model.save(tmp_path / "model.keras")
    both.save(tmp_path / "both.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(X, verbose=0), model.predict(X, verbose=0))
    copy = CalibratedModel.from_config(model.get_config())
    copy.set_weights(model.get_weights())
    clone = keras.models.clone_model(both)
    clone.set_weights(both.get_weights())
    assert len(both.weights) == len(model.weights)
    for again in (
        keras.saving.load_model(tmp_path / "both.keras"),
        loaded.with_all_outputs(),
        copy.with_all_outputs(),
        clone,
    ):
        for received, values in zip(flat_outputs(again), expected, strict=True):
            np.testing.assert_array_equal(received, values)
    assert loaded.base.calibrated_output == model.base.calibrated_output == key


def one_in_a_dictionary():
    given = inputs()
    return keras.Model(given, {"buy": task("buy", 1)(given["scores"])})


@pytest.mark.parametrize("key", [None, "buy"])
def test_one_output_in_a_structure_needs_no_name(key):
    model = fitted(one_in_a_dictionary(), key)
    assert model.with_all_outputs().predict(X, verbose=0).keys() == {"buy"}


def heads_in_a_sequential():
    heads = keras.Input((3,))
    return keras.Sequential(
        [keras.Input((3,)), keras.layers.Rescaling(2.0), keras.Model(heads, two_tasks(heads))]
    )


@pytest.mark.parametrize("key", ["click", "buy"])
def test_a_sequential_that_ends_in_several_outputs(key):
    base = heads_in_a_sequential()
    model = CalibratedModel(base, kc.layers.PlattScaling(), calibrated_output=key)
    expected = base.predict(X["scores"], verbose=0)
    both = model.with_all_outputs().predict(X["scores"], verbose=0)
    assert both.keys() == {"click", "buy"}
    for name, values in expected.items():
        np.testing.assert_allclose(both[name], values, atol=1e-6)


REFUSED = {
    "no name": (heads_in_a_sequential, None, r"name of .*\['buy', 'click'\].*Received.*None"),
    "unknown": (as_list, "by", r"or the index of the .*\['click', 'buy'\].*='by'"),
    "index of a dictionary": (heads_in_a_sequential, 0, r"must be the name of the output.*=0\."),
    "index too high": (as_list, 2, r"calibrated_output=2\."),
    "index too low": (as_list, -3, r"calibrated_output=-3\."),
    "a truth value": (as_list, True, r"calibrated_output=True\."),
    "several": (as_list, ["buy"], r"calibrated_output=\['buy'\]"),
    "ids": (dictionary, "site", "float dtype. Received: an output of dtype int32"),
    "the only one has another name": (one_in_a_dictionary, "click", r"\['buy'\]"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_output_is_refused(case):
    make, key, message = REFUSED[case]
    base = make()
    flags = [layer.trainable for layer in base._flatten_layers()]
    for refused in (
        lambda: CalibratedModel(base, kc.layers.PlattScaling(), calibrated_output=key),
        lambda: BaseLogits(base, calibrated_output=key),
    ):
        with pytest.raises(ValueError, match=message):
            refused()
    assert [layer.trainable for layer in base._flatten_layers()] == flags


@pytest.mark.parametrize("make", [dictionary, as_list])
def test_calibrate_takes_the_output_that_the_labels_name(make):
    base, options = make(), {"methods": "platt", "verbose": 0}
    expected = fitted(make(), "buy")
    halves = [slice(120), slice(120, None)]
    batches = batches_of(
        [({n: v[rows] for n, v in X.items()}, {"buy": Y[rows]}) for rows in halves]
    )
    for x, y in ((X, {"buy": Y}), (batches, None)):
        model = kc.calibrate(base, x, y, **options)
        np.testing.assert_allclose(
            model.predict(X, verbose=0), expected.predict(X, verbose=0), atol=1e-5
        )
    for wrong in (Y, {"buy": Y, "click": Y}, {"sale": Y}, {}):
        with pytest.raises(ValueError, match=r"`y` must be a dictionary with the labels of one"):
            kc.calibrate(base, X, wrong, **options)
    with pytest.raises(ValueError, match="float dtype"):
        kc.calibrate(dictionary(), X, {"site": Y}, **options)


def test_labels_by_output():
    base = dictionary()
    labels = {"buy": Y, "click": ~Y}
    weights = {"buy": np.linspace(0.5, 1.5, 200), "click": np.ones(200)}
    model = CalibratedModel(base, kc.layers.PlattScaling(), calibrated_output="buy")
    kc.fit_head(model, X, Y, weights["buy"], verbose=0)
    expected = model.head.get_weights()
    batches = [
        tuple({k: v[rows] for k, v in part.items()} for part in (X, labels, weights))
        for rows in (slice(120), slice(120, None))
    ]
    message = r"calibrated output, 'buy' or 'probability'. Received: .*\['click'\]"
    with pytest.raises(ValueError, match=message):
        kc.fit_head(model, X, {"click": Y}, verbose=0)
    for given in (labels, {"buy": Y}, {"probability": Y}):
        kc.fit_head(model, X, given, weights["buy"], verbose=0)
        np.testing.assert_array_equal(model.head.get_weights()[0], expected[0])
    kc.fit_head(model, X, labels, weights, verbose=0)
    np.testing.assert_array_equal(model.head.get_weights()[0], expected[0])
    kc.fit_head(model, batches_of(batches), verbose=0)
    np.testing.assert_allclose(model.head.get_weights()[0], expected[0], rtol=1e-6)


def batches_of(batches):
    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return len(batches)

        def __getitem__(self, number):
            return batches[number]

    return Batches()
