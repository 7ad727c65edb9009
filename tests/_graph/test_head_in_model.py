"""A head anywhere in a Keras model: found, fitted in place, exported, refreshed, replaced."""

import gc
import weakref

import keras
import numpy as np
import pytest
from keras import layers

import keras_calibration as kc
from keras_calibration.layers.fits import is_as_fitted
from served import outputs_of
from symbols import symbols

NUM_SITES = 6
RNG = np.random.default_rng(0)
X = {
    "price": RNG.normal(size=(600, 1)).astype("float32"),
    "site_id": RNG.integers(0, NUM_SITES, 600).astype("int32"),
}
LABELS = (RNG.random(600) < 1 / (1 + np.exp(1 - X["price"][:, 0] - 0.6 * (X["site_id"] - 2)))) * 1


def new_inputs():
    return symbols(price=(1,), site_id="int32")


def dense(values, **arguments):
    return layers.Dense(1, kernel_initializer="ones", **arguments)(values)


def new_head():
    return kc.layers.FieldBias({"site_id": NUM_SITES}, kc.layers.PlattScaling())


def functional(head=None, after="sigmoid"):
    """logit → head → sigmoid, all layers of one graph."""
    inputs = new_inputs()
    logit = layers.Dense(1, name="base_logit", kernel_initializer="ones")(inputs["price"])
    head = new_head() if head is None else head
    output = head(logit, {"site_id": inputs["site_id"]})
    return keras.Model(inputs, layers.Activation(after)(output) if after else output)


def fit(model, x=X, y=LABELS, **arguments):
    return kc.fit_head(model, x, y, verbose=0, **arguments)


def plain_fit(logits):
    """What the head's own fit to the same rows gives: an independent way to the same numbers."""
    head = new_head()
    head.fit(logits, LABELS, {"site_id": X["site_id"]})
    calibrated = keras.ops.convert_to_numpy(head(logits, {"site_id": X["site_id"]}))
    return 1 / (1 + np.exp(-calibrated.astype("float64")))


def test_fit_head_is_the_heads_own_fit_on_the_logits_of_the_model_and_changes_nothing_else():
    model = functional()
    model.layers[1].trainable = False
    model.compile("adam", "binary_crossentropy")
    flags = [layer.trainable for layer in model.layers]
    kernel = model.get_layer("base_logit").get_weights()
    logits = X["price"] * 1.0
    np.testing.assert_allclose(kc.base_logits(model, X), logits, atol=1e-6)
    summary = fit(model)
    np.testing.assert_allclose(model.predict(X, verbose=0), plain_fit(logits), atol=1e-5)
    head = model.layers[-2]
    assert head.fit_summary is summary
    assert is_as_fitted(head)
    assert summary.log_loss_in_sample < summary.log_loss_before
    assert str(summary).startswith("The head changes: the fit predicts new rows better.")
    assert (summary.logits["num_rows"], summary.logits["max"]) == (600, logits.max())
    assert [layer.trainable for layer in model.layers] == flags
    for before, after in zip(kernel, model.get_layer("base_logit").get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)
    assert model.compiled


def sequential():
    base = keras.Sequential([keras.Input((1,)), layers.Dense(1, kernel_initializer="ones")])
    return keras.Sequential([base, kc.layers.PlattScaling(), layers.Activation("sigmoid")])


@keras.saving.register_keras_serializable(package="tests")
class Squared(layers.Layer):
    """A layer of the user's own."""

    def call(self, inputs):
        return keras.ops.concatenate([inputs, keras.ops.square(inputs)], axis=1)


def with_own_layer():
    inputs = new_inputs()
    calibrated = new_head()(dense(Squared()(inputs["price"])), inputs)
    return keras.Model(inputs, layers.Activation("sigmoid")(calibrated))


def logit_only():
    return functional(after=None)


def rank_one():
    inputs = new_inputs()
    logit = layers.Reshape(())(dense(inputs["price"]))
    probability = layers.Activation("sigmoid")(new_head()(logit, inputs))
    return keras.Model(inputs, layers.Reshape(())(probability))


def with_features(head, features):
    """A model whose head gets what a function makes of the inputs."""
    inputs = new_inputs()
    output = head(dense(inputs["price"]), features(inputs))
    return keras.Model(inputs, layers.Activation("sigmoid")(output))


def with_computed_feature():
    """The head gets other features than the model's inputs, under names of its own."""
    head = kc.layers.FieldBias({"group": 3})
    return with_features(head, lambda inputs: {"group": keras.ops.mod(inputs["site_id"], 3)})


def with_renamed_feature():
    head = kc.layers.FieldBias({"page": NUM_SITES})
    return with_features(head, lambda inputs: {"page": inputs["site_id"]})


def with_network():
    network = kc.layers.FieldNetwork({"site_id": NUM_SITES}, embedding_dim=2, hidden_units=[4])
    head = kc.layers.NeuralCalibration(kc.layers.ILPS(num_knots=5), network)
    return with_features(head, lambda inputs: inputs)


def in_half_precision():
    policy = keras.DTypePolicy("mixed_float16")
    inputs = new_inputs()
    logit = dense(inputs["price"], dtype=policy)
    output = layers.Activation("sigmoid", dtype="float32")(new_head()(logit, inputs))
    return keras.Model(inputs, output)


MODELS = [
    *(functional, sequential, with_own_layer, logit_only, rank_one, with_computed_feature),
    *(with_renamed_feature, with_network, in_half_precision),
]


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_mean_prediction_after_fit_head(make):
    model = make()
    x = X["price"] if make is sequential else X
    fit(model, x)
    outputs = model.predict(x, verbose=0).reshape(-1).astype("float64")
    if make is logit_only:
        outputs = 1 / (1 + np.exp(-outputs))
    assert outputs.mean() == pytest.approx(LABELS.mean(), rel=2e-3)


@pytest.mark.quick_cases(1)
@pytest.mark.tensorflow
@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_served_alike_and_refreshed(make, tmp_path):
    model = make()
    x = X["price"] if make is sequential else X
    fit(model, x)
    model.save(tmp_path / "model.keras")
    model = keras.saving.load_model(tmp_path / "model.keras")
    path = kc.export_savedmodel(model, tmp_path / "1", x)
    columns = {"inputs": x} if make is sequential else x
    served = outputs_of(path, columns)
    expected = model.predict(x, verbose=0).reshape(-1, 1)
    if make is logit_only:
        expected = 1 / (1 + np.exp(-expected))
    tolerance = 2e-3 if make is in_half_precision else 1e-6
    np.testing.assert_allclose(served["probability"], expected, atol=tolerance)
    logits = kc.base_logits(model, x)
    np.testing.assert_allclose(served["logit"], logits, atol=1e-5, rtol=1e-3)
    others = {with_computed_feature: {"group": X["site_id"] % 3}, sequential: None}
    others[with_renamed_feature] = {"page": X["site_id"]}
    features, flipped = others.get(make, {"site_id": X["site_id"]}), np.roll(LABELS, 7)
    new = kc.refresh_savedmodel(path, logits, flipped, features, from_logits=True)
    served = outputs_of(new, columns)["probability"]
    assert served.mean() == pytest.approx(flipped.mean(), rel=2e-3)


def two_heads(shared=False):
    inputs = new_inputs()
    hidden = layers.Dense(1, "elu", kernel_initializer="ones")(inputs["price"])
    heads = {"click": new_head(), "buy": kc.layers.PlattScaling()}
    if shared:
        heads["buy"] = heads["click"]
    features = {"site_id": inputs["site_id"]}
    outputs = {}
    for name, head in heads.items():
        logit = dense(hidden)
        calibrated = head(logit, features) if head.feature_names else head(logit)
        outputs[name] = layers.Activation("sigmoid", name=name)(calibrated)
    return keras.Model(inputs, outputs)


@pytest.mark.slow
def test_two_heads_for_two_outputs():
    model = two_heads()
    labels = {"click": LABELS, "buy": np.roll(LABELS, 5) * LABELS}
    summaries = fit(model, y=labels)
    assert list(summaries) == sorted(labels)
    predicted = model.predict(X, verbose=0)
    for name, output_labels in labels.items():
        assert predicted[name].mean() == pytest.approx(output_labels.mean(), rel=2e-3)
    before = predicted["click"]
    fit(model, y={"buy": LABELS})
    after = model.predict(X, verbose=0)
    np.testing.assert_array_equal(after["click"], before)
    assert after["buy"].mean() == pytest.approx(LABELS.mean(), rel=2e-3)
    with pytest.raises(ValueError, match="calibrated_output"):
        kc.base_logits(model, X)
    with pytest.raises(ValueError, match=r"an output with a head.*Received: labels of \['sale'\]"):
        fit(model, y={"sale": LABELS})
    assert kc.base_logits(model, X, calibrated_output="buy").shape == (600, 1)


def test_two_heads_change_together_or_not_at_all():
    model = two_heads()
    before = [weight.copy() for weight in model.get_weights()]
    with pytest.raises(ValueError, match=r"`y\['click'\]` must hold both classes"):
        fit(model, y={"buy": LABELS, "click": np.zeros(600)})
    with pytest.raises(ValueError, match=r"finite.*iterator.*dataset\.take"):
        fit(model, iter([(X, LABELS)]), None)
    both, weights = {"buy": LABELS, "click": LABELS}, np.ones(600)
    with pytest.raises(ValueError, match=r"`y` must .*'clik'.*Available: .*'buy'"):
        fit(model, y={"buy": LABELS, "clik": LABELS})
    with pytest.raises(ValueError, match=r"`sample_weight` must .*'clik'.*Available: .*'buy'"):
        fit(model, y=both, sample_weight={**dict.fromkeys(both, weights), "clik": weights})
    with pytest.raises(ValueError, match=r"`sample_weight` must .*'click'.*Received: .*\['buy'\]"):
        fit(model, y=both, sample_weight={"buy": weights})
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.slow
@pytest.mark.tensorflow
def test_two_heads_are_served_together(tmp_path):
    model = two_heads()
    fit(model, y={"click": LABELS, "buy": LABELS})
    with pytest.raises(ValueError, match=r"calibrated_output.*\['buy', 'click'\]"):
        kc.export_savedmodel(model, tmp_path / "0", X)
    path = kc.export_savedmodel(model, tmp_path / "1", X, calibrated_output="click")
    served = outputs_of(path, X)
    expected = model.predict(X, verbose=0)
    np.testing.assert_allclose(served["probability"], expected["click"], atol=1e-6)
    np.testing.assert_allclose(served["buy"], expected["buy"], atol=1e-6)


@pytest.mark.tensorflow
def test_a_logit_that_is_used_elsewhere(tmp_path):
    inputs = new_inputs()
    logit = dense(inputs["price"])
    outputs = {
        "ctr": layers.Activation("sigmoid")(new_head()(logit, inputs)),
        "margin": layers.Rescaling(2.0)(logit),
    }
    model = keras.Model(inputs, outputs)
    fit(model)
    expected = model.predict(X, verbose=0)
    assert expected["ctr"].mean() == pytest.approx(LABELS.mean(), rel=2e-3)
    path = kc.export_savedmodel(model, tmp_path / "1", X, calibrated_output="ctr")
    served = outputs_of(path, X)
    np.testing.assert_allclose(served["margin"], expected["margin"], atol=1e-6)


@pytest.mark.tensorflow
def test_another_output_of_the_head_is_not_exported(tmp_path):
    inputs = new_inputs()
    calibrated = new_head()(dense(inputs["price"]), inputs)
    outputs = {
        "p": layers.Activation("sigmoid")(calibrated),
        "log_odds": layers.Identity()(calibrated),
    }
    model = keras.Model(inputs, outputs)
    fit(model)
    with pytest.raises(ValueError, match=r"'log_odds'.*'field_bias"):
        kc.export_savedmodel(model, tmp_path / "1", X, calibrated_output="p")
    assert not list(tmp_path.iterdir())


def test_models_without_a_head_to_be_found():
    inputs = new_inputs()
    without = keras.Model(inputs, layers.Dense(1, "sigmoid")(inputs["price"]))
    with pytest.raises(ValueError, match=r"heads \[\].*kc\.calibrate"):
        fit(without)
    with pytest.raises(ValueError, match=r"`model`.*Received: int"):
        fit(3)
    followed = new_head()(dense(inputs["price"]), inputs)
    followed = keras.Model(inputs, layers.Dense(1, "sigmoid")(followed))
    with pytest.raises(ValueError, match=r"heads \['"):
        fit(followed)

    class Own(keras.Model):
        def call(self, inputs):
            return inputs

    with pytest.raises(ValueError, match=r"`model`.*Received: Own"):
        fit(Own())
    with pytest.raises(ValueError, match=r"heads \['"):
        fit(keras.Model(inputs, functional()(inputs)))
    with pytest.raises(ValueError, match="calibrated_output='other'"):
        kc.base_logits(two_outputs_one_head(), X, calibrated_output="other")
    with pytest.raises(ValueError, match="2 times"):
        fit(two_heads(shared=True))


def two_outputs_one_head():
    inputs = new_inputs()
    outputs = {
        "ctr": layers.Activation("sigmoid")(new_head()(dense(inputs["price"]), inputs)),
        "other": dense(inputs["price"]),
    }
    return keras.Model(inputs, outputs)


def test_classes(tmp_path):
    inputs = {"x": keras.Input((4,), name="x"), "site": keras.Input((), dtype="int32", name="site")}
    logits = layers.Dense(3)(inputs["x"])
    head = kc.layers.VectorScaling(3)
    model = keras.Model(inputs, layers.Activation("softmax")(head(logits, inputs)))
    x = {
        "x": RNG.normal(size=(300, 4)).astype("float32"),
        "site": np.arange(300, dtype="int32") % 3,
    }
    labels = RNG.choice(3, 300, p=[0.2, 0.3, 0.5])
    fit(model, x, labels)
    probabilities = model.predict(x, verbose=0)
    np.testing.assert_allclose(probabilities.mean(axis=0), np.bincount(labels) / 300, atol=2e-3)
    if keras.backend.backend() == "tensorflow":
        path = kc.export_savedmodel(model, tmp_path / "1", x)
        served = outputs_of(path, x)["probability"]
        np.testing.assert_allclose(served, probabilities, atol=1e-6)


@pytest.mark.slow
def test_calibrate_replaces_a_head():
    head = kc.layers.NeuralCalibration(kc.layers.PlattScaling())
    model = functional(head)
    model.get_layer("base_logit").set_weights([np.full((1, 1), 2.0), np.zeros(1)])
    calibrated = kc.calibrate(model, X, LABELS, fields=["site_id"], methods="field_bias", verbose=0)
    assert calibrated.head is not head
    np.testing.assert_allclose(kc.base_logits(calibrated, X), 2 * X["price"], atol=1e-5)
    again = kc.calibrate(calibrated, X, LABELS, fields=["site_id"], methods="quick", verbose=0)
    np.testing.assert_allclose(kc.base_logits(again, X), 2 * X["price"], atol=1e-5)
    # The head that is replaced was fitted to these rows: fits to the other folds score it.
    assert again.report.before.log_loss == pytest.approx(calibrated.report.after.log_loss)


def test_a_changed_sequential_model_is_read_again():
    model = keras.Sequential([keras.Input((1,)), kc.layers.PlattScaling()])
    np.testing.assert_allclose(kc.base_logits(model, X["price"]), X["price"])
    model.pop()
    model.add(layers.Rescaling(3.0))
    model.add(kc.layers.PlattScaling())
    np.testing.assert_allclose(kc.base_logits(model, X["price"]), 3 * X["price"], rtol=1e-6)


# What Keras gives to each layer when it is saved for TensorFlow.
OF_KERAS = {"train_function", "test_function", "predict_function"}


@pytest.mark.tensorflow
def test_no_call_sets_an_attribute_of_the_model_or_keeps_it(tmp_path):
    def attributes(model):
        return {id(layer): {*vars(layer)} - OF_KERAS for layer in model._flatten_layers()}

    model = functional()
    fit(model)
    model.predict(X, verbose=0)
    before = attributes(model)
    kc.base_logits(model, X)
    kc.interval(model, X)
    kc.export_savedmodel(model, tmp_path / "1", X)
    assert attributes(model) == before
    died = weakref.ref(model)
    del model
    gc.collect()
    assert died() is None
