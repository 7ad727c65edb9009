"""The head as it is served gives what the head gives, whatever the row."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from keras import ops

from keras_calibration.layers import (
    ILPS,
    BlendedHead,
    BoostedTrees,
    FieldBias,
    FieldILPS,
    FieldNetwork,
    NeuralCalibration,
    PlattScaling,
)
from keras_calibration.layers.served_curve import ServedCurve
from keras_calibration.layers.served_network import ServedNetwork

pytestmark = pytest.mark.tensorflow

WORDS = ["news", "mail", "shop"]


def lookup():
    return keras.layers.StringLookup(vocabulary=WORDS)


def rows(num_rows, seed=0):
    """Rows with ids beyond every table and every dtype, missing and infinite numbers."""
    rng = np.random.default_rng(seed)
    features = {
        "site": rng.integers(-2, 12, num_rows).astype("int32"),
        "class": rng.integers(-1, 7, (num_rows, 1)),
        "code": rng.integers(0, 5, num_rows).astype("float32"),
        "word": rng.choice([*WORDS, "other", ""], num_rows).astype(object),
        "price": rng.normal(size=num_rows).astype("float32"),
        "few": rng.integers(0, 3, num_rows).astype("float32") * 1e4,
    }
    features["class"][:2, 0] = [2**40 + 3, -(2**40)]
    features["code"][:3] = [np.nan, np.inf, 1e20]
    features["price"][:6] = [np.nan, np.inf, -np.inf, 3e38, -3e38, 0.0]
    features["few"][::5] = np.nan
    logits = 3 * rng.normal(size=num_rows).astype("float32")
    chance = 1 / (1 + np.exp(-logits - (features["site"] > 4)))
    return logits, features, rng.random(num_rows) < chance


def network(fields=(), numeric=(), **arguments):
    vocabularies = {"site": 9, "class": 5, "code": 4, "word": lookup()}
    fields = {name: vocabularies[name] for name in fields}
    return FieldNetwork(fields, numeric, embedding_dim=3, seed=0, **arguments)


def strict():
    return ILPS(smoothness="auto", monotonic="strict")


HEADS = {
    "curve": lambda: ILPS(7),
    "paper": lambda: NeuralCalibration(ILPS.from_paper()),
    "fields": lambda: NeuralCalibration(ILPS(), network(["site", "class", "code", "word"])),
    "one field": lambda: NeuralCalibration(PlattScaling(), network(["class"])),
    "numeric": lambda: NeuralCalibration(strict(), network((), ["few", "price"])),
    "no ramps": lambda: NeuralCalibration(
        strict(), network(["word", "site"], ["price"], num_coarse_knots=0, num_numeric_knots=9)
    ),
    "no hidden layer": lambda: NeuralCalibration(
        ILPS(), network(["site"], ["few"], hidden_units=())
    ),
    "members": lambda: NeuralCalibration(
        strict(), network(["class", "word", "site"], ["price", "few"]), num_members=3
    ),
    "field_bias": lambda: FieldBias({"site": 9, "word": lookup()}, strict()),
    "field_ilps": lambda: FieldILPS({"class": 5, "site": 9}, ILPS(), num_knots=5),
    "trees": lambda: BoostedTrees({"site": 9, "word": lookup()}, ["price"]),
    "weighted": lambda: BlendedHead(
        [ILPS(5), FieldBias({"site": 9}, strict()), BoostedTrees({"site": 9}, ["price"])],
        [0.2, 0.3, 0.4],
    ),
    "blend": lambda: BlendedHead(
        [
            FieldBias({"site": 9}, strict()),
            ILPS(5),
            NeuralCalibration(ILPS(), network(["site"], ["price"])),
        ]
    ),
}


@functools.cache
def learnt(kind, seed=0):
    """A fitted head whose networks are far from zero, as after training."""
    head = HEADS[kind]()
    logits, features, labels = rows(600, seed)
    rng = np.random.default_rng(seed)
    for part in getattr(head, "heads", [head]):
        if not isinstance(part, NeuralCalibration):
            part.fit(logits, labels, features)
            continue
        part.calibrator.fit(logits, labels)
        for member in part.members:
            member.adapt(features)
            for weight in member.trainable_weights:
                weight.assign_add(0.2 * rng.normal(size=weight.shape))
    return head


def outputs(head, logits, features):
    return ops.convert_to_numpy(head(logits, features)).astype("float64")


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("kind", HEADS)
def test_it_gives_what_the_head_gives(kind):
    head = learnt(kind)
    served = head.served()
    logits, features, _ = rows(1000, seed=1)
    logits[:2] = [np.inf, -np.inf]
    expected, received = outputs(head, logits, features), outputs(served, logits, features)
    np.testing.assert_allclose(received, expected, rtol=2e-6, atol=2e-6)
    one = {name: column[7:8] for name, column in features.items()}
    np.testing.assert_allclose(outputs(served, logits[7:8], one), expected[7:8], atol=2e-6)
    assert np.ptp(expected[2:].reshape(-1) - logits[2:]) > 0.1
    assert getattr(served, "feature_names", ()) == getattr(head, "feature_names", ())


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("kind", HEADS)
def test_another_fit_has_weights_of_the_same_shapes(kind):
    first, second = (learnt(kind, seed).served() for seed in (0, 1))
    shapes = [tuple(weight.shape) for weight in first.weights]
    assert shapes == [tuple(weight.shape) for weight in second.weights]


@pytest.mark.parametrize("monotonic", ["penalty", "strict"])
@pytest.mark.parametrize("extrapolation", ["linear", "constant"])
def test_a_curve_is_the_same_but_for_the_last_digits_and_never_falls(monotonic, extrapolation):
    curve = ILPS(13, monotonic=monotonic, extrapolation=extrapolation)
    logits, _, labels = rows(900)
    curve.fit(logits, labels)
    assert_served(curve, lambda served: served)
    # A compiler may round otherwise.
    assert_served(curve, lambda served: tf.function(served, jit_compile=True))


@settings(max_examples=50)
@given(
    gaps=st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=12),
    rises=st.lists(st.floats(0, 1e4) | st.floats(0, 1e-6), min_size=13, max_size=13),
    first=st.floats(-1e3, 1e3),
)
def test_a_curve_of_any_lines_never_falls(gaps, rises, first):
    knots = first + np.cumsum([0.0, *gaps], dtype="float32")
    assume(np.all(np.diff(knots) > 0))
    curve = ILPS(len(knots), knots=knots.tolist(), monotonic="penalty")
    values = first + np.cumsum(rises[: len(knots)])
    curve.build((None, 1))
    (weight,) = curve.trainable_weights
    weight.assign(values.astype("float32"))
    assert_served(curve, lambda served: served)


def assert_served(curve, run):
    knots = ops.convert_to_numpy(curve.get_knots())
    spread = np.ptp(knots)
    around = np.random.default_rng(0).normal(size=20_000) * spread + np.mean(knots)
    beside = [np.nextafter(knots, end, dtype="float32") for end in (-np.inf, np.inf)]
    many = np.sort(np.concatenate([around.astype("float32"), knots, *beside]))
    many = np.append(many, np.float32([np.inf, np.nan, -np.inf]))
    expected = ops.convert_to_numpy(curve(many))
    served = ServedCurve(curve)
    received = ops.convert_to_numpy(run(served)(many))
    size = np.abs(expected[np.isfinite(expected)]).max()
    np.testing.assert_allclose(received, expected, rtol=1e-6, atol=1e-6 * size)
    assert not np.any(np.diff(received[:-3]) < 0)
    assert served(many[:5, None]).shape == (5, 1)


def test_columns_of_one_value_or_none_are_served():
    member = network((), ["price", "few"])
    constant = np.full(50, 2.5, "float32")
    member.adapt({"price": constant, "few": np.full(50, np.nan, "float32")})
    for weight in member.trainable_weights:
        weight.assign(np.random.default_rng(0).normal(size=weight.shape))
    values = np.array([-np.inf, -1, 0, 2.5, 3, np.inf, np.nan], "float32")
    features = {"price": values, "few": values}
    received = ops.convert_to_numpy(ServedNetwork([member])(features))
    expected = ops.convert_to_numpy(member(features))
    np.testing.assert_allclose(received, expected, rtol=2e-6, atol=2e-6)


class Shifted(ILPS):
    def calibrate(self, logits):
        return super().calibrate(logits) + 1.0


def test_layers_of_others_stay_as_they_are():
    inputs = {"price": keras.Input((), name="price")}
    own = keras.Model(inputs, keras.layers.Dense(1)(inputs["price"][:, None]))
    one = NeuralCalibration(Shifted(), own).served()
    assert one.field_network is own
    assert isinstance(one.calibrator, Shifted)
    several = NeuralCalibration(ILPS(), own, num_members=2)
    assert several.served() is several
    shifted = Shifted()
    assert shifted.served() is shifted
    for kind in (FieldBias, FieldILPS):
        own_kind = type("Own", (kind,), {})({"site": 3}, ILPS())
        assert own_kind.served() is own_kind
