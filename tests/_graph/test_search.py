"""What is found in a user's model is remembered beside it, for as long as it lives."""

import copy
import gc
import pickle
import weakref

import keras
import numpy as np
import pytest
from keras import layers

import keras_calibration as kc
from keras_calibration._graph import head_in_model

RNG = np.random.default_rng(0)
X = RNG.normal(size=(400, 1)).astype("float32")
LABELS = (RNG.random(400) < 1 / (1 + np.exp(-X[:, 0]))).astype("float32")


@keras.saving.register_keras_serializable("tests")
class Counted(layers.Layer):
    """Doubles its input, and counts how often it is traced."""

    num_calls = 0

    def call(self, inputs):
        self.num_calls += 1
        return 2.0 * inputs


def functional():
    inputs = keras.Input((1,))
    return keras.Model(
        inputs, layers.Activation("sigmoid")(kc.layers.PlattScaling()(Counted()(inputs)))
    )


def sequential():
    return keras.Sequential([keras.Input((1,)), Counted(), kc.layers.PlattScaling()])


def calibrated():
    inputs = keras.Input((1,))
    base = keras.Model(inputs, layers.Activation("sigmoid")(Counted()(inputs)))
    return kc.models.CalibratedModel(base, kc.layers.PlattScaling())


def nested():
    inner = functional()
    inputs = keras.Input((1,))
    return keras.Model(inputs, inner(inputs))


MODELS = [functional, sequential, calibrated, nested]


def fit(model, folder):
    kc.fit_head(model, X, LABELS, verbose=0)


def base_logits(model, folder):
    kc.base_logits(model, X)


def interval(model, folder):
    kc.interval(model, X)


def calibrate(model, folder):
    kc.calibrate(model, X, LABELS, methods="bias", base_output="auto", verbose=0)


def export(model, folder):
    kc.export_savedmodel(model, folder / "model", X)


# What Keras gives to each layer when it is saved for TensorFlow.
OF_KERAS = {"train_function", "test_function", "predict_function"}


def attributes(model):
    return {id(layer): {*vars(layer)} - OF_KERAS for layer in model._flatten_layers()}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("make", MODELS)
def test_no_call_sets_an_attribute_of_the_model(make, tmp_path):
    model = make()
    fit(model, tmp_path)
    model.predict(X[:1], verbose=0)
    before = attributes(model)
    for call in (fit, base_logits, interval, export, *([calibrate] * (make is functional))):
        call(model, tmp_path)
        assert attributes(model) == before, call.__name__


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("make", MODELS)
def test_what_is_found_goes_with_the_model(make, tmp_path):
    model = make()
    fit(model, tmp_path)
    logits = kc.base_logits(model, X)
    lower, _ = kc.interval(model, X)
    if make is not calibrated:  # it is copied with its base model
        clone = keras.models.clone_model(model)
        assert id(clone) not in head_in_model._SEARCHES
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert id(other) not in head_in_model._SEARCHES
        np.testing.assert_array_equal(kc.base_logits(other, X), logits)
        np.testing.assert_allclose(kc.interval(other, X)[0], lower, rtol=1e-6)
    died, key = weakref.ref(model), id(model)
    del model
    gc.collect()
    assert died() is None
    assert key not in head_in_model._SEARCHES


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("make", MODELS)
def test_a_second_call_traces_nothing(make, tmp_path):
    model = make()
    for call in (fit, base_logits, interval):
        call(model, tmp_path)
    (layer,) = [each for each in model._flatten_layers() if isinstance(each, Counted)]
    before, num_nodes = layer.num_calls, [len(e._inbound_nodes) for e in model._flatten_layers()]
    for call in (fit, base_logits, interval):
        call(model, tmp_path)
    assert layer.num_calls == before
    assert [len(each._inbound_nodes) for each in model._flatten_layers()] == num_nodes


def test_graphs_that_refer_to_their_model_do_not_pile_up(tmp_path):
    models = []
    for _ in range(head_in_model._MOST_SEARCHES + 3):
        model = functional()
        keras.Model(model.input, model(model.input))
        assert head_in_model.find_head(model).model is model
        models.append(weakref.ref(model))
        del model
    gc.collect()
    assert len(head_in_model._SEARCHES) <= head_in_model._MOST_SEARCHES
    assert sum(each() is not None for each in models) <= head_in_model._MOST_SEARCHES
