"""Stories of users: a base model, data in some form, a head; fitted, scored, saved, loaded, served.

Each is held against the uncalibrated Keras model, the truth, and the head's own direct fit.
"""

import re

import keras
import numpy as np
import pytest

import keras_calibration as kc
from keras_calibration import layers
from served import outputs_of
from stories import worlds
from stories.references import log_loss, sigmoid
from stories.worlds import World

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]


def _lookup():
    return keras.layers.StringLookup(vocabulary=list(worlds.SITES))


HEADS = {
    "ilps": layers.ILPS,
    "platt": layers.PlattScaling,
    "isotonic": layers.IsotonicRegression,
    "field_bias of strings": lambda: layers.FieldBias({"site": _lookup()}, layers.ILPS()),
    "field_ilps": lambda: layers.FieldILPS({"site": len(worlds.SITES)}),
    "neural": lambda: layers.NeuralCalibration(
        layers.ILPS(), layers.FieldNetwork({"site": len(worlds.SITES)}, hidden_units=(8,), seed=0)
    ),
    "field_bias of spaced names": lambda: layers.FieldBias({"site id": len(worlds.SITES)}),
}
KNOW_THE_SITE = {name for name in HEADS if name.startswith(("field", "neural"))}

STORIES = [
    # Base model, its inputs, the form of the data, the head. All endings of base models are in
    # `_graph/test_base_logits.py`.
    (worlds.sequential, worlds.price_alone, "labels of shape (n, 1)", "isotonic"),
    (worlds.functional, worlds.flat_columns, "weights", "field_ilps"),
    (worlds.functional_of_strings, worlds.frame, "arrays", "field_bias of strings"),
    (worlds.wrapped_subclass, worlds.columns, "PyDataset", "ilps"),
    (worlds.bfloat16, worlds.columns, "tf.data", "platt"),
    (worlds.named_with_spaces, worlds.spaced, "arrays", "field_bias of spaced names"),
    (worlds.functional, worlds.columns, "arrays", "neural"),
]


@pytest.fixture(scope="module")
def development():
    return World.draw(4000, seed=1)


@pytest.fixture(scope="module")
def fresh():
    return World.draw(20_000, seed=2)


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize(
    ("make_base", "inputs_of", "form", "head"),
    STORIES,
    ids=lambda part: part.replace(" ", "_") if isinstance(part, str) else part.__name__,
)
def test_story(make_base, inputs_of, form, head, development, fresh, tmp_path):
    if head == "neural":
        development = World.draw(1500, seed=1)  # networks are trained twice below
    base = make_base()
    x, fresh_x = inputs_of(development), inputs_of(fresh)
    model = kc.models.CalibratedModel(base, HEADS[head](), **_base_output(make_base))
    kc.fit_head(model, **worlds.FORMS[form](x, development.labels), verbose=0)
    probabilities = model.predict(fresh_x, batch_size=4096, verbose=0)[:, 0]

    # Right on the whole and better than the model as it was, by what is attainable.
    uncalibrated = sigmoid(kc.base_logits(model, fresh_x)[:, 0])
    before, after, attainable = (
        log_loss(fresh.labels, predicted.astype("float64"))
        for predicted in (uncalibrated, probabilities, fresh.probabilities)
    )
    share = 0.85 if head in KNOW_THE_SITE else 0.55
    assert before - after > share * (before - attainable)
    assert probabilities.mean() == pytest.approx(fresh.labels.mean(), abs=0.02)

    # As good as the head's own fit to the logits.
    again = kc.models.CalibratedModel(base, HEADS[head](), **_base_output(make_base))
    logits = kc.base_logits(model, x)
    again.head.fit(logits, development.labels, _head_features(again, x, inputs_of, development))
    some = World.draw(100, seed=3)
    expected = model.predict(inputs_of(some), verbose=0)
    logits = kc.base_logits(model, inputs_of(some))
    same = again.head(logits, _head_features(again, x, inputs_of, some))
    same = sigmoid(keras.ops.convert_to_numpy(same))
    np.testing.assert_allclose(expected, same, atol=1e-5)

    # `evaluate` says what NumPy says, and the model comes back from its file.
    if form != "arrays":  # half of the stories, of every kind of head
        model.compile(loss="binary_crossentropy", metrics=[kc.metrics.LogLoss()])
        scores = model.evaluate(fresh_x, fresh.labels, batch_size=4096, verbose=0, return_dict=True)
        assert scores["log_loss"] == pytest.approx(after, rel=1e-5)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded.predict(inputs_of(some), verbose=0), expected, atol=1e-6)

    # TensorFlow alone serves it.
    path = kc.export_savedmodel(loaded, tmp_path / "served", version="next")
    served = _serve(path, model, inputs_of(some))
    np.testing.assert_allclose(served["probability"], expected, atol=1e-5)


def _base_output(make_base):
    # A layer of the user's own does not tell what it computes.
    return {"base_output": "logit"} if make_base is worlds.wrapped_subclass else {}


def _head_features(model, x, inputs_of, world):
    names = model.head.feature_names
    if not names:
        return {}
    strings = inputs_of is worlds.frame
    return {names[0]: worlds.SITES[world.site] if strings else world.site}


def _serve(path, model, x):
    """What the signature answers to rows, in this process."""
    by_name = dict(x) if hasattr(x, "keys") else {model.input.name: x}
    columns = {re.sub(r"\W", "_", name): np.asarray(column) for name, column in by_name.items()}
    columns = {name: c.astype(object) if c.dtype.kind in "UO" else c for name, c in columns.items()}
    return outputs_of(path, columns)
