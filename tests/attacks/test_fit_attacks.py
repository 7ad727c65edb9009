"""Hostile rows for every direct fit: finite, rising, no worse than the identity, or an error."""

import inspect
import warnings

import numpy as np
import pytest
from scipy import special

from keras_calibration import layers
from keras_calibration.layers import FieldBias, FieldILPS, FieldNetwork, FitSettings, Head
from keras_calibration.layers.histogram_head import HistogramHead

pytestmark = pytest.mark.slow

NUM_ROWS, NUM_CLASSES = 300, 3
FORMS = {
    name: member
    for name, member in inspect.getmembers(layers, inspect.isclass)
    if issubclass(member, HistogramHead) or member is layers.IsotonicRegression
}
FORMS["ILPS, paper"] = layers.ILPS.from_paper
FORMS["ILPS, strict"] = lambda: layers.ILPS(monotonic="strict")
FORMS["isotonic, flat steps"] = lambda: layers.IsotonicRegression(keep_ranking=False)
HEADS = {
    "FieldBias": lambda: FieldBias({"id": 7}),
    "FieldILPS": lambda: FieldILPS({"id": 7}),
    "NeuralCalibration": lambda: layers.NeuralCalibration(
        layers.ILPS(), FieldNetwork({"id": 7}, embedding_dim=2, hidden_units=(4,), seed=0)
    ),
}
CLASS_FORMS = {
    "TemperatureScaling": layers.TemperatureScaling,
    "VectorScaling": lambda: layers.VectorScaling(NUM_CLASSES),
}
WEIGHTS = {"tiny": 1e-30, "huge": 1e30, "many": 1e6}
KINDS = (
    *("separable", "constant", "one class", "three rows", "ties", "far", "past all bins"),
    *("mixed", "falling", "soft", *WEIGHTS),
)


def attack(kind, num_columns):
    """Logits that float32 holds, labels (shares for classes) and weights."""
    rng = np.random.default_rng(3)
    num_rows = 3 if kind == "three rows" else NUM_ROWS
    logits = rng.normal(-1, 1.5, (num_rows, num_columns))
    logits[:] = [0.5, -0.2, 0.1][:num_columns] if kind == "constant" else logits
    logits = np.round(logits) if kind == "ties" else logits
    if kind == "far":
        logits = rng.choice([-1000.0, 1000.0, -80.0, 80.0, 0.0], logits.shape)
    scale = 1e5 if kind == "past all bins" else 1.0  # of the logits alone: labels do not follow
    weights = np.full(num_rows, WEIGHTS.get(kind, 1.0))
    weights = rng.choice([1e-12, 1.0, 1e12], num_rows) if kind == "mixed" else weights
    logits = logits.astype("float32").astype(float)
    if num_columns == 1:
        drawn = rng.random(num_rows) < special.expit(1.3 * logits[:, 0] + 0.5)
        labels = {
            "separable": logits[:, 0] > np.median(logits),
            "one class": np.ones(num_rows),
            "falling": rng.random(num_rows) < special.expit(-logits[:, 0]),
            "soft": rng.random(num_rows),
            "three rows": np.arange(num_rows) % 2,
        }.get(kind, drawn)
        return scale * logits[:, 0], labels.astype(float), weights
    if kind == "soft":
        return logits, rng.dirichlet(np.ones(num_columns), num_rows), weights
    score = {"separable": logits, "falling": -logits}.get(kind, 0.7 * logits)
    score = score + rng.gumbel(size=logits.shape) * (kind not in ("separable", "falling"))
    classes = np.arange(3) if kind == "three rows" else np.argmax(score, axis=1)
    classes = np.ones(num_rows, int) if kind == "one class" else classes
    return scale * logits, np.eye(num_columns)[classes], weights


def fitted(layer, rows, *features, **settings):
    """The summary of the fit, or None if it is refused by an error of this package."""
    logits, labels, weights = rows
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return layer.fit(logits, labels, *features, sample_weight=weights, **settings)
        except ValueError as error:
            if "Received" not in str(error):  # not one of ours, which say what to do
                raise
            return None


def check(layer, kind, has_field=False, **settings):
    """Fits and checks; returns whether the fit was refused."""
    logits, labels, weights = rows = attack(kind, 1)
    features = [{"id": np.arange(len(logits)) % 7}] if has_field else []
    summary = fitted(layer, rows, *features, **settings)
    if summary is None:
        return True
    after = np.asarray(layer(logits.astype("float32"), *features), float).reshape(-1)
    assert np.isfinite(after).all()

    def log_loss(logits):
        losses = (1 - labels) * np.logaddexp(0, logits) + labels * np.logaddexp(0, -logits)
        return np.average(losses, weights=weights)

    received, before = log_loss(after), log_loss(logits)
    assert received <= before + 1e-6 * max(1, before)
    assert summary.log_loss_after == pytest.approx(received, rel=1e-4, abs=1e-6)
    assert summary.log_loss_before == pytest.approx(before, rel=1e-5, abs=1e-6)
    # Beside the rows, neighbours in the last bit too.
    grid = np.r_[np.linspace(logits.min() - 2, logits.max() + 2, 2000), logits].astype("float32")
    grid = np.sort(np.r_[grid, np.nextafter(grid, np.float32(np.inf))])
    given = [{"id": np.full(len(grid), 2)}] if has_field else []
    assert (np.diff(np.asarray(layer(grid, *given)).reshape(-1)) >= 0).all()
    return False


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", FORMS)
def test_calibrators(form, kind):
    refused = check(FORMS[form](), kind)
    assert not (refused and kind in ("soft", "ties", "many", "falling", "past all bins"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["FieldBias", "FieldILPS"])
def test_field_heads(form, kind):
    check(HEADS[form](), kind, has_field=True)


@pytest.mark.parametrize("kind", ["separable", "far", "huge"])
def test_neural_calibration(kind):
    settings = FitSettings(max_epochs=2, batch_size=64)
    check(HEADS["NeuralCalibration"](), kind, has_field=True, settings=settings)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", CLASS_FORMS)
def test_class_calibrators(form, kind):
    logits, labels, weights = rows = attack(kind, NUM_CLASSES)
    layer = CLASS_FORMS[form]()
    summary = fitted(layer, rows)
    if summary is None:  # a class has no rows
        assert not labels[weights > 0].any(axis=0).all()
        return
    after = np.asarray(layer(logits.astype("float32")), float)
    assert np.isfinite(after).all()

    def log_loss(columns):
        by_row = (labels * special.log_softmax(columns, axis=1)).sum(axis=1)
        return -np.average(by_row, weights=weights)

    before, received = log_loss(logits), log_loss(after)
    # The prior is about the temperature in units of the logits' spread: of logits of ±1,000, it
    # weighs more than about 1.
    assert received <= before + (1e-3 if kind == "far" else 1e-6) * max(1, before)
    assert summary.log_loss_after == pytest.approx(received, rel=1e-4, abs=1e-6)


def test_no_calibrator_is_forgotten():
    classes = inspect.getmembers(layers, inspect.isclass)
    public = {name for name, member in classes if issubclass(member, Head)}
    tested = {name for name in [*FORMS, *HEADS, *CLASS_FORMS] if name.isidentifier()}
    assert public - tested == {"Head", "BlendedHead", "BoostedTrees", "SamplingCorrection"}
