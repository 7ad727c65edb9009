"""A fit is a value: the head stays as it is until `assign`, and then computes what the fit does."""

import keras
import numpy as np
import pytest

from every_head import HEADS, NUM_CLASSES, NUM_SITES, SITE, has_classes
from keras_calibration import layers
from keras_calibration._rows.door import Given
from keras_calibration._rows.rows import Rows
from keras_calibration.layers.fits import as_fit, fit_to, heads_in, rows_to_fit
from keras_calibration.testing import check_head
from tiers import slow_except

NUM_ROWS = 2_000
RNG = np.random.default_rng(0)
LOGITS = RNG.normal(-0.5, 1.5, NUM_ROWS).astype("float32").astype("float64")
FEATURES = {
    "site": RNG.integers(0, NUM_SITES, NUM_ROWS),
    "price": RNG.normal(size=NUM_ROWS).astype("float32"),
}
TRUE = 0.6 * LOGITS + 1.5 * FEATURES["site"] - 3 + 0.9 * FEATURES["price"]
LABELS = (RNG.random(NUM_ROWS) < 1 / (1 + np.exp(-TRUE))).astype("float64")
CLASS_LOGITS = RNG.normal(0, 1.5, (NUM_ROWS, NUM_CLASSES)).astype("float32").astype("float64")
CLASSES = np.argmax(0.6 * CLASS_LOGITS + RNG.gumbel(size=CLASS_LOGITS.shape), axis=1)
HOSTILE = np.float32([0, -0.0, 1e-6, -1e-6, 5, -5, 36.7, -36.7, 80, -80, 1e4, -1e4, 1e30, -1e30])
UNKNOWN_IDS = [-1, NUM_SITES, 99, 2**31 - 1]
HOSTILE_PRICES = np.float32([np.nan, 1e30, -1e30, np.inf, -np.inf, 0, -0.0])
# Two epochs at this rate are enough for a network that is kept.
SETTINGS = layers.FitSettings(folds=2, max_epochs=2, learning_rate=0.05)


def network(*numeric):
    return layers.FieldNetwork(SITE, numeric, embedding_dim=2, hidden_units=(4,), dropout=0, seed=0)


@keras.saving.register_keras_serializable(package="tests")
class Around(layers.Head):
    """A head of a user around another one, whose fit is that of its part."""

    draws_by_chance = True

    def __init__(self, inner, **kwargs):
        super().__init__(**kwargs)
        self.inner = inner

    def get_config(self):
        return {**super().get_config(), "inner": keras.saving.serialize_keras_object(self.inner)}

    def parts(self):
        return [self.inner]

    def build(self, logits_shape=None, features_shape=None):
        self.inner.ensure_built(logits_shape, features_shape)

    def call(self, logits, features=None):
        return self.inner(logits, features)

    def fitted(self, rows, settings, start=None):
        return self.fit_of(rows, {}, [self.inner.fitted(rows, settings)])


MAKERS = {name: make for name, (make, _) in HEADS.items()} | {
    "ILPS, constant": layers.ILPS.from_paper,
    "ILPS, penalty": lambda: layers.ILPS(20, monotonic="penalty"),
    "FieldBias, numbers": lambda: layers.FieldBias({}, numeric=["price"]),
    "FieldBias, of a blend": lambda: layers.FieldBias(
        SITE, layers.BlendedHead([layers.PlattScaling(), layers.IsotonicRegression()])
    ),
    "IsotonicRegression, flat": lambda: layers.IsotonicRegression(keep_ranking=False),
    "BoostedTrees, alone": lambda: layers.BoostedTrees(SITE, ["price"], layers.ILPS(5), 16),
    "NeuralCalibration, members": lambda: layers.NeuralCalibration(
        layers.PlattScaling(), network("price"), num_members=2
    ),
    "NeuralCalibration, network": lambda: layers.NeuralCalibration(None, network()),
    "a head of a user": lambda: Around(
        layers.NeuralCalibration(layers.PlattScaling(), network(), num_members=2)
    ),
    "BlendedHead, of blends": lambda: layers.BlendedHead(
        [layers.BlendedHead([layers.ILPS(5), layers.FieldILPS(SITE)]), layers.FieldBias(SITE)],
        [0.5, 0.3],
    ),
    "BlendedHead, classes": lambda: layers.BlendedHead(
        [layers.TemperatureScaling(), layers.VectorScaling(NUM_CLASSES)]
    ),
}


def rows_for(head, name, part=slice(None)):
    """Rows of a fit of the head."""
    logits, labels = (CLASS_LOGITS, CLASSES) if has_classes(name) else (LOGITS, LABELS)
    features = {key: column[part] for key, column in FEATURES.items()}
    return rows_to_fit(head, Given(logits[part], labels[part], columns=features))


_fits = {}


def fit_of(name):
    """The fit to all rows, computed once."""
    if name not in _fits:
        head = MAKERS[name]()
        _fits[name] = fit_to(head, rows_for(head, name), SETTINGS)
    return _fits[name]


def called(head, logits, features):
    output = keras.ops.convert_to_numpy(head(logits.astype("float32"), features))
    return output.astype("float64").reshape(logits.shape)


def built(name):
    head = MAKERS[name]()
    rows = rows_for(head, name)
    called(head, rows.logits, rows.features)
    return head


def neighbours(values):
    """Numbers of float32, and the next ones below and above."""
    values = np.float32(values).reshape(-1)
    return np.concatenate([values, *(np.nextafter(values, np.float32(end)) for end in (-9e9, 9e9))])


def hostile_rows(head, name):
    """Logits and features at knots and thresholds, far away, twice, and unknown."""
    if has_classes(name):
        logits = np.stack([np.roll(HOSTILE, shift) for shift in range(NUM_CLASSES)], axis=1)
        logits = np.concatenate([CLASS_LOGITS, np.tile(logits, (10, 1))])
        return logits.astype("float64"), {}
    parts = [part for part in heads_in(head) if hasattr(part, "_thresholds")]
    places = [np.array(part._thresholds) for part in parts]
    knots = [part.curve()[0] for part in heads_in(head) if part.curve() is not None]
    ends = np.unique(
        neighbours(np.concatenate([x.reshape(-1) for x in [np.zeros(1), *places, *knots]]))
    )
    logits = np.concatenate([LOGITS, np.tile(HOSTILE, 10), ends, LOGITS[:100], ends[::-1]])
    generator, number = np.random.default_rng(1), len(logits)
    site = generator.integers(0, NUM_SITES, number)
    price = np.resize(neighbours(np.concatenate([FEATURES["price"][:50], ends])), number)
    site[::5] = generator.choice(UNKNOWN_IDS, len(site[::5]))
    price[::7] = generator.choice(HOSTILE_PRICES, len(price[::7]))
    logits = logits.astype("float64")
    logits[::3] *= 1 + 3e-8  # numbers that float32 does not have
    return logits, {"site": site, "price": price}


@pytest.mark.parametrize("name", MAKERS)
def test_the_call_of_a_head_is_its_fit(name):
    head = built(name)
    head.assign(fit_of(name))
    logits, features = hostile_rows(head, name)
    computed = fit_of(name).logits(Rows(logits, None, None, features))
    assert computed.dtype == "float64"
    assert np.isfinite(computed).all()
    apart = np.abs(called(head, logits, features) - computed) / np.maximum(1, np.abs(computed))
    assert apart.max() <= 1e-6


def test_the_networks_and_trees_of_these_tests_are_kept():
    networks = [fit_of(name).summary for name in MAKERS if "Neural" in name and "alone" not in name]
    assert all(summary.network_kept for summary in networks)
    trees = [fit_of(name).summary for name in MAKERS if name.startswith("BoostedTrees")]
    assert all(summary.num_iterations > 0 for summary in trees)


@pytest.mark.parametrize(
    "name", slow_except(["BetaCalibration", "FieldBias, curve", "VectorScaling"], MAKERS)
)
def test_every_head_keeps_what_is_asked_of_a_users(name):
    features = {"site": range(NUM_SITES), "price": np.linspace(-2, 3, 50)}
    num_classes = NUM_CLASSES if has_classes(name) else None
    check_head(MAKERS[name], features, num_classes, export=False)


def test_a_head_may_stay_as_it_is_in_a_blend():
    """As the head of a model does, beside new ones."""
    name = "NeuralCalibration, members"
    present = MAKERS[name]()
    rows = rows_for(present, name)
    present(LOGITS[:1], rows.take(np.arange(1)).features)
    present.assign(fit_of(name))
    blend = layers.BlendedHead([present, layers.PlattScaling()])
    fits = [as_fit(present, rows), fit_to(layers.PlattScaling(), rows)]
    before = present.get_weights()
    blend.assign(blend.blend_of(rows, fits, np.array([0.25])))
    for weight, expected in zip(present.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, expected)
    assert present.fit_summary is fit_of(name).summary
    expected = 0.5 * (fits[0].logits(rows) + fits[1].logits(rows)) + 0.25
    called = keras.ops.convert_to_numpy(blend(rows.logits, rows.features))
    np.testing.assert_allclose(called[:, 0], expected, atol=1e-5)
