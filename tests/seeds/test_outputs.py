"""The figures of single outputs: those of `fit`, whatever the engine."""

import functools
import itertools
import operator

import keras
import numpy as np
import pytest
import scipy.sparse

from keras_calibration.seeds import set_seeds, train

NUM_ROWS, NUM_HELD_OUT, BATCH_SIZE = 20, 13, 8  # the last batches are smaller


def make_rows(num_rows):
    generator = np.random.default_rng(num_rows)
    x = generator.normal(size=(num_rows, 2)).astype("float32")
    # Losses of very different size, so that a wrong weight of a batch is seen.
    click, price = (x[:, :1] > 0).astype("float32"), 3 * x[:, 1:] ** 2
    return x, click, price, generator.exponential(size=num_rows).astype("float32")


def structured(kind, click, price):
    return {"click": click, "price": price} if kind is dict else kind([click, price])


def rows_of(kind, num_rows, weights):
    """Rows for `fit`, with weights for all outputs or for each."""
    x, click, price, weight = make_rows(num_rows)
    given = {
        "unweighted": (),
        "weights": (weight,),
        "weights of outputs": (structured(kind, weight, 1 / weight),),
    }
    return x, structured(kind, click, price), *given[weights]


def build(kind, rate=0.05, jit_compile=False, sparse=False):
    """A model of two outputs, with all that `compile` takes for each."""
    inputs = keras.Input((2,), sparse=sparse)
    click = keras.layers.Dense(1, "sigmoid", name="click")(inputs)
    price = keras.layers.Dense(1, name="price")(inputs)
    model = keras.Model(inputs, structured(kind, click, price))
    model.compile(
        keras.optimizers.SGD(rate),
        structured(kind, "binary_crossentropy", "mse"),
        loss_weights=structured(kind, 1.0, 0.1),
        metrics=structured(kind, ["AUC"], ["mae"]),
        weighted_metrics=structured(kind, ["accuracy"], ["mse"]),
        jit_compile=jit_compile,
    )
    return model


def fitted(model, rows, held_out, epochs=2):
    """The history of Keras alone, on the rows in the order of NumPy's generator."""

    def taken(part, chosen):
        if isinstance(part, dict):
            return {name: taken(value, chosen) for name, value in part.items()}
        if isinstance(part, list | tuple):
            return tuple(taken(value, chosen) for value in part)
        return operator.getitem(part, chosen)

    def batches():
        for epoch in itertools.count():
            order = np.random.default_rng([1, epoch]).permutation(NUM_ROWS)
            for start in range(0, NUM_ROWS, BATCH_SIZE):
                yield taken(rows, order[start : start + BATCH_SIZE])

    options = {"steps_per_epoch": 3, "epochs": epochs, "shuffle": False, "verbose": 0}
    options |= {"validation_data": held_out, "validation_batch_size": BATCH_SIZE}
    return model.fit(batches(), **options).history


def trained(folder, build_model, rows, held_out, engine, epochs=2):
    options = {"pipeline": "p", "seeds": [1], "batch_size": BATCH_SIZE, "verbose": 0}
    options |= {"epochs": epochs, "validation_data": held_out, "engine": engine}
    (run,) = train(build_model, rows, ledger=folder, **options)
    assert run["training"]["engine"] == engine
    return run["metrics"]


CASES = {
    "dict, weights of outputs": (dict, "weights of outputs", {}),
    "dict": (dict, "unweighted", {}),
    "dict, weights": (dict, "weights", {}),
    "list": (list, "unweighted", {}),
    "list, weights of outputs": (list, "weights of outputs", {}),
    "tuple": (tuple, "weights", {}),
    "compiled by XLA": (dict, "weights", {"jit_compile": True}),
}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("engine", ["vectorized", "loop"])
@pytest.mark.parametrize("case", CASES)
def test_the_figures_of_outputs_are_those_of_fit(tmp_path, case, engine):
    kind, weights, options = CASES[case]
    rows, held_out = (rows_of(kind, number, weights) for number in (NUM_ROWS, NUM_HELD_OUT))
    build_model = functools.partial(build, kind, **options)
    set_seeds(initialization=1, order=1)
    expected = fitted(build_model(), rows, held_out)
    assert len(expected) == 14
    received = trained(tmp_path, build_model, rows, held_out, engine)
    assert received.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(received[name], values, 1e-4, err_msg=name)


@pytest.mark.tensorflow
def test_losses_of_outputs_are_means_of_batches_and_the_total_of_rows(tmp_path):
    rows, held_out = (rows_of(dict, number, "unweighted") for number in (NUM_ROWS, NUM_HELD_OUT))
    models = []

    def build_model():
        models.append(build(dict, 0.0))
        return models[-1]

    received = trained(tmp_path, build_model, rows, held_out, "vectorized", 1)
    x, labels = held_out
    model = next(m for m in models if m.compiled and m.built and m.optimizer.iterations == 3)
    predicted = {name: p.astype("float64") for name, p in model.predict(x, verbose=0).items()}
    click = np.where(labels["click"] == 1, predicted["click"], 1 - predicted["click"])
    losses = {"click": -np.log(click), "price": (predicted["price"] - labels["price"]) ** 2}
    for name, values in losses.items():
        batches = [values[:BATCH_SIZE].mean(), values[BATCH_SIZE:].mean()]
        np.testing.assert_allclose(received[f"val_{name}_loss"], [np.mean(batches)], rtol=1e-5)
        assert abs(np.mean(batches) - values.mean()) > 0.01 * values.mean()
    total = (losses["click"] + 0.1 * losses["price"]).mean()
    np.testing.assert_allclose(received["val_loss"], [total], rtol=1e-5)
    np.testing.assert_allclose(received["val_price_mse"], [losses["price"].mean()], rtol=1e-5)


@pytest.mark.tensorflow
@pytest.mark.slow
def test_sparse_rows_have_the_figures_of_dense_ones(tmp_path):
    rows, held_out = (rows_of(dict, number, "weights") for number in (NUM_ROWS, NUM_HELD_OUT))
    expected = trained(tmp_path / "dense", lambda: build(dict), rows, held_out, "vectorized")
    sparse = ((scipy.sparse.csr_matrix(x), *more) for x, *more in (rows, held_out))
    options = {"engine": "vectorized"}
    received = trained(tmp_path, lambda: build(dict, sparse=True), *sparse, **options)
    for name, values in expected.items():
        np.testing.assert_allclose(received[name], values, 1e-4, err_msg=name)
