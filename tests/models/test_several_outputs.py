"""One output of a base model with several is calibrated, and the others are passed on unchanged."""

import keras
import numpy as np
import pytest

import keras_calibration as kc
from batches import Batches
from keras_calibration._graph.base_logits import BaseLogits
from keras_calibration.models import CalibratedModel
from symbols import symbols

RNG = np.random.default_rng(0)
X = {
    "scores": RNG.normal(size=(200, 3)).astype("float32"),
    "site": RNG.integers(0, 4, 200).astype("int32"),
}
Y = RNG.random(200) < 1 / (1 + np.exp(1 - X["scores"].sum(axis=1)))


def inputs():
    return symbols(scores=(3,), site="int32")


def task(name, seed=0, units=1, activation="sigmoid"):
    """A layer whose weights do not change from model to model."""
    kernel = keras.initializers.RandomNormal(mean=1.0, stddev=0.5, seed=seed)
    bias = keras.initializers.Constant(-0.5)
    return keras.layers.Dense(
        units, activation, kernel_initializer=kernel, bias_initializer=bias, name=name
    )


def two_tasks(scores):
    return {"click": task("click")(scores), "buy": task("buy", 1)(scores)}


def dictionary():
    """Keys that are not sorted, a logit, classes, ids and half precision."""
    features = inputs()
    scores = features["scores"]
    outputs = {
        "topic": task("topic_output", 2, units=3, activation="softmax")(scores),
        **two_tasks(scores),
        "site": features["site"],
        "half": keras.layers.Dense(2, dtype="float16", name="halves")(scores),
        "argmax": keras.ops.argmax(scores, axis=1),
        "amount": task("amount_output", 3, activation=None)(scores),
    }
    return keras.Model(features, outputs)


def flat():
    """Outputs of shape (batch,)."""
    features = inputs()
    tasks = two_tasks(features["scores"])
    return keras.Model(features, [keras.layers.Reshape(())(tensor) for tensor in tasks.values()])


def one_layer_model():
    """A list of outputs of one nested model, whose operations hence share a name."""
    features, scores = inputs(), keras.Input((3,))
    heads = keras.Model(scores, list(two_tasks(scores).values()))
    return keras.Model(features, heads(features["scores"]))


def structures():
    features = inputs()
    tasks = two_tasks(features["scores"])
    outputs = {"tasks": [tasks["click"], tasks["buy"]], "site": features["site"]}
    return keras.Model(features, outputs)


def as_list():
    features = inputs()
    return keras.Model(features, list(two_tasks(features["scores"]).values()))


def one_in_a_dictionary():
    features = inputs()
    return keras.Model(features, {"buy": task("buy", 1)(features["scores"])})


# The base model, and which of its outputs is "buy".
BASES = {
    "dictionary": (dictionary, "buy"),
    "index": (as_list, 1),
    "index from the end": (as_list, -1),
    "name": (as_list, "buy"),
    "flat": (flat, 1),
    "of one layer": (one_layer_model, "output_1"),
    "structures": (structures, "tasks/1"),
    "the only one": (one_in_a_dictionary, None),
}


def fitted(base, key):
    model = CalibratedModel(base, kc.layers.PlattScaling(), calibrated_output=key)
    kc.fit_head(model, X, Y, verbose=0)
    return model


def flat_outputs(model):
    outputs = model(X, training=False)
    return [keras.ops.convert_to_numpy(tensor) for tensor in keras.tree.flatten(outputs)]


def layer_named(model, name):
    return next(layer for layer in model._flatten_layers() if layer.name == name)


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("name", BASES)
def test_one_output_is_calibrated_and_the_others_are_as_they_were(name):
    make, key = BASES[name]
    base = make()
    before, names = flat_outputs(base), base.output_names
    model = fitted(base, key)
    kernel, bias = (w.astype("float64") for w in layer_named(base, "buy").get_weights())
    logits = X["scores"].astype("float64") @ kernel + bias
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


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("name", ["dictionary", "of one layer", "flat"])
def test_saved_loaded_copied_and_cloned(name, tmp_path):
    make, key = BASES[name]
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


REFUSED = {
    "no name": (as_list, None, r"`calibrated_output`.*\['click', 'buy'\].*=None"),
    "unknown": (as_list, "by", r"\['click', 'buy'\].*='by'"),
    "index of a dictionary": (dictionary, 0, r"`calibrated_output`.*name.*=0\."),
    "index too high": (as_list, 2, r"calibrated_output=2\."),
    "a truth value": (as_list, True, r"calibrated_output=True\."),
    "ids": (dictionary, "site", "`base_model`.*int32"),
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


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("make", [dictionary, as_list])
def test_calibrate_takes_the_output_that_the_labels_name(make):
    base, options = make(), {"methods": "platt", "verbose": 0}
    expected = fitted(make(), "buy").predict(X, verbose=0)
    for x, y in ((X, {"buy": Y}), (Batches(X, {"buy": Y}), None)):
        predicted = kc.calibrate(base, x, y, **options).predict(X, verbose=0)
        np.testing.assert_allclose(predicted, expected, atol=1e-5)
    for wrong in (Y, {"buy": Y, "click": Y}, {"sale": Y}):
        with pytest.raises(ValueError, match="`y` must be a dictionary"):
            kc.calibrate(base, X, wrong, **options)


def test_labels_by_output():
    labels = {"buy": Y, "click": ~Y}
    weights = {"buy": np.linspace(0.5, 1.5, 200), "click": np.ones(200)}
    model = CalibratedModel(dictionary(), kc.layers.PlattScaling(), calibrated_output="buy")
    kc.fit_head(model, X, Y, weights["buy"], verbose=0)
    expected = model.head.get_weights()
    with pytest.raises(ValueError, match="'buy' or 'probability'"):
        kc.fit_head(model, X, {"click": Y}, verbose=0)
    for wrong in ({"buy": Y, "clik": Y}, Batches(X, {"buy": Y, "clik": Y})):
        data = (wrong,) if isinstance(wrong, Batches) else (X, wrong)
        with pytest.raises(ValueError, match=r"`y` must .*'clik'.*Available: .*'click'"):
            kc.fit_head(model, *data, verbose=0)
    with pytest.raises(ValueError, match=r"`sample_weight` must .*'clik'"):
        kc.calibrate(dictionary(), X, {"buy": Y}, {**weights, "clik": Y}, verbose=0)
    for y, sample_weight in ((labels, weights), ({"probability": Y}, weights["buy"])):
        kc.fit_head(model, X, y, sample_weight, verbose=0)
        np.testing.assert_array_equal(model.head.get_weights()[0], expected[0])
    kc.fit_head(model, Batches(X, labels, weights), verbose=0)
    np.testing.assert_allclose(model.head.get_weights()[0], expected[0], rtol=1e-6)


def test_each_head_has_its_own_summary():
    features = inputs()
    logits = {"click": task("a", activation=None), "buy": task("b", 1, activation=None)}
    outputs = {
        name: keras.layers.Activation("sigmoid", name=name)(
            kc.layers.PlattScaling()(layer(features["scores"]))
        )
        for name, layer in logits.items()
    }
    model = keras.Model(features, outputs)
    labels = {"click": Y | (X["scores"][:, 0] > 1), "buy": Y}
    before = model.predict_on_batch(X)
    summaries = kc.fit_head(model, X, labels, verbose=0)
    assert sorted(summaries) == ["buy", "click"]
    for name, summary in summaries.items():
        own, predicted = labels[name], np.asarray(before[name], "float64")[:, 0]
        expected = -np.log(np.where(own, predicted, 1 - predicted)).mean()
        assert summary.log_loss_before == pytest.approx(expected, rel=1e-5)
    click = model.predict_on_batch(X)["click"]
    assert [*kc.fit_head(model, X, {"buy": labels["click"]}, only_if_better=False, verbose=0)] == [
        "buy"
    ]
    np.testing.assert_array_equal(model.predict_on_batch(X)["click"], click)
