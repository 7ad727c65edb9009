"""Click models: their parts against loops in NumPy, their sizes, and that they learn."""

import itertools

import keras
import numpy as np
import pytest
from click_models import ARCHITECTURES, ModelOptions
from click_models.dcn_mix import LowRankCrossMixture
from click_models.deepfm import PairwiseProducts
from click_models.xdeepfm import CompressedInteraction

from keras_calibration.metrics import LogitAUC

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(5)


def randomize(layer):
    """Gives every weight a value of its own, also the biases, as float64 arrays by name."""
    values = {}
    for variable in layer.weights:
        value = RNG.normal(size=variable.shape).astype("float32")
        variable.assign(value)
        values[variable.name] = value.astype(np.float64)
    return values


def test_products_of_a_factorization_machine():
    x = RNG.normal(size=(5, 4, 3))
    expected = [sum(a @ b for a, b in itertools.combinations(row, 2)) for row in x]
    products = keras.ops.convert_to_numpy(PairwiseProducts()(x.astype("float32")))
    np.testing.assert_allclose(products[:, 0], expected, rtol=1e-4, atol=1e-5)


def test_compressed_interaction_is_its_equation():
    x = RNG.normal(size=(3, 4, 5))
    layer = CompressedInteraction((6, 2))
    layer(x.astype("float32"))
    kernels = list(randomize(layer).values())
    expected = []
    for first in x:
        rows, pooled = first, []
        for kernel in kernels:
            new = np.zeros((kernel.shape[1], 5))
            for h, i, j in np.ndindex(kernel.shape[1], len(rows), len(first)):
                new[h] += kernel[i * len(first) + j, h] * rows[i] * first[j]
            new = np.maximum(new, 0)
            # The first three of six rows go on; of the last layer all are summed.
            rows, summed = (new[:3], new[3:]) if kernel is kernels[0] else (new, new)
            pooled += [row.sum() for row in summed]
        expected.append(pooled)
    interactions = keras.ops.convert_to_numpy(layer(x.astype("float32")))
    np.testing.assert_allclose(interactions, expected, rtol=1e-4, atol=1e-4)


def test_a_mixture_of_low_rank_crosses_is_its_equation():
    first, crossed = RNG.normal(size=(2, 6, 5))
    layer = LowRankCrossMixture(num_experts=3, rank=2)
    arguments = (first.astype("float32"), crossed.astype("float32"))
    layer(*arguments)
    w = randomize(layer)
    expected = []
    for x0, x in zip(first, crossed, strict=True):
        gates = np.exp(x @ w["gate"])
        gates /= gates.sum()
        output = x.copy()
        for i in range(3):
            code = np.tanh(np.tanh(x @ w["down"][i]) @ w["inner"][i])
            output += gates[i] * x0 * (code @ w["up"][i] + w["bias"])
        expected.append(output)
    mixtures = keras.ops.convert_to_numpy(layer(*arguments))
    np.testing.assert_allclose(mixtures, expected, rtol=1e-4, atol=1e-4)


def parity_rows(num_rows):
    """Labels that say whether the sum of two columns is odd, which no sum of weights says."""
    rng = np.random.default_rng(1)
    ids = np.stack([rng.integers(0, n, num_rows) for n in (4, 4, 3)], axis=1).astype(np.int32)
    odd = (ids[:, 0] + ids[:, 1]) % 2 == 1
    return ids, np.where(rng.random(num_rows) < 0.9, odd, ~odd).astype(np.float32)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_interaction_is_learned(name):
    keras.utils.set_random_seed(0)
    model = ARCHITECTURES[name](ModelOptions((4, 4, 3), 1, 8, (16, 8)))
    model.compile(
        optimizer=keras.optimizers.Adam(1e-2),
        loss=keras.losses.BinaryCrossentropy(from_logits=True),
        metrics=[LogitAUC(from_logits=True, name="auc")],
        jit_compile=False,
    )
    model.fit(*parity_rows(4000), batch_size=100, epochs=8, verbose=0)
    ids, labels = parity_rows(1000)
    # 0.9 is the best possible.
    assert model.evaluate(ids, labels, batch_size=1000, verbose=0, return_dict=True)["auc"] > 0.85
