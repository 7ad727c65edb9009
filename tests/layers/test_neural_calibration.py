"""NeuralCalibration, the sum of a curve and a field network."""

import keras
import numpy as np
import pytest

from backends import dtype_of, repeated
from keras_calibration.layers import ILPS, FieldNetwork, FitSettings, NeuralCalibration
from symbols import symbols
from tiers import slow_except


def functional_network():
    inputs = {"age": keras.Input((1,), name="age"), "pair": keras.Input((2,), name="pair")}
    hidden = keras.layers.Concatenate()([inputs["age"], inputs["pair"]])
    return keras.Model(inputs, keras.layers.Dense(1, bias_initializer="ones")(hidden))


def bent():
    layer = ILPS(knots=[-1, 0, 2])
    layer.get_values()
    layer._free_values.assign([-2, 0.5, 1])
    return layer


FEATURES = {
    "site": np.array([0, 2, 9]),
    "age": np.float32([[1], [2], [3]]),
    "pair": np.ones((3, 2), np.float32),
}
LOGITS = np.float32([-1.5, 0.25, 4])


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("kind", ["fields", "functional"])
def test_is_the_sum_of_its_parts(kind, reload):
    network = functional_network() if kind == "functional" else FieldNetwork({"site": 3}, seed=0)
    names = ("age", "pair") if kind == "functional" else ("site",)
    features = {name: FEATURES[name] for name in names}
    network(features)
    for weight in network.trainable_weights:
        weight.assign(np.random.default_rng(0).normal(0, 1, weight.shape))
    curve = bent()
    head = NeuralCalibration(curve, network)
    expected = np.asarray(curve(LOGITS))[:, None] + np.asarray(network(features))
    assert np.std(network(features)) > 0.1
    for logits in (LOGITS, LOGITS[:, None]):
        received = head(logits, features)
        assert (received.shape, received.dtype) == ((3, 1), "float32")
        np.testing.assert_allclose(received, expected, rtol=1e-6)
    assert sorted(head.feature_names) == sorted(names)
    inputs = symbols(**{n: (column.shape[1:], dtype_of(column)) for n, column in features.items()})
    logit = keras.Input((), name="logits")
    model = keras.Model([logit, inputs], head(logit, inputs))
    restored = reload(model)
    predicted = restored.predict([LOGITS, features], verbose=0)
    np.testing.assert_allclose(predicted, expected, rtol=1e-6)


def segment_clicks(num_rows=3000, effect=1.5, seed=0):
    """Rows whose base model predicts too much, and is wrong by a site's own offset."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(-1, 1.5, num_rows)
    site = generator.integers(0, 4, num_rows)
    truth = 0.7 * logits - 0.3 + effect * np.array([-1, 0, 0, 1])[site]
    labels = generator.random(num_rows) < 1 / (1 + np.exp(-truth))
    features = {"site": site, "age": generator.normal(size=num_rows)}
    return logits, labels.astype(float), features


def log_loss(head, logits, labels, features, weights=None):
    calibrated = np.asarray(head(logits, features))[:, 0].astype(float)
    return np.average(np.logaddexp(0, calibrated) - labels * calibrated, weights=weights)


def some_head(**arguments):
    return NeuralCalibration(ILPS(), FieldNetwork({"site": 4}, ("age",), seed=0), **arguments)


@pytest.mark.filterwarnings("ignore:The .* rows of the development set are")  # counted ones
@pytest.mark.parametrize("num_members", slow_except([1], [1, 2]))
def test_fit_learns_segments(num_members):
    rows, held_out = segment_clicks(), segment_clicks(seed=1)
    head = some_head(num_members=num_members)
    weights = np.random.default_rng(2).choice([0.0, 1.0, 2.0], 3000)
    settings = FitSettings(folds=2, max_epochs=12, learning_rate=5e-3)
    summary = head.fit(*rows, weights, weights_are="counts", settings=settings)
    assert summary.network_kept
    assert len(summary.epochs) == 2
    assert summary.cross_fitted_both < summary.cross_fitted_head - 2 * summary.standard_error
    assert "kept" in str(summary)
    np.testing.assert_allclose(
        summary.log_loss_in_sample, log_loss(head, *rows, weights), rtol=1e-5
    )
    curve = ILPS()
    before = curve.fit(rows[0], rows[1], sample_weight=weights, weights_are="counts")
    np.testing.assert_array_equal(head.calibrator.get_knots(), curve.get_knots())
    assert summary.log_loss_before == pytest.approx(before.log_loss_before, rel=1e-8)
    assert log_loss(head, *held_out) < log_loss(NeuralCalibration(curve), *held_out) - 0.05


@pytest.mark.parametrize("num_members", slow_except([2], [1, 2]))
def test_the_curve_is_right_under_the_network(num_members):
    def confounded(seed):
        # The logit is off by the site: beside the sites it rises, over all of them hardly.
        logits, labels, features = segment_clicks(seed=seed)
        return logits + 1.5 - features["site"], labels, features

    rows, held_out = confounded(seed=0), confounded(seed=1)
    head = some_head(num_members=num_members)
    summary = head.fit(*rows, settings=FitSettings(folds=2, max_epochs=15, learning_rate=5e-3))
    cross_fitted = summary.cross_fitted_logits
    losses = np.logaddexp(0, cross_fitted) - rows[1] * cross_fitted
    assert summary.cross_fitted_both == pytest.approx(losses.mean(), rel=1e-6)
    received, slope = log_loss(head, *held_out), np.ptp(head.calibrator(np.array([-2.0, 1.0]))) / 3
    head.calibrator.fit(rows[0], rows[1])
    assert received < log_loss(head, *held_out) - 0.02
    assert received < summary.cross_fitted_both + 0.02
    assert slope > np.ptp(head.calibrator(np.array([-2.0, 1.0]))) / 3 + 0.2


def test_fit_leaves_out_what_does_not_help():
    rows = segment_clicks(800, effect=0.0)
    head = some_head(num_members=2)
    summary = head.fit(*rows, settings=FitSettings(max_epochs=2))
    assert not summary.network_kept
    curve = ILPS()
    curve.fit(rows[0], rows[1])
    np.testing.assert_array_equal(head(rows[0], rows[2])[:, 0], curve(rows[0]))


def test_a_seed_repeats_the_fit():
    """That of the settings, whatever the head has learnt before; without one, Keras' own."""
    rows = segment_clicks(600, effect=2.0)
    head = NeuralCalibration(ILPS(), FieldNetwork({"site": 4}, seed=0))

    def fitted(seed):
        settings = FitSettings(folds=2, max_epochs=3, learning_rate=0.05, seed=seed)
        head.fit(*rows, settings=settings)
        assert head.fit_summary.network_kept
        return np.asarray(head(rows[0], rows[2])).ravel().tolist()

    first, unseeded = fitted(0), []
    assert fitted(0) == repeated(first)
    for _ in range(2):
        keras.utils.set_random_seed(7)
        unseeded.append(fitted(None))
    assert unseeded[0] == repeated(unseeded[1]) != repeated(first)


def test_fit_of_few_clicks_is_the_curve():
    logits, labels, features = segment_clicks(200)
    labels[:] = np.arange(200) == 7
    head = some_head()
    summary = head.fit(logits, labels, features)
    assert summary.epochs == ()
    assert not summary.network_kept
    assert np.isfinite(head(logits, features)).all()
    # Trained before, it is 0 again.
    for weight in head.field_network.trainable_weights:
        weight.assign(keras.ops.ones(weight.shape))
    head.fit(logits, labels, features)
    np.testing.assert_array_equal(head.field_network(features), np.zeros((200, 1)))


class LateNetwork(keras.layers.Layer):
    """Built by its first call."""

    def build(self, input_shape):
        self.offsets = self.add_weight(shape=(4, 1), initializer="zeros")

    def call(self, features):
        return keras.ops.take(self.offsets, features["site"], axis=0)


def test_folds_of_a_network_that_is_not_built_start_afresh():
    logits, labels, features = segment_clicks(600)
    losses = []
    for built in (False, True):
        network = LateNetwork()
        if built:
            network(features)
        with keras.saving.custom_object_scope({"LateNetwork": LateNetwork}):
            head = NeuralCalibration(None, network)
            settings = FitSettings(folds=2, max_epochs=3, learning_rate=0.1)
            losses.append(head.fit(logits, labels, features, settings=settings).cross_fitted_both)
    assert losses[0] == repeated(losses[1])
