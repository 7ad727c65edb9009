"""`CalibratedModel.fit` from the exact solution: never worse than the head's own `fit`."""

import gc

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_calibration as kc
from keras_calibration.layers import (
    ILPS,
    FieldNetwork,
    Head,
    NeuralCalibration,
    PlattScaling,
)
from keras_calibration.layers.fit_summary import FitSummary
from keras_calibration.layers.head_logits import head_log_losses, head_logits
from keras_calibration.models import CalibratedModel

NUM_SITES = 6
SITE_BIAS = np.array([-1.0, -0.5, 0.0, 0.3, 0.6, 0.9])
# The base's logit as a function of the true one without the sites.
BASES = {
    "too high": lambda logit: logit + 2.2,  # as after 1:9 down-sampling of negatives
    "too steep": lambda logit: 2.5 * logit,
    "fine": lambda logit: logit,
}


def draw(num_rows, base="too high", seed=0):
    """Inputs of `make_base` and labels; the base logit is the input "l"."""
    rng = np.random.default_rng(seed)
    logit = rng.normal(-1, 1, num_rows)
    site = rng.integers(0, NUM_SITES, num_rows).astype("int32")
    labels = (rng.random(num_rows) < 1 / (1 + np.exp(-logit - SITE_BIAS[site]))).astype("float32")
    return {"l": BASES[base](logit).astype("float32")[:, None], "site": site}, labels


def make_base():
    inputs = {
        "l": keras.Input((1,), name="l"),
        "site": keras.Input((), dtype="int32", name="site"),
    }
    return keras.Model(inputs, keras.layers.Activation("sigmoid")(inputs["l"]))


def make_head(kind="ilps"):
    keras.utils.set_random_seed(0)
    if kind == "ilps":
        return NeuralCalibration(ILPS())
    network = FieldNetwork({"site": NUM_SITES}, embedding_dim=4, hidden_units=(8,), seed=0)
    return NeuralCalibration(ILPS(), network)


def make_model(head=None, optimizer="adam", **arguments):
    model = CalibratedModel(make_base(), make_head() if head is None else head)
    model.compile(optimizer, **arguments)
    return model


def row_losses(head, x, y):
    logits = head_logits(head, x["l"][:, 0].astype("float64"), {"site": x["site"]})
    return head_log_losses(y.astype("float64"), logits)


CELLS = [
    (500, "too high", "ilps", {"epochs": 5, "batch_size": 32}),
    (500, "fine", "ilps", {"epochs": 20, "batch_size": 512}),
    (1_000, "too steep", "network", {"epochs": 2, "validation_data": draw(500, "too steep", 2)}),
    (20_000, "too high", "ilps", {"epochs": 5, "batch_size": 512}),
    (50_000, "too steep", "ilps", {}),
]


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(("num_rows", "base", "kind", "arguments"), CELLS, ids=range(len(CELLS)))
def test_never_worse_than_the_heads_own_fit(num_rows, base, kind, arguments):
    x, y = draw(num_rows, base)
    fresh_x, fresh_y = draw(50_000, base, seed=1)
    model = make_model(make_head(kind))
    model.fit(x, y, verbose=0, **arguments)
    head = make_head(kind)
    head.fit(x["l"], y, {"site": x["site"]})
    difference = row_losses(model.head, fresh_x, fresh_y) - row_losses(head, fresh_x, fresh_y)
    assert difference.mean() <= difference.std() / np.sqrt(len(difference)) + 1e-6
    assert model.predict(x, verbose=0).mean() == pytest.approx(y.mean(), rel=0.01)


def test_a_direct_fit_needs_neither_compile_nor_epochs():
    x, y = draw(2_000)
    model, head = CalibratedModel(make_base(), ILPS()), ILPS()
    history = model.fit(x, y, validation_data=draw(500, seed=1), verbose=0)
    summary = head.fit(x["l"], y)
    np.testing.assert_allclose(model.head.get_values(), head.get_values(), atol=1e-5)
    fitted = model.head.fit_summary
    assert fitted.exact.num_iterations == summary.num_iterations
    assert fitted.log_loss_after == pytest.approx(summary.log_loss_after, abs=1e-6)
    assert str(fitted).startswith("2,000 rows: log loss")
    assert history.epoch == [0]
    assert history.history["loss"] == pytest.approx([summary.log_loss_after], abs=1e-6)
    assert set(history.history) == {"loss", "val_loss"}


def test_every_form_of_the_same_rows_gives_the_same_fit():
    x, y = draw(1_000)
    weights = np.random.default_rng(2).exponential(size=1_000).astype("float32")
    soft = 0.1 + 0.8 * y

    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return 4

        def __getitem__(self, number):
            part = slice(250 * number, 250 * (number + 1))
            return {n: c[part] for n, c in x.items()}, soft[part], weights[part]

    data = tf.data.Dataset.from_tensor_slices((x, soft, weights)).batch(300)
    head = make_head()
    head.fit(x["l"], soft, {}, weights)
    for given in ((x, soft), (data,), (Batches(),)):
        model = CalibratedModel(make_base(), ILPS())
        model.fit(*given, sample_weight=weights if len(given) == 2 else None, verbose=0)
        expected = head.calibrator.get_values()
        np.testing.assert_allclose(model.head.get_values(), expected, atol=1e-5)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("form", ["fifth", "validation_data", "validation_split"])
def test_harmful_training_is_not_kept(form):
    x, y = draw(2_000)
    model = make_model(optimizer=keras.optimizers.SGD(20.0 if form == "fifth" else np.nan))
    part = slice(1_600 if form == "validation_split" else None)
    arguments = {"validation_data": draw(1_000, seed=1)} if form == "validation_data" else {}
    if form == "validation_split":
        arguments = {"validation_split": 0.2}
    history = model.fit(x, y, batch_size=100, epochs=2, verbose=0, **arguments).history
    head = make_head()
    head.fit(x["l"][part], y[part], {})
    np.testing.assert_array_equal(model.head.calibrator.get_values(), head.calibrator.get_values())
    summary = model.head.fit_summary
    assert not summary.training_kept
    assert summary.num_epochs == 2
    assert not summary.held_out_change < -summary.held_out_error  # NaN where it diverged
    assert "not kept" in str(summary)
    assert len(history["loss"]) == 3  # the last is of the direct fit
    loss = model.evaluate({n: column[part] for n, column in x.items()}, y[part], verbose=0)
    assert history["loss"][-1] == pytest.approx(loss, abs=1e-5)
    assert ("val_loss" in history) == (form != "fifth")


class PoorHead(Head):
    """A shift whose direct fit does nothing."""

    def build(self, *shapes):
        self.shift = self.add_weight(shape=(), initializer="zeros")

    def call(self, logits, features=None):
        return logits + self.shift

    def fit_rows(self, rows, features, settings, verbose):
        self.shift.assign(0.0)
        return FitSummary(len(rows.logits), 1.0, 1.0, 0, True)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("form", ["fifth", "validation_data"])
def test_training_that_helps_is_kept(form):
    x, y = draw(3_000)
    model = make_model(PoorHead(), keras.optimizers.SGD(0.3))
    held_out = draw(1_000, seed=1) if form == "validation_data" else None
    model.fit(x, y, batch_size=50, epochs=2, validation_data=held_out, verbose=0)
    summary = model.head.fit_summary
    assert summary.training_kept
    assert summary.held_out_change < -summary.held_out_error
    assert summary.num_held_out == (1_000 if held_out else pytest.approx(600, abs=2))
    assert summary.log_loss_after < summary.log_loss_before - 0.1


def test_too_few_rows_to_judge_training_by():
    x, y = draw(60)
    model = make_model(optimizer=keras.optimizers.Adam(0.1))
    model.fit(x, y, epochs=3, verbose=0)
    head = make_head()
    head.fit(x["l"], y, {})
    assert not model.head.fit_summary.training_kept
    np.testing.assert_array_equal(model.head.calibrator.get_values(), head.calibrator.get_values())
    few = {name: column[:4] for name, column in x.items()}
    model.fit(few, np.array([0, 1, 1, 0]), epochs=1, verbose=0)  # a fifth is no row at all
    assert np.isfinite(model.predict(few, verbose=0)).all()


def test_validation_data_of_one_class_cannot_decide():
    x, y = draw(300)
    held_out = (x, np.zeros(300))
    model = make_model()
    before = model.get_weights()
    with pytest.raises(ValueError, match="must hold both classes"):
        model.fit(x, y, epochs=1, validation_data=held_out, verbose=0)
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    assert "val_loss" in model.fit(x, y, validation_data=held_out, verbose=0).history


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("epochs", [None, 2])
def test_callbacks(epochs, tmp_path):
    x, y = draw(600)
    held_out = draw(400, seed=1)
    model = make_model(metrics=[keras.metrics.AUC(name="auc")])
    stop = keras.callbacks.EarlyStopping("val_loss", patience=1, restore_best_weights=True)
    seeds = kc.callbacks.SeedVariance(tmp_path / "runs", pipeline="p", seed=1, verbose=0)
    history = model.fit(
        x, y, epochs=epochs, validation_data=held_out, callbacks=[seeds, stop], verbose=0
    ).history
    assert {"loss", "auc", "val_loss", "val_auc", "seed/val_loss_count"} <= set(history)
    (run,) = kc.seeds.Ledger(tmp_path / "runs").runs("p")
    assert run["status"] == "finished"
    assert run["metrics"]["val_loss"] == history["val_loss"]
    if epochs is None:
        scores = model.evaluate(*held_out, verbose=0, return_dict=True)
        assert run["metrics"]["val_auc"] == pytest.approx([scores["auc"]], abs=1e-6)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("learning_rate", [20.0, np.nan])
def test_the_ledger_records_the_model_that_is_left(learning_rate, tmp_path):
    x, y = draw(600)
    held_out = draw(400, seed=1)
    model = make_model(optimizer=keras.optimizers.SGD(learning_rate))
    seeds = kc.callbacks.SeedVariance(tmp_path / "runs", pipeline="p", seed=1, verbose=0)
    stop = keras.callbacks.EarlyStopping("val_loss", restore_best_weights=True)
    callbacks = [seeds] if np.isnan(learning_rate) else [seeds, stop]
    history = model.fit(
        x, y, batch_size=100, epochs=2, validation_data=held_out, callbacks=callbacks, verbose=0
    ).history
    assert not model.head.fit_summary.training_kept
    loss = model.evaluate(*held_out, verbose=0)
    assert history["val_loss"][-1] == pytest.approx(loss, abs=1e-6)
    (run,) = kc.seeds.Ledger(tmp_path / "runs").runs("p")
    assert run["metrics"]["val_loss"] == pytest.approx(history["val_loss"], nan_ok=True)
    assert run["kept_epoch"] is None  # the last
    assert run["status"] == "finished"


def test_a_head_without_a_direct_fit_is_trained():
    class Shift(Head):
        def build(self, logits_shape=None, features_shape=None):
            self.shift = self.add_weight(shape=(), initializer="zeros")

        def call(self, logits, features=None):
            return logits + self.shift

    x, y = draw(1_000)
    model = make_model(NeuralCalibration(Shift()), keras.optimizers.SGD(1.0))
    model.fit(x, y, epochs=5, verbose=0)
    assert model.head.fit_summary.exact is None
    assert float(model.head.calibrator.shift) < -1
    assert "5 epochs of training" in str(model.head.fit_summary)


def test_training_that_leaves_a_bias_warns():
    x, y = draw(20_000)
    model = make_model()
    with pytest.warns(UserWarning, match="standard errors apart"):
        model.fit(x, y, batch_size=512, epochs=1, initialize=None, verbose=0)
    assert model.head.fit_summary.exact is None
    model.fit(x, y, verbose=0)  # a warning would be an error
    model.optimizer.learning_rate = np.nan
    with pytest.warns(UserWarning, match="diverged"):
        model.fit(x, y, batch_size=512, epochs=1, initialize=None, verbose=0)


def test_initialize_must_be_known():
    with pytest.raises(ValueError, match="`initialize` must be"):
        make_model().fit(*draw(100), initialize="zero")


@pytest.mark.quick_cases(1)
@pytest.mark.filterwarnings("ignore:The mean prediction is")
@pytest.mark.parametrize("initialize", [None, "exact"])
def test_update_goes_on_from_the_rows_of_fit(initialize):
    x, y = draw(5_000)
    model = make_model(PlattScaling(), keras.optimizers.Adam(0.05))
    model.fit(x, y, batch_size=100, initialize=initialize, verbose=0)
    assert model.head.update(x["l"][:60], y[:60]).num_rows == 5_060
    assert model.predict(x, verbose=0).mean() == pytest.approx(y.mean(), abs=0.01)


@pytest.mark.filterwarnings("ignore:The dataset has more than")
def test_an_endless_data_set_says_how_much_of_it_is_used():
    x, y = draw(1_000)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(100)
    model = CalibratedModel(make_base(), PlattScaling())
    for given in (data.repeat(), data):
        with pytest.warns(UserWarning, match="the same first 300 rows"):
            model.fit(given, steps_per_epoch=3, verbose=0)
    assert model.head.fit_summary.num_rows == 300
    with pytest.warns(UserWarning, match="the same first 200 rows"):
        model.fit(x, y, validation_data=data.repeat(), validation_steps=2, verbose=0)


@pytest.mark.filterwarnings("error")
def test_a_whole_data_set_does_not_warn():
    x, y = draw(1_000)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(100)
    CalibratedModel(make_base(), PlattScaling()).fit(data, steps_per_epoch=10, verbose=0)


def test_progress_is_explained_and_holds_no_nan(capsys):
    x, y = draw(200)
    y = np.sort(y)  # the first batches are of one class, for which the metric is NaN
    model = make_model(metrics=[kc.metrics.CalibratedLogLoss()])
    model.fit(x, y, validation_data=(x, y), verbose=1)
    assert "log loss" in capsys.readouterr().out
    model.fit(x, y, batch_size=4, epochs=1, shuffle=False, verbose=1)
    shown = capsys.readouterr().out
    assert "calibrated_log_loss" in shown
    assert "nan" not in shown
    assert "1/1 " not in shown


def live(kind):
    gc.collect()
    return sum(type(each).__name__ == kind for each in gc.get_objects())


KINDS = ("FuncGraph", "Functional", "CalibratedModel", "Variable", "EagerTensor")


@pytest.mark.slow
def test_nothing_grows_with_fits_and_models():
    x, y = draw(100)
    model = make_model(make_head("network"))
    counts = []
    for _ in range(3):
        model.fit(x, y, verbose=0)
        another = make_model()
        another.fit(x, y, verbose=0)
        del another
        counts.append({kind: live(kind) for kind in KINDS})
    assert counts[2] == counts[1]


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("kind", ["class", "lambda"])
def test_a_network_of_a_class_of_the_users_own(kind):
    class Site(keras.layers.Layer):
        feature_names = ("site",)

        def __init__(self, inner=None, **kwargs):
            super().__init__(**kwargs)
            self.table = keras.layers.Embedding(NUM_SITES, 1, embeddings_initializer="zeros")

        def build(self, shapes):
            self.table.build(shapes["site"])

        def call(self, features):
            return self.table(features["site"])

    network = Site()
    if kind == "lambda":
        logit = keras.Input((1,), name="l")
        values = keras.layers.Lambda(lambda inputs: 0.1 * inputs)(logit)
        network = keras.Model({"l": logit}, keras.layers.Dense(1)(values))
    x, y = draw(300)
    model = CalibratedModel(make_base(), NeuralCalibration(ILPS(), network))
    model.fit(x, y, verbose=0)
    assert len(model.head.fit_summary.exact.epochs) == 3
    assert model.head.fit_summary.logits["min"] == pytest.approx(x["l"].min())


def test_a_network_that_cannot_be_copied_says_what_to_do():
    class Scaled(keras.layers.Layer):
        feature_names = ("site",)

        def __init__(self, scale):
            super().__init__()
            self.scale = scale

        def build(self, shapes):
            self.slope = self.add_weight(shape=(), initializer="zeros")

        def call(self, features):
            return self.slope * self.scale * keras.ops.cast(features["site"], "float32")[:, None]

    x, y = draw(300)
    head = NeuralCalibration(ILPS(), Scaled(0.1))
    before = [np.array(weight) for weight in head.get_weights()]
    with pytest.raises(ValueError, match="initialize=None"):
        CalibratedModel(make_base(), head).fit(x, y, verbose=0)
    assert all(map(np.array_equal, before, head.get_weights()))


def test_no_epoch_is_beyond_their_number(capsys):
    x, y = draw(500)
    model = make_model(optimizer=keras.optimizers.SGD(20.0))
    model.fit(x, y, batch_size=100, epochs=2, verbose=2)
    assert not model.head.fit_summary.training_kept
    printed = capsys.readouterr().out
    assert "Epoch 3/3" in printed
    assert "Epoch 3/2" not in printed


def test_counts_are_repeated_rows_and_importances_have_no_unit():
    x, y = draw(600)
    counts = np.random.default_rng(3).integers(0, 4, 600)
    repeated = np.repeat(np.arange(600), counts)

    def intercepts(rows, weights=None, **arguments):
        head = kc.layers.FieldBias({"site": NUM_SITES})
        model = CalibratedModel(make_base(), head)
        columns = {name: values[rows] for name, values in x.items()}
        model.fit(columns, y[rows], verbose=0, sample_weight=weights, **arguments)
        return np.ravel(head_logits(head, np.zeros(NUM_SITES), {"site": np.arange(NUM_SITES)}))

    every = np.arange(600)
    counted = intercepts(every, counts, weights_are="counts")
    np.testing.assert_allclose(counted, intercepts(repeated), atol=1e-5)
    with pytest.warns(UserWarning, match=r'look like counts.*weights_are="counts"'):
        importance = intercepts(every, counts)
    assert np.abs(importance - counted).max() > 1e-3  # fewer rows: more shrinkage
    np.testing.assert_allclose(intercepts(every, counts * 1e-3), importance, atol=1e-5)
    with pytest.raises(ValueError, match=r"whole numbers.*such as \d\.5"):
        intercepts(every, counts + 0.5, weights_are="counts")
    with pytest.raises(ValueError, match=r"`weights_are` must be one of"):
        intercepts(every, counts, weights_are="rows")
