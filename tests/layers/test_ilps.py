"""ILPS, the trainable isotonic curve."""

import itertools

import keras
import numpy as np
import pytest

from backends import JIT_COMPILE
from keras_calibration.layers import ILPS

KNOTS = ["balanced", "quantile", "sigmoid", [-6.0, -1.0, 0.5, 3.0]]
FORMS = list(itertools.product(KNOTS, ["penalty", "strict"], ["linear", "constant"]))


def model_of(layer):
    inputs = keras.Input((1,), name="logit")
    return keras.Model(inputs, keras.layers.Activation("sigmoid")(layer(inputs)))


def set_curve(layer, values):
    """Sets the free values of the penalised form."""
    layer.get_values()  # builds
    weights = {weight.name: weight for weight in layer.weights}
    weights["values"].assign(values)


def low_click_rate():
    generator = np.random.default_rng(1)
    logits = generator.normal(-8, 1, 3000)
    return logits, (generator.random(3000) < 1 / (1 + np.exp(-2 - logits))).astype(float)


# Start


def test_defaults_and_the_papers_form():
    default = ILPS().get_config()
    assert (default["num_knots"], default["knots"]) == (20, "balanced")
    assert (default["extrapolation"], default["monotonic"]) == ("linear", "penalty")
    assert (default["smoothness"], default["penalty"]) == (1.0, 1e-6)
    layer = ILPS.from_paper()
    expected = np.arange(1, 101) / 101
    np.testing.assert_allclose(1 / (1 + np.exp(-layer.get_knots())), expected, rtol=1e-5)
    config = layer.get_config()
    assert (config["extrapolation"], config["monotonic"]) == ("constant", "penalty")
    assert config["smoothness"] == 0
    other = ILPS.from_paper(num_knots=30, extrapolation="linear", name="paper")
    assert (len(other.get_knots()), other.extrapolation, other.name) == (30, "linear", "paper")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"knots": "median"}, "knots='median'"),
        ({"knots": [1.0]}, r"knots=\[1.0\]"),
        ({"knots": [1.0, 1.0]}, "strictly increasing"),
        ({"knots": [0.0, 1.0, np.nan]}, "finite logits"),
        ({"knots": [1e6, 1e6 + 1e-3]}, "strictly increasing"),  # equal in float32
        ({"num_knots": 1}, "num_knots=1"),
        ({"num_knots": 2.5}, "num_knots=2.5"),
        ({"extrapolation": "flat"}, "extrapolation='flat'"),
        ({"monotonic": "soft"}, "monotonic='soft'"),
        ({"smoothness": -1}, "smoothness=-1"),
        ({"smoothness": np.inf}, "smoothness=inf"),
        ({"penalty": np.nan}, "penalty=nan"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        ILPS(**arguments)


# Curve


@pytest.mark.parametrize("extrapolation", ["linear", "constant"])
def test_ends(extrapolation):
    layer = ILPS(knots=[0, 1, 2], extrapolation=extrapolation)
    set_curve(layer, [0, 2, 2.5])
    expected = [-6, 3.5] if extrapolation == "linear" else [0, 2.5]
    np.testing.assert_allclose(layer(np.float32([-3, 4])), expected)


def test_strict_never_falls_whatever_its_weights():
    generator = np.random.default_rng(2)
    grid = np.linspace(-20, 20, 4001, dtype=np.float32)
    for scale in (0.1, 3, 30):
        layer = ILPS(12, "sigmoid", monotonic="strict")
        layer.build()
        for weight in layer.trainable_weights:
            weight.assign(generator.normal(0, scale, weight.shape))
        curve = np.asarray(layer(grid), np.float64)
        assert np.isfinite(curve).all()
        # To the rounding of a float32.
        assert (np.diff(curve) >= -1e-6 * np.abs(curve).max()).all()
        assert np.diff(curve).max() > 0
        assert (np.diff(layer.get_values()) >= 0).all()


def test_logits_that_are_not_finite_are_not_hidden():
    received = ILPS()(np.float32([np.nan, np.inf, -np.inf, 1e30]))
    np.testing.assert_array_equal(np.isnan(received), [True, False, False, False])
    np.testing.assert_allclose(received[1:], np.float32([np.inf, -np.inf, 1e30]), rtol=1e-5)


# Losses


def test_penalty_is_added_to_the_losses():
    layer = ILPS(knots=[0, 1, 2, 3], penalty=2.5)
    set_curve(layer, [0, 2, 1.5, 1.25])
    layer(np.float32([0.5]))
    assert sum(map(float, layer.losses)) == pytest.approx(2.5 * 0.75)
    model = model_of(layer)
    model.compile(loss="binary_crossentropy")
    row = np.zeros((1, 1), np.float32), np.zeros((1, 1), np.float32)
    assert model.evaluate(*row, verbose=0) == pytest.approx(np.log(2) + 2.5 * 0.75, rel=1e-5)


def test_smoothness_prior_has_its_value_once_the_number_of_rows_is_known():
    layer = ILPS(knots=[-1, 0, 1, 3], smoothness=4.0)
    set_curve(layer, [-3, -1, 0, 4])  # slopes 2, 1, 2
    layer(np.float32([0.5]))
    assert sum(map(float, layer.losses)) == 0
    layer.adapt(np.linspace(-2, 2, 50))
    layer(np.float32([0.5]))
    assert sum(map(float, layer.losses)) == pytest.approx(4.0 / 2 * (1 + 1) / 50, rel=1e-5)
    strict = ILPS(knots=[-1, 0, 1, 3], smoothness=4.0, monotonic="strict")
    strict.adapt(np.linspace(-2, 2, 50))
    weights = {weight.name: weight for weight in strict.weights}
    weights["raw_slopes"].assign(np.log(np.expm1([2.0, 1.0, 2.0])) - np.log(np.e - 1))
    strict(np.float32([0.5]))
    assert sum(map(float, strict.losses)) == pytest.approx(4.0 / 2 * (1 + 1) / 50, rel=1e-4)


def test_values_that_cross_make_a_level_curve_and_are_penalised():
    layer = ILPS(knots=[0, 1, 2, 3], smoothness=0.0, penalty=2.0)
    set_curve(layer, [0, 2, 1, 4])
    np.testing.assert_array_equal(layer.get_values(), [0, 1.5, 1.5, 4])
    np.testing.assert_allclose(layer(np.float32([1, 1.5, 2, 3])), [1.5, 1.5, 1.5, 4])
    assert sum(map(float, layer.losses)) == 2.0
    set_curve(layer, [0.1, 0.2, 0.2, 4])
    np.testing.assert_array_equal(layer.get_values(), np.float32([0.1, 0.2, 0.2, 4]))


@pytest.mark.slow
@pytest.mark.parametrize(("penalty", "jit_compile"), [(0.0, JIT_COMPILE[0]), (1.0, True)])
def test_training_on_falling_labels_ends_level(clicks, jit_compile, penalty):
    logits, _ = clicks
    layer = ILPS(8, "quantile", smoothness=0.0, penalty=penalty)
    layer.adapt(logits)
    model = model_of(layer)
    model.compile(keras.optimizers.Adam(0.05), "binary_crossentropy", jit_compile=jit_compile)
    falling = np.where(logits < -2, 0.9, 0.1) > np.random.default_rng(3).random(logits.shape)
    model.fit(logits, falling.astype("float32"), 100, epochs=10, verbose=0)
    values = layer.get_values()
    assert (np.diff(values) >= 0).all()
    mean = np.log(falling.mean() / (1 - falling.mean()))
    np.testing.assert_allclose(values, mean, atol=1.0)  # no curve that rises is better


# Adapt


def class_balanced_quantiles(logits, labels, weights, num_knots):
    """The smallest logits up to which the mean share of clicks and non-clicks is (k - ½) / K."""
    knots = []
    for k in range(1, num_knots + 1):
        for logit in np.sort(logits):
            up_to = weights * (logits <= logit)
            share = (up_to @ labels) / (weights @ labels)
            share += (up_to @ (1 - labels)) / (weights @ (1 - labels))
            if share / 2 >= (k - 0.5) / num_knots - 1e-12:
                knots.append(logit)
                break
    return np.array(knots)


@pytest.mark.parametrize("weighted", [False, True])
def test_balanced_knots_are_class_balanced_quantiles(weighted):
    generator = np.random.default_rng(4)
    logits = generator.normal(-20, 30, 301)
    labels = (generator.random(301) < 0.1).astype(float)
    weights = generator.choice([0.0, 1.0, 2.0], 301) if weighted else None
    layer = ILPS(7)
    layer.adapt(logits[:, None], labels[:, None], sample_weight=weights)
    effective = np.ones(301) if weights is None else weights
    expected = class_balanced_quantiles(logits, labels, effective, 7)
    np.testing.assert_allclose(layer.get_knots(), expected, rtol=1e-6)
    assert layer.get_knots().dtype == np.float32


@pytest.mark.parametrize("knots", ["sigmoid", [-2.0, 0.0, 2.0]])
def test_given_knots_stay_and_the_rows_are_counted(knots):
    layer = ILPS(5, knots)
    before = layer.get_knots()
    layer.adapt(np.linspace(-30, 3, 77))
    np.testing.assert_array_equal(layer.get_knots(), before)
    number = {weight.name: float(weight) for weight in layer.weights if weight.name == "num_rows"}
    assert number == {"num_rows": 77}


@pytest.mark.parametrize("monotonic", ["penalty", "strict"])
def test_a_second_adapt_keeps_the_curve(monotonic):
    logits, labels = low_click_rate()
    layer = ILPS(20, monotonic=monotonic, knots="quantile")
    layer.adapt(logits)
    line = 0.5 * layer.get_knots() + 3
    layer._assign_values(line)
    layer.adapt(logits - 1.5, labels)
    grid = np.linspace(-20, 3, 100, dtype=np.float32)
    np.testing.assert_allclose(layer(grid), 0.5 * grid + 3, rtol=1e-4, atol=1e-4)
    bent = np.maximum(layer.get_knots(), -9)
    layer._assign_values(bent)
    layer.adapt(logits - 1.5, labels)
    grid = np.linspace(-12, -7, 100, dtype=np.float32)
    np.testing.assert_allclose(layer.get_values(), bent, atol=1e-4)


@pytest.mark.parametrize(
    ("knots", "arguments", "message"),
    [
        ("balanced", ([0.0, 1.0],), "because they place the knots"),
        ("balanced", ([0.0, 1.0], [1, 1]), "one class only"),
        ("balanced", ([0.0, 1.0], [1, 3]), r"Labels must be in \[0, 1\]"),
        ("quantile", ([],), "empty"),
        ("sigmoid", ([0.0, np.nan],), "finite"),
        ("quantile", ([0.0, 1.0], None, None, [1.0]), "same number of rows"),
        ("quantile", (np.zeros((3, 2)),), r"must have shape \(batch,\) or \(batch, 1\)"),
    ],
)
def test_adapt_refuses_bad_rows_and_leaves_the_layer_as_it_was(knots, arguments, message):
    layer = ILPS(4, knots)
    before = layer.get_knots()
    with pytest.raises(ValueError, match=message):
        layer.adapt(*arguments)
    np.testing.assert_array_equal(layer.get_knots(), before)


# Dtypes
