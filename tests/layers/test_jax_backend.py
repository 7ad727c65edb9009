"""The mathematics and the layers on Keras' JAX backend, in a process of their own."""

import os
import subprocess
import sys
import textwrap

SCRIPT = """
import bisect

import jax
import jax.numpy as jnp
import keras
import numpy as np

from keras_calibration import ops as kernels
from keras_calibration.layers import ILPS, FieldNetwork, NeuralCalibration

assert keras.backend.backend() == "jax"
generator = np.random.default_rng(0)
logits = generator.normal(-1, 3, 500).astype(np.float32)
labels = (generator.random(500) < 0.3).astype(np.float32)
weights = generator.choice([1.0, 2.0], 500).astype(np.float32)


def both(function, *arrays):
    plain, compiled = function(*arrays), jax.jit(function)(*arrays)
    np.testing.assert_allclose(plain, compiled, rtol=1e-5, atol=1e-5)
    return np.asarray(plain)


def sigmoid(values):
    return 1 / (1 + np.exp(-values.astype(float)))


# Curve and its gradient
knots, values = np.float32([-3, -1, 0.5, 4]), np.float32([-2, -2, 1, 3])
segment = np.clip(np.searchsorted(knots, logits, side="right") - 1, 0, 2)
share = (logits - knots[segment]) / (knots[segment + 1] - knots[segment])
curve = values[segment] + share * (values[segment + 1] - values[segment])
received = both(kernels.piecewise_linear, logits, knots, values)
np.testing.assert_allclose(received, curve, rtol=1e-5, atol=1e-5)
flat = both(lambda *a: kernels.piecewise_linear(*a, "constant"), logits, knots, values)
np.testing.assert_allclose(flat, np.interp(logits, knots, values), rtol=1e-5, atol=1e-5)
expected = np.zeros(4)
np.add.at(expected, segment, 1 - share)
np.add.at(expected, segment + 1, share)
gradient = jax.grad(lambda v: kernels.piecewise_linear(logits, knots, v).sum())(values)
np.testing.assert_allclose(gradient, expected, rtol=1e-4)
np.testing.assert_allclose(both(kernels.slopes, knots, values), np.diff(values) / np.diff(knots))
assert float(kernels.decrease_penalty(jnp.array([0.0, 2.0, 1.5]))) == 0.5
hats = both(kernels.hat_basis, np.float32([1.5, np.nan, 9]), np.float32([1, 1, 2, 4]))
np.testing.assert_allclose(hats, [[0.5, 0, 0.5, 0], [0, 0, 0, 0], [0, 0, 0, 1]])

# Losses
expected = np.logaddexp(0, logits.astype(float)) - labels * logits.astype(float)
received = both(kernels.log_loss_from_logits, labels, logits)
np.testing.assert_allclose(received, expected, rtol=1e-4, atol=1e-6)
probabilities = np.float32([0, 1e-4, 0.3, 1, 2])
expected = [np.log(2.0**-126), np.log(1e-4 / 0.9999), np.log(0.3 / 0.7), np.log(2.0**24 - 1)]
received = both(kernels.logits_from_probabilities, probabilities)
np.testing.assert_allclose(received, [*expected, np.nan], rtol=1e-5)

# Histogram and bias; the second group has a NaN, the third no row
rows = np.r_[logits, np.float32([np.nan])]
group = np.r_[np.zeros(500), 1].astype(np.int32)
ones = np.ones(501, np.float32)
histogram = both(lambda *a: kernels.logit_histogram(*a, 3), rows, ones, group)
for rate in (0.01, 0.3, 0.95):
    clicks, no_clicks = np.float32([rate * 500, 0.5, 0]), np.float32([(1 - rate) * 500, 0.5, 0])
    bias = both(kernels.bias_root, histogram, clicks, no_clicks)
    np.testing.assert_allclose(sigmoid(logits + bias[0]).sum(), rate * 500, rtol=1e-4)
    assert np.isnan(bias[1:]).all()
sums = both(kernels.softplus_sum, histogram, np.zeros(3, np.float32))
np.testing.assert_allclose(sums[0], np.logaddexp(0, logits.astype(float)).sum(), rtol=1e-5)

# Fields and folds
ids = generator.integers(-2, 8, 500)
sums = both(
    lambda *a: kernels.field_sums(*a, num_values=5), labels, sigmoid(logits).astype("float32"),
    weights, ids,
)
for value in range(6):
    here = (ids == value) if value < 5 else (ids < 0) | (ids > 4)
    residual = weights * (labels - sigmoid(logits))
    expected = [residual[here].sum(), (weights * labels)[here].sum(), weights[here].sum()]
    np.testing.assert_allclose(sums[value, :3], expected, rtol=1e-4, atol=1e-4)
expected = np.abs(sums[:, 0]).sum() / sums[:, 2].sum()
np.testing.assert_allclose(kernels.field_ece(sums), expected, rtol=1e-5)


def hashed(number, seed):
    mixed = (number % 2**32) ^ (seed * 0x9E3779B9 % 2**32)
    mixed = (mixed ^ mixed >> 16) * 0x85EBCA6B % 2**32
    mixed = (mixed ^ mixed >> 13) * 0xC2B2AE35 % 2**32
    return ((mixed ^ mixed >> 16) >> 8) / 2**24


for seed in (0, 1, 12345):
    numbers = np.int32([0, 1, 7, -1, 2**31 - 1])
    received = both(lambda numbers: kernels.hashed_uniform(numbers, seed), numbers)
    np.testing.assert_array_equal(received, [hashed(int(n), seed) for n in numbers])

# The head: forward and gradient
features = {"site": np.int32(ids), "age": np.where(ids == 3, np.nan, logits).astype("float32")}
curve_layer = ILPS(6, "quantile", smoothness=0.0)
network = FieldNetwork({"site": 5}, ("age",), 2, (), 4, regularization=0.0, seed=0)
head = NeuralCalibration(curve_layer, network)
head.adapt(logits, features, labels)
received = head(logits, features)
np.testing.assert_allclose(received[:, 0], logits, rtol=1e-5, atol=1e-5)
head(logits, features)
values = 0.5 * curve_layer.get_knots() - 1
curve_layer._free_values.assign(values)


def loss(trainable):
    calibrated, _ = head.stateless_call(
        trainable, [v.value for v in head.non_trainable_variables], logits, features
    )
    return jnp.sum(kernels.log_loss_from_logits(labels, calibrated[:, 0]))


trainable = [v.value for v in head.trainable_variables]
gradients = dict(
    zip([v.path for v in head.trainable_variables], jax.grad(loss)(trainable), strict=True)
)
residual = sigmoid(0.5 * logits - 1) - labels
knots = curve_layer.get_knots().astype(float)
segment = np.clip(np.searchsorted(knots, logits, side="right") - 1, 0, 4)
share = (logits - knots[segment]) / (knots[segment + 1] - knots[segment])
expected = np.zeros(6)
np.add.at(expected, segment, residual * (1 - share))
np.add.at(expected, segment + 1, residual * share)
(received,) = (g for path, g in gradients.items() if path.endswith("/values"))
np.testing.assert_allclose(received, expected, rtol=1e-3, atol=1e-3)
(bias,) = (g for path, g in gradients.items() if path.endswith("output/bias"))
np.testing.assert_allclose(bias, [residual.sum()], rtol=1e-4)
print("all is well")
"""


def test_ops_and_layers_on_jax():
    environment = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    script = textwrap.dedent(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.endswith("all is well\n")
