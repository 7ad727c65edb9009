"""Bad input at serving: an answer or an error of the request; the next one is served as ever."""

import keras
import numpy as np
import pytest

import keras_calibration as kc
from served import answers
from trained_heads import train_head

pytestmark = pytest.mark.slow

SITES = ["news", "mail"]
GOOD = {"site": ["news", "mail"], "category": [1, 2], "price": [0.5, -0.5], "segment": [0, 1]}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Fields of strings and of ids, in the base model and in the head; a column with gaps."""
    keras.utils.set_random_seed(0)
    inputs = {
        "site": keras.Input((), dtype="string", name="site"),
        "category": keras.Input((), dtype="int64", name="category"),
        "price": keras.Input((), name="price"),
        "segment": keras.Input((), dtype="int64", name="segment"),
    }
    known = keras.layers.StringLookup(vocabulary=SITES, output_mode="one_hot")
    columns = [
        known(keras.ops.expand_dims(inputs["site"], 1)),
        keras.layers.Embedding(5, 3)(inputs["category"]),
        keras.ops.expand_dims(inputs["price"], 1),
    ]
    hidden = keras.layers.Concatenate()(columns)
    base = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(hidden))
    lookup = keras.layers.StringLookup(vocabulary=SITES)
    network = kc.layers.FieldNetwork({"site": lookup, "segment": 2}, numeric=["price"], seed=0)
    head = kc.layers.NeuralCalibration(kc.layers.ILPS(), network)
    model = kc.models.CalibratedModel(base, head)
    rng = np.random.default_rng(0)
    rows = {
        "site": rng.choice([*SITES, "shop"], 500),
        "category": rng.integers(0, 5, 500),
        "price": rng.normal(size=500).astype("float32"),
        "segment": rng.integers(0, 3, 500),
    }
    labels = rng.random(500) < np.where(rows["site"] == "news", 0.7, 0.2)
    train_head(model, rows, labels, batch_size=50, epochs=2)
    folder = tmp_path_factory.mktemp("bad") / "1"
    return kc.export_savedmodel(model, folder, rows)


def changed(**columns):
    return {**GOOD, **columns}, "serving_default"


def test_one_process_answers_them_all(path):
    head_request = {name: column for name, column in GOOD.items() if name != "category"}
    requests = {
        "good": (GOOD, "serving_default"),
        "unknown string": changed(site=["never seen", "mail"]),
        "a string of a megabyte": changed(site=["x" * 2**20, "mail"]),
        "unknown id": changed(segment=[7, 1]),
        "largest id": changed(segment=[2**63 - 1, 1]),
        "negative id": changed(segment=[-1, 1]),
        "id outside the base model's table": changed(category=[1, 10**6]),
        "missing": ({k: v for k, v in GOOD.items() if k != "price"}, "serving_default"),
        "one too many": changed(colour=[1, 2]),
        "a word for a number": changed(price=["dear", "cheap"]),
        "columns of different lengths": changed(price=[0.5]),
        "not a number": changed(price=[float("nan"), -0.5]),
        "no row": ({name: [] for name in GOOD}, "serving_default"),
        "logit that is no number": ({**head_request, "logit": [float("nan"), 0.1]}, "calibrate"),
        "good again": (GOOD, "serving_default"),
    }
    got = dict(zip(requests, answers(path, requests.values()), strict=True))

    probability = {k: a["probability"] for k, a in got.items() if "error" not in a}
    assert np.isfinite(probability["good"]).all()
    # What was sent before has no effect, and a bad row none on the one beside it.
    np.testing.assert_array_equal(probability["good again"], probability["good"])
    for name, values in probability.items():
        if len(values) == 2 and name != "logit that is no number":
            assert values[1] == pytest.approx(probability["good"][1], abs=1e-7)
    # Whatever is not known is one and the same "other".
    unknown = probability["unknown string"][0]
    assert unknown != probability["good"][0]
    assert probability["a string of a megabyte"][0] == pytest.approx(unknown, abs=1e-7)
    other = probability["unknown id"][0]
    assert other != probability["good"][0]
    assert probability["largest id"][0] == probability["negative id"][0] == other
    # The base model takes the number as it is.
    assert np.isnan(probability["not a number"][0])
    assert np.isnan(probability["logit that is no number"][0])
    assert np.isfinite(probability["logit that is no number"][1])
    assert probability["no row"].shape == (0,)

    errors = {name: answer["error"] for name, answer in got.items() if "error" in answer}
    named = {"id outside the base model's table": "1000000 is not in [0, 5)", "missing": "price"}
    named |= {"one too many": "colour"}
    assert set(errors) == {*named, "a word for a number", "columns of different lengths"}
    assert all(word in errors[name] for name, word in named.items())
