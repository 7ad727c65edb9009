"""Blends that `calibrate` chooses: their mean prediction, and their intervals."""

import keras
import numpy as np
import pytest
from scipy.special import expit

import keras_calibration as kc

METHODS = ["bias", "platt", "ilps", "field_bias"]
SITE = {"site": 6}


def made_rows(num_rows=1500, shift=0.15):
    generator = np.random.default_rng(0)
    logits = generator.normal(-1, 1, num_rows).astype("float32")
    site = generator.integers(0, 6, num_rows)
    truth = 0.9 * logits + shift + np.linspace(-0.6, 0.6, 6)[site]
    return logits, (generator.random(num_rows) < expit(truth)).astype(float), {"site": site}


def blend(logits, labels, features, weights=None, **arguments):
    model = kc.calibrate_scores(
        *(logits, labels, features, weights),
        from_logits=True, fields=SITE, methods=METHODS, verbose=0, **arguments,
    )  # fmt: skip
    assert model.report.chosen == "blend"
    return model


def predicted(model, logits, features):
    return model.predict({"score": logits, **features}, verbose=0)[:, 0].astype("float64")


def weights_of(kind, num_rows):
    generator = np.random.default_rng(1)
    weights = {
        "none": None,
        "tiny": np.full(num_rows, 1e-6),
        "importances": generator.exponential(size=num_rows),
        "counts": generator.integers(1, 4, num_rows).astype("float64"),
        "some are 0": np.arange(num_rows) % 5 > 0,
    }
    return weights[kind]


@pytest.mark.parametrize("kind", ["none", "tiny", "importances", "counts", "some are 0"])
def test_the_mean_prediction_is_that_of_the_labels(kind):
    logits, labels, features = made_rows()
    weights = weights_of(kind, len(labels))
    if kind == "some are 0":
        labels = np.where(weights, labels, 1)
    weights_are = "counts" if kind == "counts" else "importance"
    model = blend(logits, labels, features, weights, weights_are=weights_are)
    mean = np.average(predicted(model, logits, features), weights=weights)
    assert mean == pytest.approx(np.average(labels, weights=weights), abs=1e-6)
    assert model.head.bias != 0
    if kind == "importances":
        with pytest.raises(ValueError, match="fitted with unequal importances"):
            kc.interval(model, {"score": logits, **features})
    else:
        lower, upper = kc.interval(model, {"score": logits, **features})
        assert (lower < upper).all()
    if kind == "tiny":
        assert model.head.bias == blend(logits, labels, features).head.bias


def test_mirrored_labels_give_mirrored_probabilities_and_intervals():
    logits, labels, features = made_rows()
    model, other = blend(logits, labels, features), blend(-logits, 1 - labels, features)
    np.testing.assert_allclose(
        predicted(other, -logits, features), 1 - predicted(model, logits, features), atol=2e-4
    )
    lower, upper = kc.interval(model, {"score": logits, **features})
    mirrored = kc.interval(other, {"score": -logits, **features})
    np.testing.assert_allclose(mirrored[1], 1 - lower, atol=2e-3)
    np.testing.assert_allclose(mirrored[0], 1 - upper, atol=2e-3)


def test_rare_positives():
    logits, labels, features = made_rows(6000, shift=-4.5)
    model = blend(logits, labels, features)
    chance = predicted(model, logits, features)
    assert chance.mean() == pytest.approx(labels.mean(), rel=1e-5)
    lower, upper = kc.interval(model, {"score": logits, **features})
    assert (lower[:, 0] < chance).all()
    assert (chance < upper[:, 0]).all()


def test_saved_and_fitted_anew(tmp_path):
    logits, labels, features = made_rows()
    model, x = blend(logits, labels, features), {"score": logits, **features}
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    for received, expected in zip(kc.interval(loaded, x), kc.interval(model, x), strict=True):
        np.testing.assert_array_equal(received, expected)
    bias = loaded.head.bias
    assert bias == model.head.bias
    labels = np.where(np.random.default_rng(2).random(len(labels)) < 0.3, 1, labels)
    kc.fit_head(loaded, x, labels, verbose=0)
    assert loaded.head.bias != bias
    assert predicted(loaded, logits, features).mean() == pytest.approx(labels.mean(), abs=1e-6)
    assert np.isfinite(kc.interval(loaded, x)).all()
