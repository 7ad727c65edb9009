"""BlendedHead: the mean of heads, in and out of a compiled model."""

import json

import keras
import numpy as np
import pytest
from scipy.special import expit, logit

from keras_calibration.layers import (
    ILPS,
    BiasCorrection,
    BlendedHead,
    FieldBias,
    FieldNetwork,
    FitSettings,
    Head,
    NeuralCalibration,
    PlattScaling,
    TemperatureScaling,
    VectorScaling,
)

LOGITS = np.linspace(-3, 3, 40).astype("float32")
FEATURES = {"site": np.arange(40, dtype="int32") % 4, "price": LOGITS**2}


def heads():
    network = FieldNetwork({"site": 3}, ["price"], embedding_dim=2, hidden_units=(4,), seed=0)
    return [FieldBias({"site": 3}, PlattScaling()), NeuralCalibration(ILPS(), network)]


def test_it_starts_as_the_identity_and_reads_what_its_heads_read():
    head = BlendedHead(heads())
    outputs = keras.ops.convert_to_numpy(head(LOGITS, FEATURES))
    np.testing.assert_allclose(outputs[:, 0], LOGITS, atol=1e-6)
    assert head.feature_names == ("site", "price")
    assert not head.is_adapted
    head.adapt(LOGITS, LOGITS > 0, FEATURES)
    assert head.is_adapted
    head.finalize()


def test_it_is_the_mean_and_serializes():
    parts = heads()
    parts[0].build()
    parts[0].set_weights([weight + 0.3 for weight in parts[0].get_weights()])
    head = BlendedHead(parts)
    outputs = keras.ops.convert_to_numpy(head(LOGITS[:, None], FEATURES))
    part_logits = [keras.ops.convert_to_numpy(part(LOGITS, FEATURES)) for part in parts]
    np.testing.assert_allclose(outputs, np.mean(part_logits, axis=0), atol=1e-6)
    assert np.ptp(part_logits[0] - part_logits[1]) > 0.1
    copy = BlendedHead.from_config(head.get_config())
    copy.build((None, 1), None)
    copy.set_weights(head.get_weights())
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(copy(LOGITS, FEATURES)), outputs)


@pytest.mark.parametrize("wrong", [[], ["neural"], [FieldBias({"site": 3}), "neural"]])
def test_anything_but_heads_is_refused(wrong):
    with pytest.raises(ValueError, match="must hold at least one instance"):
        BlendedHead(wrong)


def clicks(num_rows=600):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=num_rows).astype("float32")
    features = {
        "site": rng.integers(0, 4, num_rows).astype("int32"),
        "price": rng.normal(size=num_rows).astype("float32"),
    }
    chance = 1 / (1 + np.exp(-0.7 * logits - features["site"] + 1.5))
    return logits, rng.random(num_rows) < chance, features


def test_fit_is_the_fit_of_each_head():
    logits, labels, features = clicks()
    weights = np.linspace(0.5, 2, len(logits))
    head = BlendedHead(heads())
    summary = head.fit(
        logits, labels, features, weights, settings=FitSettings(seed=3, max_epochs=2)
    )
    alone = heads()
    alone[0].fit(logits, labels, features, weights)
    alone[1].fit(logits, labels, features, weights, settings=FitSettings(seed=3, max_epochs=2))
    for fitted, expected in zip(head.heads, alone, strict=True):
        for one, other in zip(fitted.get_weights(), expected.get_weights(), strict=True):
            # Rows in another order may turn the columns of a posterior's factor round.
            np.testing.assert_allclose(np.abs(one), np.abs(other), rtol=1e-4, atol=1e-5)
    outputs = keras.ops.convert_to_numpy(head(logits, features))[:, 0].astype("float64")
    losses = np.logaddexp(0, outputs) - labels * outputs
    np.testing.assert_allclose(summary.log_loss_after, np.average(losses, weights=weights))
    assert summary.num_rows == len(logits)
    assert summary.log_loss_after < summary.log_loss_before


def test_a_fit_that_fails_leaves_the_heads_as_they_were():
    logits, labels, features = clicks()
    head = BlendedHead(heads())
    head.fit(logits, labels, features, settings=FitSettings(max_epochs=1))
    before = [np.array(weight) for weight in head.get_weights()]
    with pytest.raises(ValueError, match="fold"):
        # Found out by the second head, after the first has been fitted.
        head.fit(
            logits + 1, labels, features, settings=FitSettings(folds=np.zeros(len(logits) - 1, int))
        )
    with pytest.raises(ValueError, match="without"):
        head.fit(logits, labels, {"site": features["site"]})
    for weight, expected in zip(head.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, expected)


class Untaught(Head):
    def call(self, logits, features):
        return keras.ops.reshape(logits, (-1, 1))


def test_heads_without_a_fit_cannot_be_fitted():
    head = BlendedHead([FieldBias({"site": 3}), Untaught()])
    with pytest.raises(ValueError, match="no direct fit"):
        head.fit(*clicks())


def test_weights_and_what_is_left_to_the_logit():
    logits = np.array([0.5, -1.0, np.inf, -np.inf])
    parts = [BiasCorrection(), PlattScaling()]
    for head in parts:
        head.fit(np.linspace(-2, 2, 90), np.arange(90) * 37 % 90 < np.arange(90))
    blend = BlendedHead(parts, head_weights=[0.25, 0.5])
    received = keras.ops.convert_to_numpy(blend(logits))[:, 0]
    one, two = (np.ravel(head(logits)) for head in parts)
    np.testing.assert_allclose(received, 0.25 * one + 0.5 * two + 0.25 * logits, rtol=1e-6)
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(blend)))
    assert keras.saving.deserialize_keras_object(config).head_weights == [0.25, 0.5]
    alone = BlendedHead([parts[0]], head_weights=[0.5])
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(alone(logits))[:2, 0], 0.5 * (one + logits)[:2], rtol=1e-6
    )
    for wrong in ([0.5], [0.7, 0.4], [1.0, 0.0], [np.nan, 0.5]):
        with pytest.raises(ValueError, match="`head_weights` must hold 2 numbers above 0"):
            BlendedHead(parts, head_weights=wrong)


# The bias


def logits_of(head, logits, features=None):
    return np.ravel(keras.ops.convert_to_numpy(head(logits, features))).astype("float64")


def hostile_rows(kind, num_rows=3000):
    """Logits, labels, features and weights, with what `Σ w σ(η)` must be: `Σ w y`."""
    rng = np.random.default_rng(4)
    logits = rng.normal(-1, 1.5, num_rows)
    features = {"site": rng.integers(0, 4, num_rows), "price": rng.normal(size=num_rows)}
    rate = -7 if kind == "rare" else 0
    labels = (rng.random(num_rows) < expit(0.6 * logits + features["site"] + rate)).astype(float)
    weights = rng.exponential(size=num_rows)
    if kind == "tiny weights":
        weights *= 1e-6
    elif kind == "rows of weight 0":
        weights[::3] = 0
        labels[::3] = 1
    elif kind == "soft labels":
        labels = 0.9 * labels + 0.05
    elif kind == "far logits":
        logits *= 1e4
    elif kind == "equal logits":
        logits[:] = 0.3
    return logits, labels, features, weights


@pytest.mark.parametrize(
    "kind",
    ["", "rare", "tiny weights", "rows of weight 0", "soft labels", "far logits", "equal logits"],
)
def test_the_mean_prediction_is_that_of_the_labels(kind):
    logits, labels, features, weights = hostile_rows(kind)
    head = BlendedHead([FieldBias({"site": 3}), ILPS()], [0.4, 0.35])
    summary = head.fit(logits, labels, features, weights)
    eta = logits_of(head, logits, features)
    predicted, observed = (np.average(each, weights=weights) for each in (expit(eta), labels))
    assert predicted == pytest.approx(observed, rel=2e-6)
    parts = [logits_of(part, logits, features) for part in head.heads]
    mean = 0.4 * parts[0] + 0.35 * parts[1] + 0.25 * logits
    rounding = 1e-7 * np.abs(logits).max()
    np.testing.assert_allclose(eta, mean + head.bias, atol=1e-5 + rounding)
    losses = np.logaddexp(0, eta) - labels * eta
    assert summary.log_loss_after == pytest.approx(np.average(losses, weights=weights))
    if kind != "far logits":  # there, the logit's own weight is too much
        assert abs(logit(np.average(expit(mean), weights=weights)) - logit(observed)) > 0.01


def test_mirrored_labels_have_the_mirrored_bias():
    logits, labels, features, weights = hostile_rows("")
    heads = [BlendedHead([FieldBias({"site": 4}), PlattScaling()], [0.3, 0.5]) for _ in range(2)]
    heads[0].fit(logits, labels, features, weights)
    heads[1].fit(-logits, 1 - labels, features, weights)
    assert abs(heads[0].bias) > 0.01
    assert heads[1].bias == pytest.approx(-heads[0].bias, rel=1e-4)
    received, mirrored = (
        logits_of(head, sign * logits, features) for head, sign in zip(heads, (1, -1), strict=True)
    )
    np.testing.assert_allclose(mirrored, -received, atol=1e-4)


def test_it_is_saved_served_and_fitted_anew(tmp_path):
    logits, labels, features, weights = hostile_rows("")
    head = BlendedHead([FieldBias({"site": 4}), PlattScaling()], [0.3, 0.5])
    assert head.bias == 0
    head.fit(logits, labels, features, weights)
    first = head.bias
    inputs = keras.Input((1,), name="l"), keras.Input((), dtype="int32", name="site")
    keras.Model(inputs, head(inputs[0], {"site": inputs[1]})).save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras").layers[-1]
    assert loaded.bias == first
    np.testing.assert_array_equal(
        logits_of(loaded, logits, features), logits_of(head, logits, features)
    )
    head.fit(logits[::2], labels[::2], {n: v[::2] for n, v in features.items()})
    assert head.bias != first
    head.fit(logits, labels, features, weights)
    assert head.bias == first
    # Training by gradient is that of the parts.
    assert head._bias.path in [weight.path for weight in head.non_trainable_weights]


def test_without_a_bias_it_is_the_mean_alone():
    logits, labels, features, weights = hostile_rows("")
    head = BlendedHead([FieldBias({"site": 4}), PlattScaling()], [0.3, 0.5], use_bias=False)
    head.fit(logits, labels, features, weights)
    parts = [logits_of(part, logits, features) for part in head.heads]
    mean = 0.3 * parts[0] + 0.5 * parts[1] + 0.2 * logits
    np.testing.assert_allclose(logits_of(head, logits, features), mean, atol=1e-5)
    assert len(head.weights) == sum(len(part.weights) for part in head.heads)
    assert head.bias == 0
    assert BlendedHead.from_config(head.get_config()).use_bias is False


def test_classes_have_no_bias():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(300, 3))
    head = BlendedHead([TemperatureScaling(), VectorScaling(3)])
    head.fit(logits, rng.integers(0, 3, 300))
    assert head.bias == 0
    own = [weight for part in head.heads for weight in part.weights]
    assert len(head.weights) == len(own)
