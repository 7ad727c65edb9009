import keras
import numpy as np
import pytest

from backends import ON_TENSORFLOW
from keras_calibration.metrics import CalibratedLogLoss, FieldECE, FieldRCE
from keras_calibration.models import FieldMetricsModel
from symbols import symbols

RNG = np.random.default_rng(0)
X = {
    "site": RNG.integers(-1, 5, 203).astype("int32"),
    "device": RNG.integers(0, 2, (203, 1)).astype("int32"),
    "price": RNG.normal(size=(203, 2)).astype("float32"),
}
Y = (RNG.random(203) < 0.3).astype("float32")
W = RNG.exponential(size=203).astype("float32")


def build(**arguments):
    keras.utils.set_random_seed(0)
    inputs = symbols(site="int32", device=((1,), "int32"), price=(2,))
    model = FieldMetricsModel(inputs, keras.layers.Dense(1, "sigmoid")(inputs["price"]))
    arguments.setdefault("field_metrics", {"site": [FieldECE(5)]})
    model.compile(keras.optimizers.SGD(0.5), "binary_crossentropy", **arguments)
    return model


def expected(model, metric, field, weights=None, x=X):
    metric.update_state(Y, model.predict(x, verbose=0), weights, field=x[field])
    return pytest.approx(float(metric.result()), abs=1e-6)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("options", [{}, {"jit_compile": True}], ids=str)
def test_history_and_evaluate(options):
    fields = {"site": [FieldECE(5), FieldRCE(5, epsilon=0.1)], "device": FieldECE(2, name="ece")}
    model = build(field_metrics=fields, metrics=[CalibratedLogLoss()], **options)
    held_out = {"validation_data": (X, Y), "epochs": 2}
    history = model.fit(X, Y, batch_size=29, verbose=0, **held_out).history
    names = ["loss", "calibrated_log_loss", "site_field_ece", "site_field_rce", "device_ece"]
    assert set(history) == {*names, *(f"val_{name}" for name in names)}
    scores = model.evaluate(X, Y, batch_size=7, verbose=0, return_dict=True)
    assert scores["site_field_ece"] == expected(model, FieldECE(5), "site")
    assert scores["site_field_rce"] == expected(model, FieldRCE(5, epsilon=0.1), "site")
    assert scores["device_ece"] == expected(model, FieldECE(2), "device")
    for name in names[2:]:
        assert history[f"val_{name}"][-1] == pytest.approx(scores[name], abs=1e-6)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("kind", [dict, list])
def test_one_output_in_a_structure(kind):
    """Of a dictionary or a list; with two outputs, a field metric has no meaning."""
    columns = {name: X[name] for name in ("site", "price")}
    inputs = symbols(site="int32", price=(2,))
    output = {
        name: keras.layers.Dense(1, "sigmoid", name=name)(inputs["price"])
        for name in ("click", "buy")
    }

    def as_kind(**values):
        return values if kind is dict else list(values.values())

    one = FieldMetricsModel(inputs, as_kind(click=output["click"]))
    two = FieldMetricsModel(inputs, as_kind(**output))
    for model in (one, two):
        model.compile(loss="binary_crossentropy", field_metrics={"site": [FieldECE(5)]})
    scores = one.evaluate(
        *(columns, as_kind(click=Y)), sample_weight=as_kind(click=W), verbose=0, return_dict=True
    )
    metric = FieldECE(5)
    (p,) = keras.tree.flatten(one.predict(columns, verbose=0))
    metric.update_state(Y, p, W, field=X["site"])
    assert scores["site_field_ece"] == pytest.approx(float(metric.result()), abs=1e-6)
    # On JAX, Keras leaves a model without weights after a call that fails.
    for call in (two.fit, two.evaluate) if ON_TENSORFLOW else (two.fit,):
        with pytest.raises(ValueError, match=r"`field_metrics`.*one output"):
            call(columns, as_kind(click=Y, buy=1 - Y), verbose=0)


def test_compiling_again_replaces():
    model = build()
    model.fit(X, Y, verbose=0)
    model.compile(loss="binary_crossentropy", field_metrics={"device": [FieldRCE(2)]})
    scores = model.evaluate(X, Y, verbose=0, return_dict=True)
    assert set(scores) == {"loss", "device_field_rce"}
    model.compile(loss="binary_crossentropy")
    assert set(model.evaluate(X, Y, verbose=0, return_dict=True)) == {"loss"}
    assert [metric.name for metric in model.metrics] == ["loss"]


@pytest.mark.parametrize("optimizer", ["rmsprop", None])
def test_a_file_keeps_the_field_metrics(optimizer, tmp_path):
    model = build()
    by_field = {"device": [FieldRCE(2)]}
    model.compile(optimizer, loss="binary_crossentropy", field_metrics=by_field)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    scores = (m.evaluate(X, Y, verbose=0, return_dict=True) for m in (loaded, model))
    assert next(scores) == next(scores)


def test_a_field_that_the_input_lacks_is_refused():
    model = build(field_metrics={"country": [FieldECE(5)]})
    with pytest.raises(ValueError, match="'country'"):
        model.evaluate(X, Y, verbose=0)


def shared(metric):
    return {"site": [metric], "device": [metric]}


@pytest.mark.parametrize(
    ("field_metrics", "message"),
    [
        (shared(FieldECE(5)), "own metrics"),
        ({"site": [FieldECE(5), FieldECE(6)]}, "different names"),
        ({"site": ["field_ece"]}, "`field_metrics`.*'field_ece'"),
        ({("site", "device"): [FieldECE(10)]}, "key of `field_metrics`"),
    ],
)
def test_bad_field_metrics_are_refused(field_metrics, message):
    with pytest.raises(ValueError, match=message):
        build(field_metrics=field_metrics)
