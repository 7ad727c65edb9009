import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_calibration import base_logits, fit_head
from keras_calibration.layers import (
    ILPS,
    BiasCorrection,
    FieldBias,
    FieldNetwork,
    NeuralCalibration,
    PlattScaling,
)
from keras_calibration.metrics import FieldECE
from keras_calibration.models import CalibratedModel

NUM_ROWS, NUM_SITES = 1500, 6
RNG = np.random.default_rng(0)
X = {
    "site": RNG.integers(0, NUM_SITES, NUM_ROWS).astype("int32"),
    "price": RNG.normal(size=(NUM_ROWS, 2)).astype("float32"),
}
# Tests of what is computed, not of how, do without the traces that cost most of their time.
EAGER = {"run_eagerly": True}
SITE_BIAS = np.array([-1.5, -0.5, 0.0, 0.5, 1.0, 1.5])
TRUE_LOGIT = X["price"] @ [1.0, -0.5] - 1 + SITE_BIAS[X["site"]]
Y = (RNG.random(NUM_ROWS) < 1 / (1 + np.exp(-TRUE_LOGIT))).astype("float32")
W = RNG.exponential(size=NUM_ROWS).astype("float32")


def rows(part, x=X):
    return {name: values[part] for name, values in x.items()}, Y[part]


def make_base(*hidden, last=None, compiled=False):
    """A base model that ignores the site."""
    inputs = {
        "site": keras.Input((), dtype="int32", name="site"),
        "price": keras.Input((2,), name="price"),
    }
    output = inputs["price"]
    for layer in hidden:
        output = layer(output)
    last = last or keras.layers.Dense(1, "sigmoid")
    base = keras.Model(inputs, last(output))
    kernel = np.array([[1.0], [-0.5]], "float32")
    if not hidden:
        last.set_weights([kernel, np.array([-1.0], "float32")])
    if compiled:
        base.compile("sgd", "binary_crossentropy", metrics=[keras.metrics.AUC(name="base_auc")])
        base.fit(*rows(slice(0, 200)), verbose=0)
    return base


def make_head(field=NUM_SITES, **arguments):
    # Without dropout, of which Keras saves no random state.
    network = FieldNetwork({"site": field}, embedding_dim=4, hidden_units=(8,), dropout=0, seed=0)
    return NeuralCalibration(ILPS(num_knots=8, **arguments), network)


def make_model(base=None, head=None, optimizer="adam", base_output="auto", **arguments):
    keras.utils.set_random_seed(0)
    head = make_head() if head is None else head
    model = CalibratedModel(make_base() if base is None else base, head, base_output)
    if optimizer == "adam":
        optimizer = keras.optimizers.Adam(0.02)
    model.compile(optimizer, "binary_crossentropy", **arguments)
    return model


def log_loss(model, x=X, y=Y):
    probabilities = np.clip(
        model.predict(x, NUM_ROWS, verbose=0)[:, 0].astype("float64"), 1e-7, 1 - 1e-7
    )
    return -np.mean(y * np.log(probabilities) + (1 - y) * np.log(1 - probabilities))


def test_adapting_leaves_the_probabilities_as_they_are():
    model = make_model(**EAGER)
    before = model.predict(X, NUM_ROWS, verbose=0)
    model.head.adapt(base_logits(model, X), Y, X)
    np.testing.assert_allclose(model.predict(X, NUM_ROWS, verbose=0), before, atol=1e-6)


def test_base_is_frozen_and_in_inference_mode():
    base = make_base(
        keras.layers.Dense(8, "relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.5),
    )
    model = make_model(base)
    before, predictions = base.get_weights(), base.predict(X, verbose=0)
    trainable = {id(variable) for variable in model.trainable_variables}
    assert trainable == {id(variable) for variable in model.head.trainable_variables}
    model.fit(X, Y, epochs=2, verbose=0)
    for old, new in zip(before, base.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    logits = base_logits(model, X)
    np.testing.assert_allclose(1 / (1 + np.exp(-logits)), predictions, atol=1e-6)


class Counting(keras.layers.Layer):
    """Counts the rows that go through it."""

    rows_seen = 0

    def call(self, inputs):
        def count(values):
            Counting.rows_seen += len(values)
            return values

        outputs = tf.py_function(count, [inputs], tf.float32)
        outputs.set_shape(inputs.shape)
        return outputs

    def compute_output_shape(self, input_shape):
        return input_shape


def test_base_logits_are_computed_once():
    model = make_model(make_base(Counting()), PlattScaling(), **EAGER)
    Counting.rows_seen = 0
    fit_head(model, X, Y, verbose=0)
    assert Counting.rows_seen == NUM_ROWS


class Batches(keras.utils.PyDataset):
    def __init__(self, weights=None, **arguments):
        super().__init__(**arguments)
        self.weights = weights

    def __len__(self):
        return 3

    def __getitem__(self, number):
        part = slice(100 * number, 100 * (number + 1))
        return (*rows(part), *([] if self.weights is None else [self.weights[part]]))


def data_set(*parts):
    return tf.data.Dataset.from_tensor_slices(parts).batch(100)


def site_head():
    return FieldBias({"site": NUM_SITES}, PlattScaling())


@pytest.mark.slow
@pytest.mark.parametrize("weights", [None, W[:300]], ids=["unweighted", "weighted"])
def test_every_form_of_the_same_rows_gives_the_same_fit(weights):
    few, labels = rows(slice(0, 300))
    parts = (few, labels) if weights is None else (few, labels, weights)
    forms = {
        "arrays": (few, labels),
        "columns": (few, labels[:, None]),
        "lists": ({name: values.tolist() for name, values in few.items()}, labels.tolist()),
        "data set": (data_set(*parts), None),
        "PyDataset": (Batches(weights), None),
        "repeated data set": (data_set(*parts).repeat().take(3), None),
    }
    alone = site_head()
    logits = base_logits(make_model(), few)
    alone.fit(logits, labels, few, weights)
    for name, (x, y) in forms.items():
        model = make_model(head=site_head())
        summary = fit_head(
            *(model, x, y),
            sample_weight=weights if y is not None else None,
            verbose=0,
        )
        assert summary.num_rows == 300
        received, expected = (np.array(head(logits, few)) for head in (model.head, alone))
        np.testing.assert_allclose(received, expected, atol=1e-5, err_msg=name)
    unweighted = site_head()
    unweighted.fit(logits, labels, few)
    offsets = (each.get_offsets("site") for each in (unweighted, alone))
    assert (np.abs(np.subtract(*offsets)).max() > 1e-3) == (weights is not None)


def test_rows_of_a_shuffled_data_set_stay_together():
    """Iterating twice gives two orders: logits of one and labels of the other would be noise."""
    logit = np.where(Y == 1, 3.0, -3.0).astype("float32")[:, None]
    inputs = {"logit": keras.Input((1,), name="logit")}
    base = keras.Model(inputs, keras.layers.Activation("sigmoid")(inputs["logit"]))
    shuffled = tf.data.Dataset.from_tensor_slices(({"logit": logit}, Y))
    shuffled = shuffled.shuffle(NUM_ROWS, reshuffle_each_iteration=True).batch(100)
    summary = fit_head(make_model(base, BiasCorrection()), shuffled, verbose=0)
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


def test_soft_labels_and_unknown_ids():
    model = make_model(field_metrics={"site": [FieldECE(NUM_SITES)]}, **EAGER)
    x = {**X, "site": np.where(X["site"] == 0, -1, X["site"])}
    model.fit(x, 0.1 + 0.8 * Y, batch_size=250, verbose=0)
    scores = model.evaluate(x, Y, NUM_ROWS, verbose=0, return_dict=True)
    residual = Y - model.predict(x, NUM_ROWS, verbose=0)[:, 0].astype("float64")
    expected = np.abs(np.bincount(x["site"] + 1, residual)).sum() / NUM_ROWS
    assert scores["site_field_ece"] == pytest.approx(expected, abs=1e-6)


def test_a_nan_feature_gives_a_nan_probability_in_predict():
    price = X["price"].copy()
    price[3] = np.nan
    predictions = make_model(**EAGER).predict({**X, "price": price}, NUM_ROWS, verbose=0)[:, 0]
    np.testing.assert_array_equal(np.flatnonzero(np.isnan(predictions)), [3])


def with_label(value):
    labels = Y.copy()
    labels[3] = value
    return {"x": X, "y": labels}


def endless_batches():
    while True:
        yield rows(slice(0, 100))


NONE = slice(0, 0)
BAD = {
    "label 2": (with_label(2), "Labels must be in"),
    "label NaN": (with_label(np.nan), "Labels must be in"),
    "NaN feature": ({"x": {**X, "price": np.nan * X["price"]}, "y": Y}, "Logits must be finite"),
    "empty": (dict(zip("xy", rows(NONE), strict=True)), "empty"),
    "one class": ({"x": X, "y": np.zeros(NUM_ROWS)}, "one class only"),
    "missing feature": ({"x": {"site": X["site"]}, "y": Y}, r"without \['price'\]"),
    "no dictionary": ({"x": X["price"], "y": Y}, "Received: ndarray"),
    "list": ({"x": [X["site"], X["price"]], "y": Y}, "Received: list"),
    "rows of y": ({"x": X, "y": Y[:-1]}, "same number of rows"),
    "rows of x": ({"x": {**X, "site": X["site"][:5]}, "y": Y}, "same number of rows"),
    "negative weight": ({"x": X, "y": Y, "sample_weight": -W}, "not negative"),
    "zero weights": ({"x": X, "y": Y, "sample_weight": 0 * W}, "weights are 0"),
    "two columns": ({"x": X, "y": np.stack([Y, Y], axis=1)}, r"shape \(1500, 2\)"),
    "endless data set": ({"x": data_set(X, Y).repeat()}, "must be finite"),
    "generator": ({"x": endless_batches()}, "must be finite"),
    "no labels": ({"x": X}, "must have labels"),
    "data set of x": ({"x": data_set(X)}, r"must be \(x, y\)"),
    "single rows": ({"x": tf.data.Dataset.from_tensor_slices((X, Y))}, "batches"),
    "data set and y": ({"x": data_set(X, Y), "y": Y}, "None if `x` is a dataset"),
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


def test_a_feature_that_the_base_lacks_is_refused():
    head = NeuralCalibration(ILPS(), FieldNetwork({"country": 3}))
    with pytest.raises(ValueError, match=r"without \['country'\]"):
        CalibratedModel(make_base(), head)


def test_predict_without_a_feature_is_refused():
    with pytest.raises(ValueError, match="price"):
        make_model().predict({"site": X["site"]}, verbose=0)
    with pytest.raises(ValueError, match="must be a dictionary"):
        make_model().predict(X["price"], verbose=0)
