import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_calibration import base_logits, fit_head, layers
from keras_calibration.models import CalibratedModel
from symbols import symbols

NUM_ROWS, NUM_SITES = 1500, 6
RNG = np.random.default_rng(0)
X = {
    "site": RNG.integers(0, NUM_SITES, NUM_ROWS).astype("int32"),
    "price": RNG.normal(size=(NUM_ROWS, 2)).astype("float32"),
}
SITE_BIAS = np.array([-1.5, -0.5, 0.0, 0.5, 1.0, 1.5])
TRUE_LOGIT = X["price"] @ [1.0, -0.5] - 1 + SITE_BIAS[X["site"]]
Y = (RNG.random(NUM_ROWS) < 1 / (1 + np.exp(-TRUE_LOGIT))).astype("float32")
W = RNG.exponential(size=NUM_ROWS).astype("float32")


def rows(part):
    return {name: values[part] for name, values in X.items()}, Y[part]


def make_base(compiled=False):
    """A base model that ignores the site."""
    inputs = symbols(site="int32", price=(2,))
    last = keras.layers.Dense(1, "sigmoid")
    base = keras.Model(inputs, last(inputs["price"]))
    last.set_weights([np.array([[1.0], [-0.5]]), np.array([-1.0])])
    if compiled:
        base.compile("sgd", "binary_crossentropy", metrics=[keras.metrics.AUC(name="base_auc")])
        base.fit(*rows(slice(0, 200)), verbose=0)
    return base


def make_head():
    # Without dropout, of which Keras saves no random state.
    network = layers.FieldNetwork(
        {"site": NUM_SITES}, embedding_dim=4, hidden_units=(8,), dropout=0, seed=0
    )
    return layers.NeuralCalibration(layers.ILPS(num_knots=8), network)


def make_model(base=None, head=None, **arguments):
    keras.utils.set_random_seed(0)
    model = CalibratedModel(base or make_base(), head or make_head())
    model.compile(keras.optimizers.Adam(0.02), "binary_crossentropy", **arguments)
    return model


def log_loss(model):
    probabilities = model.predict(X, NUM_ROWS, verbose=0)[:, 0].astype("float64")
    return -np.mean(np.log(np.where(Y == 1, probabilities, 1 - probabilities)))


def data_set(*parts):
    return tf.data.Dataset.from_tensor_slices(parts).batch(100)


def site_head():
    return layers.FieldBias({"site": NUM_SITES}, layers.PlattScaling())


def test_weights_count_in_arrays_and_in_data_sets():
    """Every other form of the same rows has its story (`tests/stories`)."""
    few, labels = rows(slice(0, 300))
    labels = 0.9 * labels.astype("float64") + 1e-9  # of which float32 has not all digits
    alone = site_head()
    alone.fit(base_logits(make_model(), few), labels, few, W[:300])
    for arguments in ((few, labels, W[:300]), (data_set(few, labels, W[:300]),)):
        model = make_model(head=site_head())
        summary = fit_head(model, *arguments, verbose=0)
        assert summary.num_rows == 300
        for one, other in zip(model.head.get_weights(), alone.get_weights(), strict=True):
            np.testing.assert_array_equal(one, other)


def test_rows_of_a_shuffled_data_set_stay_together():
    """Iterating twice gives two orders: logits of one and labels of the other would be noise."""
    logit = np.where(Y == 1, 3.0, -3.0).astype("float32")[:, None]
    inputs = {"logit": keras.Input((1,), name="logit")}
    base = keras.Model(inputs, keras.layers.Activation("sigmoid")(inputs["logit"]))
    shuffled = tf.data.Dataset.from_tensor_slices(({"logit": logit}, Y))
    shuffled = shuffled.shuffle(NUM_ROWS, reshuffle_each_iteration=True).batch(100)
    summary = fit_head(make_model(base, layers.BiasCorrection()), shuffled, verbose=0)
    assert summary.log_loss_before == pytest.approx(np.log1p(np.exp(-3)), abs=1e-6)


@pytest.mark.slow
def test_a_compiled_base_keeps_its_metrics_to_itself():
    base = make_base(compiled=True)
    model = make_model(base, metrics=[keras.metrics.AUC(name="auc")])
    model.head.adapt(base_logits(model, X), Y, X)
    history = model.fit(X, Y, validation_data=(X, Y), verbose=0).history
    assert set(history) == {"loss", "auc", "val_loss", "val_auc"}
    scores = model.evaluate(X, Y, verbose=0, return_dict=True)
    assert set(scores) == {"loss", "auc"}
    # The priors come on top.
    assert 0 < scores["loss"] - log_loss(model) < 0.01
    assert set(base.evaluate(X, Y, verbose=0, return_dict=True)) == {"loss", "base_auc"}


BAD = {
    "label 2": ({"x": X, "y": Y + 1}, "`y`.*1500 rows"),
    "empty": (dict(zip("xy", rows(slice(0, 0)), strict=True)), "empty"),
    "missing feature": ({"x": {"site": X["site"]}, "y": Y}, "Received: no 'price'"),
    "no dictionary": ({"x": X["price"], "y": Y}, "Received: ndarray"),
    "rows of y": ({"x": X, "y": Y[:-1]}, "'labels': 1499"),
    "endless data set": ({"x": data_set(X, Y).repeat()}, "finite.*take"),
    "no labels": ({"x": X}, "labels.*y=None"),
    "data set of x": ({"x": data_set(X)}, r"\(x, y\)"),
    "single rows": ({"x": tf.data.Dataset.from_tensor_slices((X, Y))}, "batches"),
    "data set and y": ({"x": data_set(X, Y), "y": Y}, "`y`.*None"),
}


@pytest.fixture(scope="module")
def untouched():
    return make_model()


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_and_changes_nothing(untouched, case):
    arguments, message = BAD[case]
    before = untouched.get_weights()
    with pytest.raises(ValueError, match=message):
        fit_head(untouched, **{"x": None, **arguments}, verbose=0)
    for old, new in zip(before, untouched.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
