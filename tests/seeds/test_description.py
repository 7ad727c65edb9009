"""What a run was trained with is recorded, and a change is refused."""

import functools
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import scipy.sparse

import keras_calibration
from keras_calibration._keras import restart_names
from keras_calibration.metrics import CalibratedLogLoss
from keras_calibration.seeds import Ledger, train
from keras_calibration.seeds.description import describe_model, hash_rows
from seed_pipelines import SMALL, build_small

TESTS = Path(__file__).parents[1]


def model_of(*layers, optimizer="sgd", loss="mse", **arguments):
    model = keras.Sequential([keras.Input((3,)), *layers, keras.layers.Dense(1, "sigmoid")])
    model.compile(optimizer, loss, **arguments)
    return model


class Table(keras.layers.Layer):
    """A layer of a user that Keras cannot configure: it has an array for an argument."""

    def __init__(self, table):
        super().__init__()
        self.table = table

    def call(self, x):
        return x + self.table


# A model, another one, and whether its configuration or that of `compile` differs.
CHANGES = {
    "units": (lambda n: model_of(keras.layers.Dense(n)), 8, 64, "model"),
    "layers": (lambda n: model_of(*(keras.layers.Dense(2) for _ in range(n))), 1, 2, "model"),
    "frozen": (lambda t: model_of(keras.layers.Dense(2, trainable=t)), True, False, "model"),
    "rate": (lambda r: model_of(optimizer=keras.optimizers.Adam(r)), 0.01, 1e-6, "compile"),
    "optimizer": (lambda name: model_of(optimizer=name), "sgd", "adam", "compile"),
    "loss": (lambda name: model_of(loss=name), "mse", "mae", "compile"),
    "metric": (lambda n: model_of(metrics=[CalibratedLogLoss(num_folds=n)]), 2, 3, "compile"),
    "speed": (lambda jit: model_of(jit_compile=jit), False, True, None),
    # Of these, only what the configuration has is seen.
    "lambda": (lambda n: model_of(keras.layers.Lambda(lambda x: n * x)), 1, 2, None),
    "table": (lambda n: model_of(Table(np.full(3, n))), 1, 2, None),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_change_of_the_model_is_seen(case):
    build, old, new, changed = CHANGES[case]
    described = []
    for value in (old, old, new):
        restart_names()
        described.append(describe_model(build(value)))
    first, again, other = described
    assert first == again
    assert [name for name in first if first[name] != other[name]] == [changed] * bool(changed)


def test_hashes_of_rows_are_of_their_values():
    values = np.arange(12.0).reshape(3, 4)
    assert hash_rows(values) == hash_rows(np.asfortranarray(values))
    assert hash_rows(values) != hash_rows(values.reshape(4, 3))
    assert hash_rows(np.array(["ab", "c"])) == hash_rows(np.array(["ab", "c"], object))
    assert hash_rows(np.array(["ab", "c"])) != hash_rows(np.array(["a", "bc"]))
    assert hash_rows({"a": values, "b": values}) == hash_rows({"b": values, "a": values})
    assert hash_rows({"a": values}) != hash_rows({"b": values})
    assert hash_rows(values[::2, ::3]) == hash_rows(values[::2, ::3].copy())


def test_hashes_of_rows_are_those_of_any_dtype_that_holds_the_values():
    values = np.array([0, 1, 1, 0, 100])
    dtypes = ("bool", "uint8", "int32", "int64", "float16", "float32", "float64", "bfloat16")
    for part in (values, values[:4]):
        kinds = dtypes if part.max() == 1 else dtypes[1:]
        assert len({hash_rows(np.asarray(part, kind)) for kind in kinds}) == 1
    assert hash_rows(values) == hash_rows(values[:, None])
    assert hash_rows(values[:4]) != hash_rows(values[:4].reshape(2, 2))
    sparse = scipy.sparse.csr_array(values[:, None])
    assert hash_rows(sparse) == hash_rows(sparse.astype("float32"))
    assert hash_rows(sparse) != hash_rows(2 * sparse)
    # Neighbours that float32, or float64, would merge.
    for large in (2**24, 2**53, 2**60, -(2**60)):
        assert hash_rows(np.array([large])) != hash_rows(np.array([large + 1]))
    assert hash_rows(np.int32([2**24 + 1])) == hash_rows(np.int64([2**24 + 1]))


def test_a_hash_covers_all_blocks_of_many_rows():
    many = np.zeros(2**20 + 3, "uint8")
    for row in (0, 2**20 - 1, 2**20 + 2):
        other = many.copy()
        other[row] = 1
        assert hash_rows(other) != hash_rows(many)


def test_a_changed_pipeline_is_refused_and_the_change_is_told(tmp_path):
    x, y = SMALL
    sweep = functools.partial(
        train, ledger=tmp_path, pipeline="p", seeds=[0], validation_data=SMALL, verbose=0
    )
    runs = sweep(build_small, SMALL)
    assert sweep(build_small, SMALL, engine="loop") == runs
    assert runs[0]["num_rows"] == len(y)
    same = (np.asfortranarray(x, "float64"), y[:, None].astype(int))
    assert sweep(build_small, same, seeds=np.arange(1), epochs=np.int64(1)) == runs
    for change, names in [
        (lambda: sweep(lambda: model_of(optimizer="adam"), SMALL), "compile"),
        (lambda: sweep(build_small, (0 * x, y)), "data"),
        (lambda: sweep(build_small, SMALL, batch_size=16), "batch_size"),
        (lambda: sweep(build_small, SMALL, epochs=2), "epochs"),
        (lambda: sweep(build_small, SMALL, validation_data=None), "validation_data"),
        (lambda: sweep(build_small, SMALL, configuration={"decay": 2}), "configuration"),
    ]:
        with pytest.raises(ValueError, match=rf"`pipeline`.*another {names}\. "):
            change()
    assert Ledger(tmp_path).runs() == runs


def test_runs_that_another_program_recorded_are_refused(tmp_path):
    Ledger(tmp_path).append({"pipeline": "own", "seed": 0, "status": "finished"})
    with pytest.raises(ValueError, match=r"`pipeline`.*another model, compile, data"):
        train(build_small, SMALL, ledger=tmp_path, pipeline="own", seeds=[0], verbose=0)


DESCRIBED = """
import sys
import keras
from keras_calibration._keras import restart_names
from keras_calibration.seeds.description import describe_model, hash_rows
from seed_pipelines import TRAINING, build_model
for _ in range(int(sys.argv[1])):
    keras.layers.Dense(1), keras.layers.BatchNormalization(), keras.metrics.AUC()
restart_names()
print(describe_model(build_model()), hash_rows(TRAINING))
"""


@pytest.mark.slow
def test_a_description_is_the_same_in_every_process():
    path = os.pathsep.join([str(TESTS), str(Path(keras_calibration.__file__).parents[1])])
    texts = {
        subprocess.run(
            [sys.executable, "-c", DESCRIBED, seed],
            env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(texts) == 1
