"""`export_savedmodel(..., interval=…)`: what is served is what `interval` gives."""

import keras
import numpy as np
import pytest

import keras_calibration as kc
from served import outputs_of, provenance_of
from symbols import symbols

NUM_ROWS = 400


def made_rows(seed=0):
    generator = np.random.default_rng(seed)
    features = {
        "x": generator.normal(-1, 1, NUM_ROWS).astype("float32"),
        "site": generator.integers(0, 5, NUM_ROWS).astype("int32"),
        "age": np.where(generator.random(NUM_ROWS) < 0.1, np.nan, generator.normal(size=NUM_ROWS)),
    }
    features["age"] = features["age"].astype("float32")
    chances = 1 / (1 + np.exp(-features["x"] - 0.5 * features["site"] + seed))
    return features, (generator.random(NUM_ROWS) < chances).astype("float32")


def fitted(head):
    inputs = symbols(x=(), site="int32", age=())
    one = keras.ops.expand_dims(inputs["x"], 1)
    base = keras.Model(inputs, keras.layers.Dense(1, kernel_initializer="ones")(one))
    model = kc.models.CalibratedModel(base, head, base_output="logit")
    kc.fit_head(model, *made_rows(), verbose=0)
    return model


def new_rows():
    features, _ = made_rows(7)
    features["site"] = np.arange(NUM_ROWS, dtype="int32") % 9  # 5 to 8 are unknown
    features["age"][:4] = [np.inf, -np.inf, 3e38, np.nan]
    return features


def agrees(outputs, model, rows, level):
    lower, upper = kc.interval(model, rows, level=level)
    np.testing.assert_allclose(outputs["probability_lower"], lower, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(outputs["probability_upper"], upper, rtol=1e-4, atol=1e-6)
    assert (outputs["probability_lower"] < outputs["probability"]).all()
    assert (outputs["probability"] < outputs["probability_upper"]).all()


# Platt scaling is among the other outputs.
HEADS = {
    "field_bias": lambda: kc.layers.FieldBias({"site": 5}, kc.layers.ILPS(5), ["age"]),
    "ilps": lambda: kc.layers.ILPS(5, monotonic="strict"),
}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("kind", "jit_compile"), [("field_bias", False), ("field_bias", True), ("ilps", False)]
)
def test_served_and_refreshed(kind, jit_compile, tmp_path):
    model, rows = fitted(HEADS[kind]()), new_rows()
    path = kc.export_savedmodel(model, tmp_path / "1", rows, interval=0.9, jit_compile=jit_compile)
    assert provenance_of(path)["interval"] == 0.9
    agrees(outputs_of(path, rows), model, rows, 0.9)
    features, labels = made_rows(1)
    logits = kc.base_logits(model, features)
    head_features = {name: features[name] for name in model.head.feature_names}
    second = kc.refresh_savedmodel(path, logits, labels, head_features, from_logits=True)
    kc.fit_head(model, features, labels, verbose=0)
    agrees(outputs_of(second, rows), model, rows, 0.9)


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_refresh_to_importances_serves_no_interval(dry_run, tmp_path):
    model = fitted(kc.layers.PlattScaling())
    path = kc.export_savedmodel(model, tmp_path, new_rows(), version=1, interval=0.9)
    features, labels = made_rows(2)
    logits, weights = kc.base_logits(model, features), np.linspace(0.5, 2.5, NUM_ROWS)
    options = {"from_logits": True, "only_if_better": False, "verbose": 0}
    with pytest.raises(ValueError, match=r"`interval`.*weights_are="):
        kc.refresh_savedmodel(path, logits, labels, None, weights, dry_run=dry_run, **options)
    assert [version.name for version in tmp_path.iterdir()] == ["1"]


def test_refuses_heads_without_an_interval_and_levels(tmp_path):
    for head, level, message in (
        (kc.layers.IsotonicRegression(), 0.95, "IsotonicRegression has no interval"),
        (kc.layers.PlattScaling(), 1.5, "`interval`"),
    ):
        with pytest.raises(ValueError, match=message):
            kc.export_savedmodel(fitted(head), tmp_path / "1", interval=level)
    assert not list(tmp_path.iterdir())
