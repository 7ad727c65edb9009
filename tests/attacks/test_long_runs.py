"""Long runs: calls in one process leave no file, thread, graph or name behind."""

import functools
import gc
import os
import shutil
import sys
import time

import keras
import numpy as np
import pytest

import keras_calibration as kc
from keras_calibration.layers import ILPS, FieldNetwork, NeuralCalibration
from symbols import symbols
from tiers import slow_except

pytestmark = [
    pytest.mark.slow,
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:.*standard errors"),
    pytest.mark.skipif(sys.platform != "linux", reason="Reads /proc."),
]
RNG = np.random.default_rng(0)
NUM_ROWS = 400
X = {
    "site": RNG.integers(0, 4, NUM_ROWS).astype("int32"),
    "score": RNG.normal(-1, 1, (NUM_ROWS, 1)).astype("float32"),
}
Y = (RNG.random(NUM_ROWS) < 1 / (1 + np.exp(-X["score"][:, 0] - X["site"] % 2))).astype("float32")


@functools.cache
def base():
    inputs = symbols(site="int32", score=(1,))
    return keras.Model(inputs, keras.layers.Activation("sigmoid")(inputs["score"]))


def new_model():
    network = FieldNetwork({"site": 4}, numeric=("score",))
    return kc.models.CalibratedModel(base(), NeuralCalibration(ILPS(), network))


@functools.cache
def model():
    fitted = new_model()
    kc.fit_head(fitted, X, Y, verbose=0)
    return fitted


def fit(folder):
    kc.fit_head(kc.models.CalibratedModel(base(), ILPS()), X, Y, verbose=0)


def calibrate(folder, methods="quick"):
    kc.calibrate(base(), X, Y, fields=["site"], methods=methods, verbose=0)


def calibrate_with_a_network(folder):
    calibrate(folder, "neural")


def export_and_refresh(folder):
    path = kc.export_savedmodel(model(), folder / "ctr", X, version=1)
    features = {name: column.reshape(-1) for name, column in X.items()}
    kc.refresh_savedmodel(path, X["score"][:, 0], Y, features, from_logits=True)
    shutil.rmtree(folder / "ctr")


CALLS = [fit, calibrate, calibrate_with_a_network, export_and_refresh]


def live_graphs():
    from tensorflow.python.framework.func_graph import FuncGraph

    gc.collect()
    return sum(isinstance(instance, FuncGraph) for instance in gc.get_objects())


def what_is_open(num_threads=float("inf")):
    """Numbers of open files, threads and live graphs; waits a while for threads that end."""
    for _ in range(20):
        num_files, threads = (len(os.listdir(f"/proc/self/{kind}")) for kind in ("fd", "task"))
        if threads <= num_threads:
            break
        time.sleep(0.1)
    return {"files": num_files, "threads": threads, "graphs": live_graphs()}


@pytest.fixture
def new_names(monkeypatch):
    """The names of new variables, of which TensorFlow keeps 35 kB or more: its cache of kernels."""
    from tensorflow.python.ops import resource_variable_ops

    names, seen = [], set()
    handle = resource_variable_ops.eager_safe_variable_handle

    def noted(initial_value, shape, shared_name, name, *arguments, **more):
        if name not in seen:
            names.append(name)
        seen.add(name)
        return handle(initial_value, shape, shared_name, name, *arguments, **more)

    monkeypatch.setattr(resource_variable_ops, "eager_safe_variable_handle", noted)
    return names


@pytest.mark.parametrize("call", slow_except([fit], CALLS))
def test_a_call_leaves_nothing(call, tmp_path, new_names):
    call(tmp_path)
    # TensorFlow starts some threads late, once; what leaks, leaks in every call.
    for _ in range(3):
        opened = what_is_open()
        new_names.clear()
        call(tmp_path)
        now = what_is_open(opened["threads"])
        left = {kind: n for kind, n in now.items() if n > opened[kind]}
        if not left and not new_names:
            break
    assert left == {}
    assert new_names == []


def test_layers_keep_their_names_and_paths():
    """A user's layers go on with their numbers; those of the package's fits have none."""
    keras.layers.Dense(1)
    first = keras.layers.Dense(1).name
    kc.calibrate(base(), X, Y, methods="bias", verbose=0)
    second = keras.layers.Dense(1).name
    assert int(second.rpartition("_")[2]) == int(first.rpartition("_")[2]) + 1
    head = new_model().head
    head.adapt(X["score"], Y, X)
    paths = [weight.path for weight in head.weights]
    assert f"{head.name}/{head.calibrator.name}/values" in paths
    assert len(set(paths)) == len(paths)
