"""Every door that takes `x` takes what Keras' `fit` takes, and gives what it gives for arrays."""

import itertools
import tempfile

import keras
import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse
import tensorflow as tf

import keras_calibration as kc
from keras_calibration.export.spec import Spec
from keras_calibration.layers import FieldBias, PlattScaling
from keras_calibration.models import CalibratedModel, FieldMetricsModel
from served import outputs_of

pytestmark = [pytest.mark.tensorflow, pytest.mark.filterwarnings("ignore::UserWarning")]

RNG = np.random.default_rng(0)
NUM_ROWS = 96
WORDS = RNG.choice(["a", "b", "ç"], NUM_ROWS)
IDS = RNG.integers(0, 5, NUM_ROWS)
NUMBERS = RNG.normal(size=NUM_ROWS).astype("float32")
SHAPE = (NUM_ROWS, 4)
MATRIX = np.where(RNG.random(SHAPE) < 0.5, RNG.normal(size=SHAPE), 0).astype("float32")
Y = (RNG.random(NUM_ROWS) < 0.2 + 0.3 * (IDS > 2) + 0.2 * (NUMBERS > 0)).astype("float32")
SPARSE = scipy.sparse.csr_matrix(MATRIX)
FRAME = pd.DataFrame({"c": WORDS, "v": NUMBERS, "unread": [["list"]] * NUM_ROWS})
SETTINGS = {"batch_size": 50, "verbose": 0}
# The first form of each kind is that of plain arrays or tensors.
FORMS = {
    "string": [
        tf.constant(WORDS),
        WORDS,
        WORDS[:, None].astype(object),
        pd.Series(WORDS, dtype="category"),
        pl.Series(WORDS),
    ],
    "int": [IDS, IDS.astype("uint8"), IDS.astype(float), tf.constant(IDS[:, None]), pd.Series(IDS)],
    "float": [NUMBERS, NUMBERS.astype(float), tf.constant(NUMBERS), pl.Series(NUMBERS)],
    # One input needs no name, as in Keras.
    "named": [
        {"v": tf.constant(NUMBERS)},
        {"v": NUMBERS},
        [NUMBERS],
        NUMBERS[:, None],
        tf.constant(NUMBERS),
        FRAME,
        NUMBERS,
    ],
    "mixed": [
        {"c": tf.constant(WORDS), "v": tf.constant(NUMBERS)},
        {"c": WORDS.astype(object), "v": NUMBERS},
        dict(FRAME),
        FRAME,
        pl.from_pandas(FRAME),
    ],
    "nested": [
        {"c": tf.constant(WORDS), "more": (tf.constant(IDS), [tf.constant(NUMBERS)])},
        {"c": WORDS.astype(object), "more": (IDS, [NUMBERS])},
        {"c": FRAME["c"], "more": (pd.Series(IDS), [FRAME["v"]]), "unread": FRAME["unread"]},
    ],
    "sparse": [MATRIX, SPARSE, SPARSE.tocoo(), tf.sparse.from_dense(MATRIX)],
    "matrix": [MATRIX, MATRIX.astype(float), pd.DataFrame(MATRIX), pl.DataFrame(MATRIX), SPARSE],
}


def base_of(kind, make=keras.Model):
    """A model of all inputs of a kind, in their structure; always with the same weights."""
    inputs = {
        "string": keras.Input((), dtype="string", name="c"),
        "int": keras.Input((), dtype="int64", name="i"),
        "float": keras.Input((), name="v"),
        "sparse": keras.Input((4,), name="m", sparse=True),
        "matrix": keras.Input((4,), name="m"),
    }
    word, number, value = (inputs[name] for name in ("string", "int", "float"))
    inputs["mixed"] = {"c": word, "v": value}
    inputs["named"] = {"v": value}
    inputs["nested"] = {"c": word, "more": (number, [value])}
    structure, hidden = inputs[kind], []
    for tensor in keras.tree.flatten(structure):
        if tensor.dtype == "string":
            tensor = keras.layers.StringLookup(vocabulary=["a", "b"])(tensor)
        if "int" in tensor.dtype:
            start = keras.initializers.RandomNormal(seed=1)
            hidden.append(keras.layers.Embedding(5, 1, embeddings_initializer=start)(tensor))
        else:
            hidden.append(keras.layers.Reshape((1,))(tensor) if len(tensor.shape) == 1 else tensor)
    hidden = keras.layers.Concatenate()(hidden) if len(hidden) > 1 else hidden[0]
    start = keras.initializers.RandomNormal(seed=2)
    return make(structure, keras.layers.Dense(1, "sigmoid", kernel_initializer=start)(hidden))


def calibrated(kind):
    return CalibratedModel(base_of(kind), PlattScaling())


def trained_by(model):
    """Keras' own `fit`, `evaluate` and `predict`, from the same weights each time."""
    model.compile(keras.optimizers.SGD(), "binary_crossentropy")
    start = model.get_weights()

    def train(x):
        model.set_weights(start)
        model.fit(x, Y, validation_data=(x, Y), shuffle=False, **SETTINGS)
        return [model.evaluate(x, Y, **SETTINGS), model.predict(x, **SETTINGS)]

    return train


def fit_head(kind):
    model = calibrated(kind)

    def fit(x):
        # A row of weight 0 is dropped.
        kc.fit_head(
            model, x, Y, np.minimum(np.arange(NUM_ROWS), 1), only_if_better=False, verbose=0
        )
        return [model.head.get_weights(), kc.base_logits(model, x), *kc.interval(model, x)]

    return fit


def calibrate(kind):
    base = base_of(kind)
    return lambda x: kc.calibrate(base, x, Y, methods="platt", verbose=0).head.get_weights()


def seeds(kind, engine):
    def build():
        model = base_of(kind)
        model.compile("sgd", "binary_crossentropy")
        return model

    def train(x):
        settings = {"pipeline": kind, "seeds": [1], "engine": engine, **SETTINGS}
        with tempfile.TemporaryDirectory() as ledger:
            runs = kc.seeds.train(build, (x, Y), validation_data=(x, Y), ledger=ledger, **settings)
        return [run["metrics"]["val_loss"] for run in runs]

    return train


# By its name, a function of a kind that makes one of inputs, which gives numbers.
DOORS = {
    "CalibratedModel": lambda kind: trained_by(calibrated(kind)),
    "FieldMetricsModel": lambda kind: trained_by(base_of(kind, FieldMetricsModel)),
    "fit_head": fit_head,
    "calibrate": calibrate,
    "export": lambda kind: lambda x: Spec.from_model(calibrated(kind), x).expected["probability"],
    "seeds.train": lambda kind: seeds(kind, "vectorized"),
    "seeds.train by fit": lambda kind: seeds(kind, "loop"),
}


QUICK = [(d, "mixed") for d in DOORS if d not in ("FieldMetricsModel", "seeds.train by fit")]
QUICK += [("fit_head", "named"), ("fit_head", "sparse"), ("export", "sparse")]
CASES = [
    pytest.param(*case, marks=[] if case in QUICK else pytest.mark.slow)
    for case in itertools.product(DOORS, FORMS)
]


@pytest.mark.parametrize(("door", "kind"), CASES)
def test_every_door_takes_every_kind_of_inputs(door, kind):
    call, forms = DOORS[door](kind), FORMS[kind]
    if door.startswith("seeds"):  # slow: each call builds and trains a model
        forms = [forms[0], *forms[-2:]]
    expected, *others = [keras.tree.flatten(call(form)) for form in forms]
    for outputs in others:
        for one, other in zip(outputs, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("door", DOORS)
def test_what_fit_refuses_every_door_refuses_by_name(door):
    for x in ({"c": WORDS, "v": WORDS}, {"c": WORDS, "w": NUMBERS}, FRAME.assign(v=FRAME["c"])):
        with pytest.raises(ValueError, match="'v'") as caught:
            DOORS[door]("mixed")(x)
        assert len(str(caught.value)) < 400


def test_a_refresh_takes_columns_of_every_kind(tmp_path):
    base = base_of("mixed")
    lookup = keras.layers.StringLookup(vocabulary=["a", "b"])
    model = CalibratedModel(base, FieldBias({"c": lookup}))
    kc.fit_head(model, FRAME, Y, only_if_better=False, verbose=0)
    path = kc.export_savedmodel(model, tmp_path / "1", FRAME)
    logits, served = kc.base_logits(model, FRAME), []
    for x in (FRAME, pl.from_pandas(FRAME)):
        new = kc.refresh_savedmodel(path, logits, Y, x, from_logits=True)
        served.append(outputs_of(new, FORMS["mixed"][0])["probability"])
    np.testing.assert_allclose(served[0], model.predict(FRAME, verbose=0), rtol=1e-5)
    np.testing.assert_array_equal(served[1], served[0])


def test_a_head_reads_fields_of_nested_inputs(tmp_path):
    # The same model and rows with plain names, and in a dictionary of dictionaries.
    site, score = keras.Input((), name="id"), keras.Input((1,), name="score")
    output = keras.layers.Activation("sigmoid")(score)
    draws = np.random.default_rng(0)
    ids, scores = draws.integers(0, 3, 600), draws.normal(size=(600, 1)).astype("float32")
    y = draws.random(600) < 1 / (1 + np.exp(ids - 1 - scores[:, 0]))
    plain = kc.calibrate(
        keras.Model({"id": site, "score": score}, output),
        {"id": ids, "score": scores},
        y,
        fields=["id"],
        methods="field_bias",
        verbose=0,
    )
    base = keras.Model({"user": {"id": site}, "score": score}, output)
    x = {"user": {"id": ids}, "score": scores}
    nested = kc.calibrate(base, x, y, fields=["user.id"], methods="field_bias", verbose=0)
    expected = plain.predict({"id": ids, "score": scores}, verbose=0)
    np.testing.assert_array_equal(nested.predict(x, verbose=0), expected)
    nested.save(tmp_path / "nested.keras")
    loaded = keras.saving.load_model(tmp_path / "nested.keras")
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), expected)
    assert list(nested.field_ids({**x, "user": {"id": ids[:3]}}, "user.id")) == list(ids[:3])
    with pytest.raises(ValueError, match=r"'id' must hold ids"):
        nested.predict({**x, "user": {"id": ids + 0.5}}, verbose=0)
    path = kc.export_savedmodel(nested, tmp_path / "m" / "1", x)
    logged = {"predictions": kc.base_logits(nested, x), "from_logits": True, "labels": y}
    refreshed = kc.refresh_savedmodel(path, **logged, features={"user.id": ids}, verbose=0)
    served = tf.saved_model.load(str(refreshed)).signatures["serving_default"]
    received = served(id=tf.constant(ids, "float32"), score=tf.constant(scores))["probability"]
    np.testing.assert_allclose(received, expected, atol=1e-6)
