"""The record of a fit is saved with a head: a loaded one is known as fitted to its rows."""

import json

import keras
import numpy as np
import pytest
from scipy.special import expit

import every_head
import keras_calibration as kc
from every_head import NUM_CLASSES, NUM_SITES, has_classes
from keras_calibration._rows.door import Given
from keras_calibration.layers.fit_summary import FitSummary
from keras_calibration.layers.fits import heads_in, is_as_fitted, rows_to_fit
from keras_calibration.layers.refit import is_fitted_to
from symbols import symbols
from tiers import slow_except

NUM_ROWS = 300
RNG = np.random.default_rng(0)
FEATURES = {
    "site": RNG.integers(0, NUM_SITES, NUM_ROWS).astype("int32"),
    "price": RNG.normal(size=NUM_ROWS).astype("float32"),
}
LOGITS = RNG.normal(-0.5, 1, NUM_ROWS).astype("float32")
LABELS = (RNG.random(NUM_ROWS) < expit(LOGITS + 0.5 * FEATURES["site"] - 1)).astype(int)
CLASS_LOGITS = RNG.normal(size=(NUM_ROWS, NUM_CLASSES)).astype("float32")
CLASSES = np.argmax(CLASS_LOGITS + RNG.gumbel(size=CLASS_LOGITS.shape), axis=1)
WEIGHTS = RNG.choice([0.5, 2.0], NUM_ROWS)
SETTINGS = kc.layers.FitSettings(folds=2, max_epochs=2)
HEADS = {name: make for name, (make, _) in every_head.HEADS.items()}
HEADS["SamplingCorrection"] = lambda: kc.layers.SamplingCorrection(0.5)
HEADS["BlendedHead, nested"] = lambda: kc.layers.BlendedHead(
    [every_head.trees(kc.layers.FieldILPS(every_head.SITE), every_head.SITE, []), kc.layers.ILPS()]
)
KINDS = [(name, ".keras") for name in HEADS]
KINDS += [(name, ".weights.h5") for name in ("ILPS", "FieldBias, curve", "BlendedHead")]
QUICK = [kind for kind in KINDS if not kind[0].startswith(("Neural", "ILPS, ", "BlendedHead,"))]


def rows_of(name):
    return (CLASS_LOGITS, CLASSES) if has_classes(name) else (LOGITS, LABELS)


def model_of(head, name=""):
    """A model of the head alone."""
    logit = keras.Input((NUM_CLASSES if has_classes(name) else 1,), name="logit")
    features = symbols(site="int32", price="float32")
    return keras.Model({"logit": logit, **features}, head(logit, features))


def head_of(model):
    return next(layer for layer in model.layers if isinstance(layer, kc.layers.Head))


def loaded_by(kind, model, name, folder):
    """The head of a model that was saved and loaded."""
    file = folder / f"model{kind}"
    if kind == ".keras":
        model.save(file)
        return head_of(keras.saving.load_model(file))
    model.save_weights(file)
    fresh = HEADS[name]()
    model_of(fresh, name).load_weights(file)
    return fresh


@pytest.mark.parametrize("case", slow_except(QUICK, KINDS), ids=" ".join)
def test_a_loaded_head_is_known_as_fitted_to_its_rows(case, tmp_path):
    name, kind = case
    head = HEADS[name]()
    model, data = model_of(head, name), rows_of(name)
    settings = SETTINGS if name.startswith("Neural") else None
    head.fit(*data, FEATURES, WEIGHTS, settings=settings)
    loaded = loaded_by(kind, model, name, tmp_path)
    assert str(loaded.fit_summary) == str(head.fit_summary)
    assert json.dumps(loaded.fit_summary.to_dict()) == json.dumps(head.fit_summary.to_dict())
    rows = rows_to_fit(loaded, Given(*data, WEIGHTS, columns=FEATURES))
    assert is_fitted_to(loaded, rows)
    assert not is_fitted_to(loaded, rows.take(np.arange(1, NUM_ROWS)))
    for inner, saved in zip(heads_in(loaded), heads_in(head), strict=True):
        assert is_as_fitted(inner) == is_as_fitted(saved)
        for part in ("moments", "num_rows", "bins", "unit"):
            kept, expected = (getattr(one.histogram, part, None) for one in (inner, saved))
            np.testing.assert_array_equal(kept, expected)
    # Weights of another origin are not those of the fit.
    if loaded.weights:
        weights = loaded.get_weights()
        loaded.set_weights([weights[0] + np.ones((), weights[0].dtype), *weights[1:]])
        assert not is_as_fitted(loaded)


def test_a_head_without_a_fit_takes_the_place_of_one(tmp_path):
    head, other = kc.layers.PlattScaling(), kc.layers.PlattScaling()
    model, unfitted = model_of(head), model_of(other)
    head.fit(LOGITS, LABELS)
    unfitted.save_weights(tmp_path / "unfitted.weights.h5")
    model.load_weights(tmp_path / "unfitted.weights.h5")
    assert head.fit_summary is None
    assert head.histogram is None
    assert not is_as_fitted(head)


@keras.saving.register_keras_serializable(package="tests")
class OwnFile(kc.layers.PlattScaling):
    """A head that saves its weights in its own way."""

    def save_own_variables(self, store):
        store["all"] = np.array([float(weight.numpy().sum()) for weight in self.weights])

    def load_own_variables(self, store):
        for weight, value in zip(self.weights, np.asarray(store["all"]), strict=True):
            weight.assign(np.full(weight.shape, value))


def test_a_head_that_saves_no_record_loads_without_one(tmp_path):
    model = model_of(OwnFile())
    head_of(model).fit(LOGITS, LABELS)
    model.save(tmp_path / "own.keras")
    loaded = head_of(keras.saving.load_model(tmp_path / "own.keras"))
    np.testing.assert_array_equal(loaded(LOGITS), head_of(model)(LOGITS))
    assert loaded.fit_summary is None


def test_calibrate_and_fit_head_decide_as_in_memory(tmp_path):
    inputs = symbols(score=(1,), site="int32")
    head = kc.layers.FieldILPS({"site": NUM_SITES})
    outputs = keras.layers.Activation("sigmoid")(head(inputs["score"], {"site": inputs["site"]}))
    model = keras.Model(inputs, outputs)
    x = {"score": LOGITS[:, None], "site": FEATURES["site"]}
    kc.fit_head(model, x, LABELS, only_if_better=False, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    how = {"fields": ["site"], "methods": "quick", "verbose": 0}
    expected, received = (kc.calibrate(m, x, LABELS, **how).report for m in (model, loaded))
    assert received.is_present_cross_fitted
    assert received.before.log_loss == pytest.approx(expected.before.log_loss, abs=1e-9)
    assert received.weights == pytest.approx(expected.weights)
    again = kc.fit_head(loaded, x, LABELS, verbose=0)
    assert np.isnan(again.change)
    assert again.is_used
    # Trained after loading, it is compared again, with rows that it has seen.
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    loaded.compile("sgd", "binary_crossentropy")
    loaded.fit(x, LABELS, verbose=0)
    with pytest.warns(UserWarning, match="only_if_better=False"):
        again = kc.fit_head(loaded, x, LABELS, verbose=0)
    assert again.change > 0


def test_the_summary_after_calibrate_is_that_of_its_report():
    inputs = {"score": keras.Input((1,), name="score")}
    base = keras.Model(inputs, keras.layers.Activation("sigmoid")(inputs["score"]))
    x = {"score": 3 * LOGITS[:, None]}
    model = kc.calibrate(base, x, LABELS, methods="quick", verbose=0)
    assert model.report.chosen != "identity"
    summary = model.head.fit_summary
    assert summary.log_loss_before == model.report.before.log_loss
    assert summary.log_loss_after == pytest.approx(model.report.after.log_loss, abs=1e-12)
    assert summary.change_error == model.report.after.log_loss_change_error
    alone = kc.layers.PlattScaling().fit(LOGITS, LABELS)  # which compares nothing
    assert np.isnan(alone.log_loss_after)


def test_a_summary_is_the_same_from_json():
    summary = FitSummary(900, 0.31, 0.28, 40, np.bool_(True), epochs=(3, 4), change=-0.01)
    text = json.dumps(summary.to_dict() | {"later": 1}, default=lambda value: value.item())
    read = FitSummary.from_dict(json.loads(text))
    assert (read.epochs, read.num_iterations, read.fitted_at) == ((3, 4), 40, summary.fitted_at)
    assert str(read) == str(summary)
