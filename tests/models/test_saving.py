"""What happens to a calibrated model when it is saved and loaded, without a warning."""

import keras
import numpy as np
import pytest

import keras_calibration as kc

RNG = np.random.default_rng(0)
X = RNG.normal(size=(100, 2)).astype("float32")
Y = X.sum(axis=1) + RNG.normal(size=100) > 0


def sequential():
    return keras.Sequential(
        [keras.Input((2,)), keras.layers.Dense(1, "sigmoid", kernel_initializer="ones")]
    )


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("fitted", [False, True])
def test_a_compiled_base_and_an_optimizer_without_steps_load_quietly(fitted, tmp_path):
    """Keras warns of an optimizer of another number of variables; a warning fails the test."""
    base = sequential()
    base.compile("adam", "binary_crossentropy")
    base.fit(X, Y, verbose=0)
    model = kc.models.CalibratedModel(base, kc.layers.PlattScaling())
    model.compile("adam", "binary_crossentropy")
    if fitted:
        model.fit(X, Y, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.compiled
    assert not loaded.base_model.compiled
    np.testing.assert_array_equal(loaded.predict(X, verbose=0), model.predict(X, verbose=0))


def test_hdf5_is_refused_with_the_way_to_save(tmp_path):
    model = kc.models.CalibratedModel(sequential(), kc.layers.PlattScaling())
    with pytest.raises(ValueError, match=r"`filepath`.*\.keras"):
        model.save(tmp_path / "model.h5")
    assert not list(tmp_path.iterdir())


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    "options", [{}, {"input_tensors": None, "clone_function": lambda layer: layer}]
)
def test_what_keras_clones_computes_the_same(options):
    inputs = {"x": keras.Input((2,), name="x"), "s": keras.Input((), dtype="int32", name="s")}
    base = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(inputs["x"]))
    model = kc.models.CalibratedModel(base, kc.layers.FieldBias({"s": 3}))
    model.compile("sgd", "mse", field_metrics={"s": [kc.metrics.FieldECE(3)]})
    x = {"x": X, "s": np.arange(len(X)) % 3}
    kc.fit_head(model, x, Y, only_if_better=False, verbose=0)
    clone = keras.models.clone_model(model, **options)
    assert type(clone) is kc.models.CalibratedModel
    clone.set_weights(model.get_weights())
    np.testing.assert_array_equal(clone.predict(x, verbose=0), model.predict(x, verbose=0))
    assert clone.evaluate(x, Y, verbose=0, return_dict=True)["s_field_ece"] >= 0
    assert [v.trainable for v in clone.variables] == [v.trainable for v in model.variables]
    restored = kc.models.CalibratedModel.from_config(clone.get_config())
    assert restored.head.name == clone.head.name == model.head.name
    clone.fit(x, Y, verbose=0)


def test_inputs_without_a_name_of_their_own_get_a_stable_one(tmp_path):
    model = kc.models.CalibratedModel(sequential(), kc.layers.PlattScaling())
    assert model.input.name == "inputs"
    model.save(tmp_path / "model.keras")
    assert keras.saving.load_model(tmp_path / "model.keras").input.name == "inputs"
    first, second = keras.Input((1,)), keras.Input((1,), name="price")
    base = keras.Model([first, second], keras.layers.Dense(1)(first + second))
    model = kc.models.CalibratedModel(base, kc.layers.PlattScaling())
    assert [tensor.name for tensor in model.input] == ["inputs_0", "price"]
    assert model.predict([X[:, :1], X[:, 1:]], verbose=0).shape == (100, 1)
