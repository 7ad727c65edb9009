"""Hostile rows for every direct fit: finite, rising, no worse than the identity, or an error."""

import warnings

import numpy as np
import pytest
from scipy import special

from every_head import HEADS, NUM_CLASSES, NUM_SITES, has_classes
from keras_calibration import layers

pytestmark = pytest.mark.slow

NUM_ROWS = 300
FORMS = {
    **{name: make for name, (make, _) in HEADS.items() if not has_classes(name)},
    "ILPS, paper": layers.ILPS.from_paper,
    "isotonic, flat steps": lambda: layers.IsotonicRegression(keep_ranking=False),
}
CLASS_FORMS = {name: make for name, (make, _) in HEADS.items() if has_classes(name)}
# Whose fits train, of which a few kinds are enough.
TRAINED = [name for name in FORMS if name in ("NeuralCalibration", "BoostedTrees")]
# Heads of fields, which may refuse any rows; a head of a network and a mean of heads among them.
OF_FIELDS = [name for name in FORMS if "Field" in name or name == "BlendedHead"]
CALIBRATORS = [name for name in FORMS if name not in (*OF_FIELDS, *TRAINED)]
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


def fitted(layer, rows, features=None):
    """The summary of the fit, or None if it is refused by an error of this package."""
    logits, labels, weights = rows
    settings = layers.FitSettings(max_epochs=2, batch_size=64, folds=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return layer.fit(logits, labels, features, weights, settings=settings)
        except ValueError as error:
            if "Received" not in str(error):  # not one of ours, which say what to do
                raise
            return None


def check(layer, kind):
    """Fits and checks; returns whether the fit was refused."""
    logits, labels, weights = rows = attack(kind, 1)
    site = np.arange(len(logits)) % NUM_SITES
    features = {"site": site, "price": np.cos(site).astype("float32")}
    summary = fitted(layer, rows, features)
    if summary is None:
        return True
    after = np.asarray(layer(logits.astype("float32"), features), float).reshape(-1)
    assert np.isfinite(after).all()

    def log_loss(logits):
        losses = (1 - labels) * np.logaddexp(0, logits) + labels * np.logaddexp(0, -logits)
        return np.average(losses, weights=weights)

    received, before = log_loss(after), log_loss(logits)
    assert received <= before + 1e-6 * max(1, before)
    assert summary.log_loss_in_sample == pytest.approx(received, rel=1e-4, abs=1e-6)
    assert summary.log_loss_before == pytest.approx(before, rel=1e-5, abs=1e-6)
    # Beside the rows, neighbours in the last bit too.
    grid = np.r_[np.linspace(logits.min() - 2, logits.max() + 2, 2000), logits].astype("float32")
    grid = np.sort(np.r_[grid, np.nextafter(grid, np.float32(np.inf))])
    grid_features = {"site": np.full(len(grid), 2), "price": np.ones(len(grid), "float32")}
    assert (np.diff(np.asarray(layer(grid, grid_features)).reshape(-1)) >= 0).all()
    return False


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", CALIBRATORS)
def test_calibrators(form, kind):
    refused = check(FORMS[form](), kind)
    assert not (refused and kind in ("soft", "ties", "many", "falling", "past all bins"))


# A common factor of the weights changes nothing: a contract of every head.
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in WEIGHTS])
@pytest.mark.parametrize("form", OF_FIELDS)
def test_field_heads(form, kind):
    check(FORMS[form](), kind)


@pytest.mark.parametrize("kind", ["separable", "far", "huge"])
@pytest.mark.parametrize("form", TRAINED)
def test_heads_that_are_trained(form, kind):
    check(FORMS[form](), kind)


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
    assert summary.log_loss_in_sample == pytest.approx(received, rel=1e-4, abs=1e-6)
