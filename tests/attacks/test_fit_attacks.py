"""Hostile rows for every direct fit: finite, rising, no worse than the identity, or an error."""

import inspect
import warnings

import numpy as np
import pytest

from keras_calibration import layers
from keras_calibration.layers import Calibrator, FieldBias, FieldILPS, StreamingCalibrator

NUM_ROWS = 300
ABSTRACT = {Calibrator, StreamingCalibrator, layers.ClassCalibrator}
CALIBRATORS = {
    name: member
    for name, member in inspect.getmembers(layers, inspect.isclass)
    if issubclass(member, Calibrator)
    and member not in ABSTRACT
    and not issubclass(member, layers.ClassCalibrator)
}
FORMS = {
    **CALIBRATORS,
    "ILPS, paper": layers.ILPS.from_paper,
    "ILPS, strict": lambda: layers.ILPS(monotonic="strict"),
    "isotonic, flat steps": lambda: layers.IsotonicRegression(keep_ranking=False),
}
HEADS = {"FieldBias": lambda: FieldBias({"id": 7}), "FieldILPS": lambda: FieldILPS({"id": 7})}
WEIGHTS = {"tiny": 1e-30, "huge": 1e30, "many": 1e6}


def sigmoid(logits):
    return 0.5 * (1 + np.tanh(0.5 * logits))


def log_loss(labels, logits, weights):
    losses = (1 - labels) * np.logaddexp(0, logits) + labels * np.logaddexp(0, -logits)
    return np.average(losses, weights=weights)


def attack(kind):
    """Logits that float32 holds, labels and weights."""
    rng = np.random.default_rng(3)
    logits = rng.normal(-1, 1.5, NUM_ROWS)
    labels = (rng.random(NUM_ROWS) < sigmoid(1.3 * logits + 0.5)).astype(float)
    weights = np.full(NUM_ROWS, WEIGHTS.get(kind, 1.0))
    if kind == "separable":
        labels = (logits > np.median(logits)).astype(float)
    if kind == "constant":
        logits[:] = 0.5
    if kind == "one class":
        labels[:] = 1
    if kind == "three rows":
        logits, labels, weights = np.array([-1.0, 0.0, 1.0]), np.array([0.0, 1.0, 0.0]), np.ones(3)
    if kind == "ties":
        logits = np.round(logits)
    if kind == "far":
        logits = rng.choice([-1000.0, 1000.0, -80.0, 80.0, 0.0], NUM_ROWS)
    if kind == "mixed":
        weights = rng.choice([1e-12, 1.0, 1e12], NUM_ROWS)
    if kind == "falling":
        labels = (rng.random(NUM_ROWS) < sigmoid(-logits)).astype(float)
    if kind == "soft":
        labels = rng.random(NUM_ROWS)
    return logits.astype("float32").astype(float), labels, weights


KINDS = (
    *("separable", "constant", "one class", "three rows", "ties", "far"),
    *("mixed", "falling", "soft", *WEIGHTS),
)


def check(layer, kind, features=()):
    """Fits and checks; returns whether the fit was refused."""
    logits, labels, weights = attack(kind)
    columns = [{name: np.arange(len(logits)) % 7 for name in each} for each in features]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            summary = layer.fit(logits, labels, *columns, weights)
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
    # Open: neighbours in the last bit can fall by a few bits in a BetaCalibration.
    if not isinstance(layer, layers.HistogramBinning | layers.BetaCalibration):
        given = [{name: np.full(len(grid), 2) for name in each} for each in columns]
        curve = np.asarray(layer(grid, *given)).reshape(-1)
        assert (np.diff(curve) >= 0).all()
    return False


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", FORMS)
def test_calibrators(form, kind):
    if check(FORMS[form](), kind):
        assert kind not in ("soft", "ties", "many", "falling")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", HEADS)
def test_field_heads(form, kind):
    check(HEADS[form](), kind, features=[["id"]])


def test_weights_beside_huge_ones_share_the_last_bin():
    for seed in range(40):
        rng = np.random.default_rng(seed)
        logits, weights = rng.normal(size=200), rng.choice([1e-12, 1.0, 1e12], 200)
        layers.HistogramBinning().fit(logits, rng.random(200) < 0.4, weights)
