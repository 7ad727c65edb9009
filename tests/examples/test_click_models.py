"""Click models: their parts against loops in NumPy, their sizes, and that they learn."""

import doctest
import importlib
import itertools
import sys
from functools import partial
from pathlib import Path

import keras
import keras_rs
import numpy as np
import pytest

from keras_calibration import seeds
from keras_calibration.metrics import LogitAUC
from tiers import slow_except

sys.path.append(str(Path(__file__).parents[2] / "examples" / "calibrated_metric"))
from click_models import ARCHITECTURES, ModelOptions
from click_models.dcn import VectorCross
from click_models.dcn_mix import LowRankCrossMixture
from click_models.deepfm import PairwiseProducts
from click_models.xdeepfm import CompressedInteraction

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(5)
OPTIONS = ModelOptions((7, 5, 3, 6), num_numeric=1, embedding_dim=4, hidden_units=(6, 5))


def randomize(layer):
    """Gives every weight a value of its own, also the biases, as float64 arrays by name."""
    values = {}
    for variable in layer.weights:
        value = RNG.normal(size=variable.shape).astype("float32")
        variable.assign(value)
        values[variable.name] = value.astype(np.float64)
    return values


@pytest.mark.parametrize("name", [*ARCHITECTURES, "embedded"])
def test_examples_of_the_docstrings(name):
    module = importlib.import_module(f"click_models.{name}")
    assert doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE).failed == 0


def test_the_number_of_parameters():
    num_ids, columns, size = 21, 4, 4
    flat = columns * size
    hidden = (flat + 1) * 6 + (6 + 1) * 5
    cin = 16 * columns * columns + 16 * 8 * columns
    cross = 2 * (flat + flat)
    # V and U, C and gate of two experts of rank 8, and a bias.
    mix = 2 * (2 * 2 * flat * 8 + 2 * 8 * 8 + flat * 2 + flat)
    bottom = (1 + 1) * 16 + (16 + 1) * size
    # The pairs of three embeddings and the bottom vector, beside that vector.
    top = (size + 6 + 1) * 6 + (6 + 1) * 5 + 6
    expected = {
        "fnn": num_ids * (size + 1) + hidden + 5 + 1,
        "deepfm": num_ids * (size + 1) + hidden + 5 + 1,
        "xdeepfm": num_ids * (size + 1) + cin + hidden + 8 + 16 + 5 + 1,
        "dcn": num_ids * size + cross + hidden + flat + 5 + 1,
        "dcn_mix": num_ids * size + mix + hidden + flat + 5 + 1,
        "dlrm": 15 * size + bottom + top,
    }
    found = {name: build(OPTIONS).count_params() for name, build in ARCHITECTURES.items()}
    assert found == expected


def test_products_of_a_factorization_machine():
    x = RNG.normal(size=(5, 4, 3))
    expected = [sum(a @ b for a, b in itertools.combinations(row, 2)) for row in x]
    found = keras.ops.convert_to_numpy(PairwiseProducts()(x.astype("float32")))
    np.testing.assert_allclose(found[:, 0], expected, rtol=1e-4, atol=1e-5)


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
    found = keras.ops.convert_to_numpy(layer(x.astype("float32")))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


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
    found = keras.ops.convert_to_numpy(layer(*arguments))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_a_cross_of_a_vector_is_its_equation():
    first, crossed = RNG.normal(size=(2, 6, 5))
    layer = VectorCross()
    arguments = (first.astype("float32"), crossed.astype("float32"))
    layer(*arguments)
    w = randomize(layer)
    expected = [
        x0 * (x @ w["kernel"][:, 0]) + w["bias"] + x for x0, x in zip(first, crossed, strict=True)
    ]
    found = keras.ops.convert_to_numpy(layer(*arguments))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_dot_products_of_keras_rs_are_those_of_all_pairs():
    vectors = RNG.normal(size=(4, 3, 5))
    found = keras_rs.layers.DotInteraction()([v.astype("float32") for v in vectors])
    expected = [
        [vectors[i, b] @ vectors[j, b] for i in range(4) for j in range(i)] for b in range(3)
    ]
    np.testing.assert_allclose(keras.ops.convert_to_numpy(found), expected, rtol=1e-4, atol=1e-5)


def test_columns_do_not_share_their_embeddings():
    model = ARCHITECTURES["fnn"](OPTIONS)
    tables = [layer for layer in model.layers if isinstance(layer, keras.layers.Embedding)]
    (table,) = (layer for layer in tables if layer.output_dim == OPTIONS.embedding_dim)
    ids = np.array([[6, 4, 2, 5], [0, 0, 0, 0]], np.int32)
    inner = keras.Model(model.input, table.output)
    (weights,) = table.get_weights()
    found = keras.ops.convert_to_numpy(inner(ids))
    np.testing.assert_array_equal(found[0], weights[[6, 11, 14, 20]])
    np.testing.assert_array_equal(found[1], weights[[0, 7, 12, 15]])


def test_l2_is_of_all_embeddings_and_kernels():
    for name, build in ARCHITECTURES.items():
        model = build(ModelOptions(OPTIONS.num_ids, 1, 4, (6, 5), l2=0.5))
        biases = [w for w in model.weights if w.name == "bias"]
        others = [w for w in model.weights if w.name != "bias"]
        assert biases, name
        expected = 0.5 * sum(float(np.sum(keras.ops.convert_to_numpy(w) ** 2)) for w in others)
        np.testing.assert_allclose(float(sum(model.losses)), expected, rtol=1e-4, err_msg=name)


def test_batch_normalization_and_dropout_are_in_every_hidden_layer():
    options = ModelOptions((5, 3), 0, 2, (6, 5), dropout=0.4, batch_normalization=True)
    kinds = [type(layer).__name__ for layer in ARCHITECTURES["fnn"](options).layers]
    start = kinds.index("Dense")
    hidden = ["Dense", "BatchNormalization", "ReLU", "Dropout"]
    assert [kind for kind in kinds[start:] if kind in hidden] == [*hidden * 2, "Dense"]


def test_options_that_cannot_be():
    with pytest.raises(ValueError, match="num_numeric"):
        ModelOptions((3, 4), num_numeric=3)
    with pytest.raises(ValueError, match="not numeric"):
        ARCHITECTURES["dlrm"](ModelOptions((3, 4), num_numeric=2))
    with pytest.raises(ValueError, match="units"):
        CompressedInteraction([])
    with pytest.raises(ValueError, match="halved"):
        CompressedInteraction([3, 2])


def parity_rows(num_rows):
    """Labels that say whether the sum of two columns is odd, which no sum of weights says."""
    rng = np.random.default_rng(1)
    ids = np.stack([rng.integers(0, n, num_rows) for n in (4, 4, 3)], axis=1).astype(np.int32)
    odd = (ids[:, 0] + ids[:, 1]) % 2 == 1
    return ids, np.where(rng.random(num_rows) < 0.9, odd, ~odd).astype(np.float32)


def compiled(name):
    model = ARCHITECTURES[name](ModelOptions((4, 4, 3), 1, 8, (16, 8)))
    model.compile(
        optimizer=keras.optimizers.Adam(1e-2),
        loss=keras.losses.BinaryCrossentropy(from_logits=True),
        metrics=[LogitAUC(from_logits=True, name="auc")],
        jit_compile=False,
    )
    return model


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_except(["dlrm"], ARCHITECTURES))
def test_an_interaction_is_learned(name):
    keras.utils.set_random_seed(0)
    model = compiled(name)
    model.fit(*parity_rows(4000), batch_size=100, epochs=8, verbose=0)
    ids, labels = parity_rows(1000)
    # 0.9 is the best possible.
    assert model.evaluate(ids, labels, batch_size=1000, verbose=0, return_dict=True)["auc"] > 0.85


@pytest.mark.slow
@pytest.mark.parametrize("name", ["xdeepfm", pytest.param("dcn_mix", marks=pytest.mark.slow)])
def test_seeds_are_trained_together(name, tmp_path):
    rows = parity_rows(600)
    runs = seeds.train(
        partial(compiled, name),
        rows,
        ledger=tmp_path,
        pipeline=name,
        seeds=range(2),
        batch_size=100,
        validation_data=rows,
        verbose=0,
    )
    assert [run["status"] for run in runs] == ["finished"] * 2
    losses = [run["metrics"]["val_loss"][0] for run in runs]
    assert np.isfinite(losses).all()
    assert losses[0] != losses[1]
