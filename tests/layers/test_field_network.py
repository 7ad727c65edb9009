"""FieldNetwork, the network over the fields."""

import keras
import numpy as np
import pytest

from backends import HAS_FLOAT64, ON_TENSORFLOW, dtype_of, gradients_by_weights
from keras_calibration.layers import FieldNetwork


def model_of(network, features):
    inputs = {
        name: keras.Input(
            (), dtype="string" if values.dtype.kind in "UO" else dtype_of(values), name=name
        )
        for name, values in features.items()
    }
    return keras.Model(inputs, network(inputs))


def some_features(num_rows=200):
    generator = np.random.default_rng(0)
    age = generator.exponential(30, num_rows).astype(np.float32)
    age[::7] = np.nan
    site = generator.integers(0, 6, num_rows)  # 5 is outside
    city = generator.choice(["rome", "oslo", "lima", "?"], num_rows)
    if not ON_TENSORFLOW:  # which alone has strings
        city = np.array([["rome", "oslo", "lima", "?"].index(name) for name in city])
    return {"site": site, "city": city, "age": age}


def some_lookup():
    lookup = keras.layers.StringLookup()
    lookup.adapt(np.array(["rome", "oslo", "lima"]))
    return lookup


def some_network(**arguments):
    sizes = {"embedding_dim": 3, "hidden_units": (5, 4), "num_numeric_knots": 6, "seed": 0}
    sizes["num_coarse_knots"] = 3
    fields = {"site": 5, "city": some_lookup() if ON_TENSORFLOW else 3}
    return FieldNetwork(**{"fields": fields, "numeric": ("age",), **sizes, **arguments})


def scramble(network, seed=0):
    """Gives every trainable weight a random value, the output layer's too."""
    generator = np.random.default_rng(seed)
    for weight in network.trainable_weights:
        weight.assign(generator.normal(0, 1, weight.shape))
    return {
        weight.path.split("/", 1)[1]: keras.ops.convert_to_numpy(weight)
        for weight in network.weights
    }


def reference_hats(value, knots):
    """Hats on the distinct knots, each at its first occurrence, and the flag."""
    encoded = np.zeros(len(knots) + 1)
    if np.isnan(value):
        encoded[-1] = 1
        return encoded
    distinct, first = np.unique(knots, return_index=True)
    for place, unit in zip(first, np.eye(len(distinct)), strict=True):
        encoded[place] = np.interp(value, distinct, unit)
    return encoded


def test_equals_the_reference():
    network, features = some_network(), some_features()
    assert network.compute_output_shape({"site": (None,)}) == (None, 1)
    np.testing.assert_array_equal(network(features), np.zeros((200, 1)))
    network.adapt(features)
    np.testing.assert_array_equal(network(features), np.zeros((200, 1)))
    weights = scramble(network)
    vocabulary = {number: number for number in range(4)}
    if ON_TENSORFLOW:
        vocabulary = {w: row for row, w in enumerate(network.fields["city"].get_vocabulary())}
    expected = []
    for site, city, age in zip(*features.values(), strict=True):
        site_row = site if 0 <= site < 5 else 5
        city_row = 6 + vocabulary.get(city, 0)
        row = [weights["embeddings"][site_row], weights["embeddings"][city_row]]
        fine = reference_hats(age, weights["numeric_knots"][0])
        coarse = reference_hats(age, weights["coarse_knots"][0])[:-1]
        ramps = [coarse[place:].sum() for place in range(len(coarse))]
        hidden = np.concatenate([*row, fine, ramps])
        for layer in ("hidden_0", "hidden_1"):
            hidden = np.maximum(hidden @ weights[f"{layer}/kernel"] + weights[f"{layer}/bias"], 0)
        expected.append(hidden @ weights["output/kernel"] + weights["output/bias"])
    assert np.std(expected) > 0.1
    np.testing.assert_allclose(network(features), expected, rtol=1e-4, atol=1e-5)


def test_dropout_is_of_training_alone():
    network, features = some_network(), some_features()
    network.adapt(features)
    scramble(network)
    predicted = np.asarray(network(features))
    np.testing.assert_array_equal(network(features, training=False), predicted)
    trained = np.mean([network(features, training=True) for _ in range(20)], axis=0)
    assert np.std(trained - predicted) > 0.01


def test_ids_outside_the_vocabulary_share_one_row_that_learns():
    network = FieldNetwork({"site": 4, "device": 2}, embedding_dim=2, regularization=0.0, seed=0)
    network.build()
    scramble(network)
    outside = np.array([-1, 4, 10**9, 10**12, -(2**40), 2**32])
    if not HAS_FLOAT64:  # nor int64: ids are cut to 32 bits before the layer sees them
        outside = np.array([-1, 4, 10**9, 2**31 - 1, -(2**31), 5])
    device = np.zeros(len(outside), int)
    received = np.asarray(network({"site": outside, "device": device}))
    np.testing.assert_array_equal(received, received[:1].repeat(len(outside), axis=0))
    floats = np.array([np.nan, np.inf, -1e30, 4.0, 1e19, -1.0])
    np.testing.assert_array_equal(network({"site": floats, "device": device}), received)
    inside = np.asarray(network({"site": np.arange(4), "device": np.zeros(4, int)}))
    assert len(np.unique(np.r_[inside, received[:1]])) == 5
    gradient = gradients_by_weights(network, {"site": outside, "device": device})[0]
    touched = np.flatnonzero(np.abs(gradient).sum(axis=1))
    # "other" of site, and the first device, whose rows begin after it.
    np.testing.assert_array_equal(touched, [4, 5])


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("lookup", "values", "outside"),
    [
        (lambda: keras.layers.StringLookup(vocabulary=["a", "b"]), ["a", "b"], ["c"]),
        (lambda: keras.layers.StringLookup(None, 0, vocabulary=["a", "b"]), ["a", "b"], None),
        (lambda: keras.layers.IntegerLookup(vocabulary=[70, -5]), [70, -5], [7]),
        (lambda: keras.layers.Hashing(num_bins=50), ["a", "b"], None),
        (lambda: keras.layers.Discretization([0.0, 1.0]), [0.5, -0.5], [2.0]),
    ],
)
def test_lookup_fields(lookup, values, outside, reload):
    lookup, values = lookup(), np.array(values)
    network = FieldNetwork({"z": lookup}, embedding_dim=2, seed=0)
    network({"z": values})
    scramble(network)
    received = np.asarray(network({"z": values}))
    assert received[0] != received[1]
    np.testing.assert_array_equal(network({"z": values[:, None]}), received)
    if outside is not None:
        assert np.asarray(network({"z": np.array(outside)}))[0] not in received
    restored = reload(model_of(network, {"z": values}))
    np.testing.assert_array_equal(restored({"z": keras.ops.convert_to_tensor(values)}), received)


def test_adapt_and_call_on_numbers_that_are_near_or_huge_in_float32():
    network = FieldNetwork({}, ("time",), num_numeric_knots=8, seed=0)
    seconds = 1.7e9 + np.arange(100.0)  # one value in float32, or two
    network.adapt({"time": np.r_[seconds, 1e300, np.inf]})
    scramble(network)
    lowest = -1e300 if HAS_FLOAT64 else -1e38
    received = np.asarray(network({"time": np.r_[seconds, 0, 1e12, lowest].astype("float64")}))
    assert np.isfinite(received).all()
    assert np.ptp(received) < 50


def test_regularization_has_its_value_once_the_number_of_rows_is_known():
    network, features = some_network(regularization=3.0), some_features()
    network(features)
    weights = scramble(network)
    network(features)
    assert sum(map(float, network.losses)) == 0
    assert not network.built or float(network._num_rows) == 0
    network.adapt(features)
    network(features)
    squares = sum(
        (weights[name].astype(float) ** 2).sum()
        for name in ("embeddings", "hidden_0/kernel", "hidden_1/kernel")
    )
    expected = 3.0 / 2 * squares / 200
    assert sum(map(float, network.losses)) == pytest.approx(expected, rel=1e-5)
    free = some_network(regularization=0)
    free.adapt(features)
    free(features)
    assert sum(map(float, free.losses)) == 0
