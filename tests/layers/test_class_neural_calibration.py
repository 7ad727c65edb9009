"""NeuralCalibration of class logits: a calibrator of them plus a network of K outputs."""

import keras
import numpy as np
import pytest
import scipy.special

from backends import dtype_of
from keras_calibration.layers import (
    ILPS,
    FieldNetwork,
    FitSettings,
    NeuralCalibration,
    TemperatureScaling,
    VectorScaling,
)
from tiers import slow_except

# What the base model gets wrong at a site, a column a class.
OFFSETS = 1.5 * np.array([[1, 0, -1], [0, 0, 0], [0, 0, 0], [-1, 0, 1]])


def segment_rows(num_rows=3000, effect=1.0, seed=0):
    """Rows of three classes whose base model is too sure, and wrong by a site's own offsets."""
    generator = np.random.default_rng(seed)
    logits = 2 * generator.normal(size=(num_rows, 3))
    site = generator.integers(0, 4, num_rows)
    truth = 0.6 * logits + effect * OFFSETS[site]
    rates = scipy.special.softmax(truth, axis=1)
    labels = (rates.cumsum(axis=1) > generator.random((num_rows, 1))).argmax(axis=1)
    return logits, labels, {"site": site, "age": generator.normal(size=num_rows)}


def log_loss(calibrated, labels, weights=None):
    calibrated = np.asarray(calibrated, np.float64)
    losses = (
        scipy.special.logsumexp(calibrated, axis=1) - calibrated[np.arange(len(labels)), labels]
    )
    return np.average(losses, weights=weights)


def some_head(calibrator=None, **arguments):
    network = FieldNetwork({"site": 4}, ("age",), seed=0, num_outputs=3)
    return NeuralCalibration(calibrator or VectorScaling(3), network, **arguments)


def dense_network(units=3, **arguments):
    inputs = {name: keras.Input((1,), name=name) for name in ("site", "age")}
    hidden = keras.layers.Concatenate()([inputs["site"], inputs["age"]])
    return keras.Model(inputs, keras.layers.Dense(units, **arguments)(hidden))


def columns_of(features):
    return {name: np.float32(values)[:, None] for name, values in features.items()}


def head_model(head, features, num_classes=3):
    inputs = {
        name: keras.Input(values.shape[1:], dtype=dtype_of(values), name=name)
        for name, values in features.items()
    }
    logits = keras.Input((num_classes,), name="logits")
    return keras.Model([logits, inputs], head(logits, inputs))


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("kind", ["fields", "functional"])
def test_is_the_sum_of_its_parts(kind, reload):
    logits, labels, features = segment_rows(50)
    logits = logits.astype(np.float32)
    network = FieldNetwork({"site": 4}, ("age",), seed=0, num_outputs=3)
    if kind == "functional":
        network, features = dense_network(), columns_of(features)
    head = NeuralCalibration(VectorScaling(3), network)
    head.calibrator.fit(logits, labels)
    received = head(logits, features)
    for weight in network.trainable_weights:
        weight.assign(np.random.default_rng(0).normal(0, 1, weight.shape))
    correction = np.asarray(network(features))
    assert correction.std(axis=0).min() > 0.1
    expected = head.calibrator.scales * logits + head.calibrator.biases + correction
    received = head(logits, features)
    assert (received.shape, received.dtype) == ((50, 3), "float32")
    np.testing.assert_allclose(received, expected, rtol=1e-5, atol=1e-5)
    assert sorted(head.feature_names) == ["age", "site"]

    model = head_model(head, features)
    assert model.output.shape == (None, 3)
    predicted = model.predict([logits, features], verbose=0)
    np.testing.assert_allclose(predicted, expected, rtol=1e-5, atol=1e-5)
    restored = reload(model)
    np.testing.assert_array_equal(restored.predict([logits, features], verbose=0), predicted)


def test_starts_as_the_identity_with_or_without_parts():
    logits, _, features = segment_rows(20)
    logits = logits.astype(np.float32)
    for head in (some_head(), some_head(num_members=2), NeuralCalibration()):
        np.testing.assert_array_equal(head(logits, features), logits)
    assert NeuralCalibration(VectorScaling(3)).feature_names == ()


@pytest.mark.parametrize("num_members", slow_except([2], [1, 2]))
def test_fit_learns_segments(num_members, reload):
    rows, held_out = segment_rows(), segment_rows(seed=1)
    weights = np.random.default_rng(2).choice([0.0, 1.0, 2.0], 3000)
    head = some_head(num_members=num_members)
    summary = head.fit(
        *rows,
        weights,
        weights_are="counts",
        settings=FitSettings(folds=2, max_epochs=12, learning_rate=5e-3),
    )
    assert summary.network_kept
    assert len(summary.epochs) == 2
    assert summary.num_rows == np.count_nonzero(weights)
    assert summary.converged
    assert "with the network" in str(summary)
    calibrated = head(rows[0], rows[2])
    assert summary.log_loss_after == pytest.approx(log_loss(calibrated, rows[1], weights), rel=1e-5)

    alone = VectorScaling(3)
    eta_summary = alone.fit(rows[0], rows[1], sample_weight=weights, weights_are="counts")
    np.testing.assert_allclose(head.calibrator.scales, alone.scales, rtol=1e-6)
    assert summary.log_loss_before == pytest.approx(eta_summary.log_loss_before, rel=1e-8)
    assert (
        eta_summary.log_loss_after < summary.cross_fitted_curve < eta_summary.log_loss_after + 0.01
    )
    used = weights > 0
    assert summary.cross_fitted_logits.shape == (used.sum(), 3)
    # A row of weight 2 may be in both folds: its logits are the mean, whose loss is lower.
    crossed = log_loss(summary.cross_fitted_logits, rows[1][used], weights[used])
    assert summary.cross_fitted_both - 0.005 < crossed <= summary.cross_fitted_both
    assert 0.003 < summary.standard_error < 0.02

    truth = log_loss(0.6 * held_out[0] + OFFSETS[held_out[2]["site"]], held_out[1])
    received = log_loss(head(held_out[0], held_out[2]), held_out[1])
    loss_alone = log_loss(alone(held_out[0]), held_out[1])
    assert truth < received < truth + 0.3 * (loss_alone - truth)
    assert loss_alone > truth + 0.1

    model = head_model(head, rows[2])
    inputs = [np.float32(rows[0]), rows[2]]
    restored = reload(model)
    np.testing.assert_array_equal(
        restored.predict(inputs, verbose=0), model.predict(inputs, verbose=0)
    )


@pytest.mark.slow
def test_rows_of_weight_0_teach_nothing():
    logits, labels, features = segment_rows()
    counts = np.random.default_rng(1).random(3000) < 0.5
    head = some_head(TemperatureScaling())
    summary = head.fit(
        logits,
        np.where(counts, labels, 2),
        features,
        counts,
        settings=FitSettings(max_epochs=15, learning_rate=5e-3),
    )
    assert summary.network_kept
    assert np.isfinite(summary.cross_fitted_logits).all()
    alone = TemperatureScaling()
    alone.fit(logits[counts], labels[counts])
    assert head.calibrator.temperature == pytest.approx(alone.temperature, rel=1e-6)
    received = log_loss(np.asarray(head(logits, features))[~counts], labels[~counts])
    assert received < log_loss(np.asarray(alone(logits))[~counts], labels[~counts]) - 0.05


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("calibrator", [VectorScaling(3), TemperatureScaling(), None])
def test_fit_leaves_out_what_does_not_help(calibrator):
    rows = segment_rows(600, effect=0.0, seed=4)
    head = NeuralCalibration(
        calibrator, FieldNetwork({"site": 4}, ("age",), seed=0, num_outputs=3), num_members=2
    )
    logits, labels, features = rows
    if calibrator is None:
        logits = 0.6 * logits
    summary = head.fit(logits, labels, features, settings=FitSettings(max_epochs=2))
    assert not summary.network_kept
    assert len(summary.epochs) == 2
    assert "left out" in str(summary)
    logits = logits.astype(np.float32)
    expected = logits if calibrator is None else calibrator(logits)
    np.testing.assert_array_equal(head(logits, features), expected)
    if calibrator is None:
        assert summary.log_loss_after == pytest.approx(summary.log_loss_before, rel=1e-6)
        assert summary.log_loss_before == pytest.approx(log_loss(logits, labels), rel=1e-6)


def test_fit_of_few_rows_is_the_calibrator():
    logits, labels, features = segment_rows(200)
    labels = np.where(np.arange(200) % 20 == 7, labels, 0)  # 10 rows at most of other classes
    head = some_head()
    for weight in head.field_network.trainable_weights:
        weight.assign(keras.ops.ones(weight.shape))
    summary = head.fit(logits, labels, features)
    assert summary.epochs == ()
    assert not summary.network_kept
    alone = VectorScaling(3)
    alone.fit(logits, labels)
    np.testing.assert_array_equal(head(logits, features), alone(logits))


def test_a_rare_class_is_no_hindrance():
    logits, labels, features = segment_rows(1500)
    logits = np.concatenate([logits, np.full((1500, 1), -3.0)], axis=1)
    labels[5] = 3
    network = FieldNetwork({"site": 4}, seed=0, num_outputs=4)
    head = NeuralCalibration(VectorScaling(4), network)
    summary = head.fit(
        logits, labels, features, settings=FitSettings(folds=2, max_epochs=8, learning_rate=5e-3)
    )
    assert summary.network_kept
    rates = scipy.special.softmax(head(logits, features), axis=1)
    assert 0 < rates[:, 3].sum() < 5


@pytest.mark.slow
def test_forms_of_labels_and_any_network():
    logits, labels, features = segment_rows(600)
    columns = columns_of(features)
    network = dense_network(kernel_initializer="zeros", bias_initializer="ones")
    start, results = network.get_weights(), []
    for given in (labels, labels[:, None].astype(np.float32), np.eye(3)[labels]):
        network.set_weights(start)
        head = NeuralCalibration(None, network)
        summary = head.fit(
            logits, given, columns, settings=FitSettings(folds=2, max_epochs=20, learning_rate=0.1)
        )
        assert summary.network_kept
        results.append(np.asarray(head(logits, columns)))
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])
    # Of rows that it cannot learn from, it is left at 0.
    with pytest.warns(UserWarning, match="no rows of class 2"):
        head.fit(logits, np.arange(600) == 3, columns)
    np.testing.assert_array_equal(network(columns), np.zeros((600, 3)))


class LateNetwork(keras.layers.Layer):
    """Built by its first call."""

    def build(self, input_shape):
        self.offsets = self.add_weight(shape=(4, 3), initializer="zeros")

    def call(self, features):
        return keras.ops.take(self.offsets, features["site"], axis=0)


def test_folds_of_a_network_that_is_not_built_start_afresh():
    logits, labels, features = segment_rows(600)
    summaries = []
    for built in (False, True):
        network = LateNetwork()
        if built:
            network(features)
        with keras.saving.custom_object_scope({"LateNetwork": LateNetwork}):
            head = NeuralCalibration(None, network)
            summaries.append(
                head.fit(logits, labels, features, settings=FitSettings(folds=2, max_epochs=3))
            )
    assert summaries[0].cross_fitted_both == summaries[1].cross_fitted_both


@pytest.mark.slow
def test_trains_in_a_model():
    logits, labels, features = segment_rows(1000)
    logits = logits.astype(np.float32)
    head = some_head()
    head.adapt(logits, labels, features)
    model = head_model(head, features)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.02), loss, jit_compile=True)
    before = model.evaluate([logits, features], labels, verbose=0)
    model.fit([logits, features], labels, batch_size=100, epochs=4, verbose=0)
    head.finalize()
    assert model.evaluate([logits, features], labels, verbose=0) < before - 0.1


def test_float32_under_a_mixed_policy(mixed_bfloat16):
    logits, _, features = segment_rows(300)
    logits = (logits + 1e-3).astype(np.float32)
    network = dense_network(kernel_initializer="zeros")  # in bfloat16
    columns = columns_of(features)
    assert network(columns).dtype == "bfloat16"
    for calibrator in (None, TemperatureScaling()):
        received = NeuralCalibration(calibrator, network)(logits, columns)
        assert received.dtype == "float32"
        np.testing.assert_allclose(received, logits, rtol=1e-6)


@pytest.mark.parametrize("arguments", [("vector",), (None, lambda features: 0)])
def test_parts_must_be_layers(arguments):
    with pytest.raises(ValueError, match=r"must be a (Keras layer|head that reads no features)"):
        NeuralCalibration(*arguments)


@pytest.mark.parametrize("shape", [(), (3,), (3, 1), (3, 2, 2)])
def test_other_shapes_of_logits_are_refused(shape):
    with pytest.raises(ValueError, match=r"\(batch, K\)"):
        NeuralCalibration(VectorScaling(3))(np.zeros(shape, np.float32), {})
    if len(shape) in (1, 2):
        assert NeuralCalibration()(np.zeros(shape, np.float32), {}).shape == (3, 1)


ROWS = segment_rows(60)


@pytest.mark.parametrize(
    ("head", "changed", "message"),
    [
        (some_head(), {"features": {"site": ROWS[2]["site"]}}, r"without \['age'\]"),
        (some_head(), {"features": {**ROWS[2], "age": np.ones(59)}}, "59 rows of 'age'"),
        (some_head(), {"labels": None}, "labels=None"),
        (some_head(), {"labels": np.full(60, 3)}, "class numbers 0 … 2"),
        (some_head(), {"labels": np.zeros(60)}, "one class only"),
        (some_head(), {"labels": ROWS[1][:59]}, "one label per row"),
        (some_head(), {"logits": ROWS[0][:, 0]}, "batch, K"),
        (some_head(), {"logits": ROWS[0][:, :2], "labels": ROWS[1] % 2}, r"\(batch, 3\)"),
        (some_head(), {"logits": np.where(ROWS[0] > 1, np.nan, 0)}, "must be finite"),
        (some_head(), {"sample_weight": -np.ones(60)}, "not negative"),
        (some_head(), {"sample_weight": np.zeros(60)}, "weights are 0"),
        (some_head(), {"settings": FitSettings(folds=1)}, "Argument `folds`"),
        (
            some_head(num_members=2),
            {"settings": FitSettings(folds=np.arange(60) % 3)},
            "must be 1 or the number of folds",
        ),
        (NeuralCalibration(ILPS()), {}, r"\(batch,\) or \(batch, 1\)"),
        (
            NeuralCalibration(VectorScaling(3), FieldNetwork({"site": 4})),
            {},
            r"\(batch, 3\).*Received: shape \(1, 1\).*num_outputs",
        ),
    ],
)
def test_fit_refuses_and_changes_nothing(head, changed, message):
    logits = np.ones((2, 3), np.float32)
    features = {name: values[:2] for name, values in ROWS[2].items()}
    names = ("logits", "labels", "features")
    arguments = {**dict(zip(names, ROWS, strict=True)), **changed}
    with pytest.raises(ValueError, match=message):
        head.fit(**arguments)
    if type(head.calibrator) is VectorScaling and head.field_network.num_outputs == 3:
        np.testing.assert_array_equal(head(logits, features), logits)
