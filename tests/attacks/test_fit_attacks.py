"""Hostile rows for every direct fit: finite, rising, no worse than the identity, or an error."""

import inspect
import warnings

import numpy as np
import pytest
from scipy import special

from keras_calibration import layers
from keras_calibration.layers import (
    FieldBias,
    FieldILPS,
    FieldNetwork,
    FitSettings,
    Head,
    NeuralCalibration,
)
from keras_calibration.layers.histogram_head import HistogramHead
from tiers import attack_size, only_in_full_attack

pytestmark = pytest.mark.slow

NUM_ROWS, NUM_CLASSES = 300, 3
CALIBRATORS = {
    name: member
    for name, member in inspect.getmembers(layers, inspect.isclass)
    if issubclass(member, HistogramHead) or member is layers.IsotonicRegression
}
FORMS = {
    **CALIBRATORS,
    "ILPS, paper": layers.ILPS.from_paper,
    "ILPS, strict": lambda: layers.ILPS(monotonic="strict"),
    "isotonic, flat steps": lambda: layers.IsotonicRegression(keep_ranking=False),
}
HEADS = {
    "FieldBias": lambda: FieldBias({"id": 7}),
    "FieldILPS": lambda: FieldILPS({"id": 7}),
    "NeuralCalibration": lambda: NeuralCalibration(
        layers.ILPS(), FieldNetwork({"id": 7}, embedding_dim=2, hidden_units=(4,), seed=0)
    ),
}
CLASS_FORMS = {
    "TemperatureScaling": layers.TemperatureScaling,
    "VectorScaling": lambda: layers.VectorScaling(NUM_CLASSES),
    "StructuredMatrixScaling": lambda: layers.StructuredMatrixScaling(NUM_CLASSES),
}
# The other public heads: they read features, or have parts that may.
WITH_FEATURES = {
    *("Head", "BlendedHead", "BoostedTrees", "FieldBias", "FieldILPS"),
    *("NeuralCalibration", "SamplingCorrection"),
}
WEIGHTS = {"tiny": 1e-30, "huge": 1e30, "many": 1e6}


def log_loss(labels, logits, weights):
    losses = (1 - labels) * np.logaddexp(0, logits) + labels * np.logaddexp(0, -logits)
    return np.average(losses, weights=weights)


def attack(kind):
    """Logits that float32 holds, labels and weights."""
    rng = np.random.default_rng(3)
    num_rows = 1_000_000 if kind == "million ties" else NUM_ROWS
    logits = rng.normal(-1, 1.5, num_rows)
    labels = (rng.random(num_rows) < special.expit(1.3 * logits + 0.5)).astype(float)
    weights = np.full(num_rows, WEIGHTS.get(kind, 1.0))
    if kind == "separable":
        labels = (logits > np.median(logits)).astype(float)
    if kind == "constant":
        logits[:] = 0.5
    if kind == "one class":
        labels[:] = 1
    if kind == "three rows":
        logits, labels, weights = np.array([-1.0, 0.0, 1.0]), np.array([0.0, 1.0, 0.0]), np.ones(3)
    if kind in ("ties", "million ties"):
        logits = np.round(logits)
    if kind == "far":
        logits = rng.choice([-1000.0, 1000.0, -80.0, 80.0, 0.0], NUM_ROWS)
    if kind == "past all bins":
        logits *= 1e5
    if kind == "mixed":
        weights = rng.choice([1e-12, 1.0, 1e12], NUM_ROWS)
    if kind == "falling":
        labels = (rng.random(NUM_ROWS) < special.expit(-logits)).astype(float)
    if kind == "soft":
        labels = rng.random(NUM_ROWS)
    return logits.astype("float32").astype(float), labels, weights


KINDS = (
    *("separable", "constant", "one class", "three rows", "ties", "far", "past all bins"),
    *("mixed", "falling", "soft", *WEIGHTS),
)


def check(layer, kind, features=(), **settings):
    """Fits and checks; returns whether the fit was refused."""
    logits, labels, weights = attack(kind)
    columns = [{name: np.arange(len(logits)) % 7 for name in each} for each in features]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            summary = layer.fit(logits, labels, *columns, sample_weight=weights, **settings)
        except ValueError as error:
            if "Received" not in str(error):  # not one of ours, which say what to do
                raise
            return True
    given = [{name: column for name, column in each.items()} for each in columns]
    after = np.asarray(layer(logits.astype("float32"), *given), float).reshape(-1)
    assert np.isfinite(after).all()
    received = log_loss(labels, after, weights)
    before = log_loss(labels, logits, weights)
    assert received <= before + 1e-6 * max(1, before)
    assert summary.log_loss_after == pytest.approx(received, rel=1e-4, abs=1e-6)
    assert summary.log_loss_before == pytest.approx(before, rel=1e-5, abs=1e-6)
    # Beside the rows, neighbours in the last bit too.
    grid = np.r_[np.linspace(logits.min() - 2, logits.max() + 2, 2000), logits].astype("float32")
    grid = np.sort(np.r_[grid, np.nextafter(grid, np.float32(np.inf))])
    given = [{name: np.full(len(grid), 2) for name in each} for each in columns]
    curve = np.asarray(layer(grid, *given)).reshape(-1)
    assert (np.diff(curve) >= 0).all()
    return False


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", FORMS)
def test_calibrators(form, kind):
    layer = FORMS[form]()
    refused = check(layer, kind)
    assert not (refused and kind in ("soft", "ties", "many", "falling", "past all bins"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["FieldBias", "FieldILPS"])
def test_field_heads(form, kind):
    check(HEADS[form](), kind, features=[["id"]])


@pytest.mark.parametrize("kind", attack_size(("separable", "far", "huge"), KINDS))
def test_neural_calibration(kind):
    settings = FitSettings(max_epochs=2, batch_size=64)
    check(HEADS["NeuralCalibration"](), kind, features=[["id"]], settings=settings)


@only_in_full_attack
@pytest.mark.parametrize("form", [*FORMS, *HEADS])
def test_a_million_ties(form):
    if form in FORMS:
        assert not check(FORMS[form](), "million ties")
    else:
        settings = {"settings": FitSettings(max_epochs=1)} if form == "NeuralCalibration" else {}
        assert not check(HEADS[form](), "million ties", features=[["id"]], **settings)


def class_attack(kind):
    """Class logits that float32 holds, shares of the classes and weights."""
    rng = np.random.default_rng(5)
    num_rows = {"three rows": 3, "million ties": 1_000_000}.get(kind, NUM_ROWS)
    logits = rng.normal(0, 1.5, (num_rows, NUM_CLASSES))
    if kind in ("ties", "million ties"):
        logits = np.round(logits)
    if kind == "constant":
        logits[:] = [0.5, -0.2, 0.1]
    if kind == "far":
        logits = rng.choice([-1000.0, 1000.0, -80.0, 80.0, 0.0], logits.shape)
    classes = np.argmax(0.7 * logits + rng.gumbel(size=logits.shape), axis=1)
    if kind == "past all bins":
        logits *= 1e5
    if kind == "separable":
        classes = np.argmax(logits, axis=1)
    if kind == "falling":
        classes = np.argmin(logits, axis=1)
    if kind == "one class":
        classes[:] = 1
    labels = np.eye(NUM_CLASSES)[classes]
    if kind == "soft":
        labels = rng.dirichlet(np.ones(NUM_CLASSES), num_rows)
    weights = np.full(num_rows, WEIGHTS.get(kind, 1.0))
    if kind == "mixed":
        weights = rng.choice([1e-12, 1.0, 1e12], num_rows)
    return logits.astype("float32").astype(float), labels, weights


@pytest.mark.parametrize("kind", [*KINDS, pytest.param("million ties", marks=only_in_full_attack)])
@pytest.mark.parametrize("form", CLASS_FORMS)
def test_class_calibrators(form, kind):
    logits, labels, weights = class_attack(kind)
    layer = CLASS_FORMS[form]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kind == "one class":
            with pytest.raises(ValueError, match="at least two classes"):
                layer.fit(logits, labels, sample_weight=weights)
            return
        summary = layer.fit(logits, labels, sample_weight=weights)
    after = np.asarray(layer(logits.astype("float32")), float)
    assert np.isfinite(after).all()
    # A class without rows has no say: the fit is one among the classes that occur.
    occur = labels[weights > 0].any(axis=0)

    def log_loss(columns, classes):
        by_row = (labels[:, classes] * special.log_softmax(columns[:, classes], axis=1)).sum(axis=1)
        return -np.average(by_row, weights=weights)

    before, received = log_loss(logits, occur), log_loss(after, occur)
    # The prior is about the temperature in units of the logits' spread: of logits of ±1,000, it
    # weighs more than about 1.
    room = 1e-3 if kind == "far" else 1e-6
    assert received <= before + room * max(1, before)
    before, received = log_loss(logits, slice(None)), log_loss(after, slice(None))
    assert summary.log_loss_after == pytest.approx(received, rel=1e-4, abs=1e-6)
    assert summary.log_loss_before == pytest.approx(before, rel=1e-5, abs=1e-6)
    if form == "TemperatureScaling":  # the others may change the order of the classes
        order = np.argsort(logits, axis=1)
        assert (np.diff(np.take_along_axis(after, order, axis=1), axis=1) >= 0).all()


def test_no_calibrator_is_forgotten():
    public = {
        name
        for name, member in inspect.getmembers(layers, inspect.isclass)
        if issubclass(member, Head)
    }
    assert public - WITH_FEATURES == {
        name for name in [*FORMS, *CLASS_FORMS] if name.isidentifier()
    }
