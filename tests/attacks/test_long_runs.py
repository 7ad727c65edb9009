"""Long runs: many fits, calibrations and exports in one process leave no memory, file or thread."""

import ctypes
import functools
import gc
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

import keras
import numpy as np
import pytest

import keras_calibration as kc
from keras_calibration.layers import ILPS, FieldNetwork, NeuralCalibration
from tiers import only_in_full_attack, slow_except

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


def symbolic_inputs():
    return {
        "site": keras.Input((), dtype="int32", name="site"),
        "score": keras.Input((1,), name="score"),
    }


@functools.cache
def base():
    inputs = symbolic_inputs()
    return keras.Model(inputs, keras.layers.Activation("sigmoid")(inputs["score"]))


def new_model():
    network = FieldNetwork({"site": 4}, numeric=("score",))
    return kc.models.CalibratedModel(base(), NeuralCalibration(ILPS(), network))


@functools.cache
def model():
    fitted = new_model()
    kc.fit_head(fitted, X, Y, verbose=0)
    return fitted


def plain_model():
    inputs = symbolic_inputs()
    site = keras.layers.Flatten()(keras.layers.Embedding(4, 16)(inputs["site"]))
    hidden = keras.layers.Concatenate()([site, inputs["score"]])
    for units in (64, 32):
        hidden = keras.layers.Dropout(0.25)(keras.layers.Dense(units, "relu")(hidden))
    return keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(hidden))


kept_plain_model = functools.cache(plain_model)


def fit(folder):
    """A new logit-only calibrator, fitted directly."""
    kc.fit_head(kc.models.CalibratedModel(base(), ILPS()), X, Y, verbose=0)


def calibrate(folder):
    """`calibrate` without the network."""
    kc.calibrate(base(), X, Y, fields=["site"], methods="quick", verbose=0)


def calibrate_in_full(folder):
    """`calibrate` with the network."""
    kc.calibrate(base(), X, Y, fields=["site"], methods="neural", verbose=0)


def export(folder, verify="same_process"):
    """An export, loaded again in this process."""
    path = kc.export_savedmodel(model(), folder / "ctr", X, version="next", verify=verify)
    for each in path.parent.iterdir():
        if each != path:
            shutil.rmtree(each)


def export_in_new_process(folder):
    """An export, loaded again in a process of its own."""
    export(folder, "new_process")


def refresh(folder):
    """A refresh of the latest version, loaded again in this process."""
    if not (folder / "ctr").exists():
        export(folder)
    (path,) = (folder / "ctr").iterdir()
    features = {name: column.reshape(-1) for name, column in X.items()}
    kc.refresh_savedmodel(
        path, X["score"][:, 0], Y, features, from_logits=True, verify="same_process"
    )
    shutil.rmtree(path)


def keras_fit(folder):
    """A new small model of Keras, for comparison."""
    new = plain_model()
    new.compile("adam", "binary_crossentropy")
    new.fit(X, Y, batch_size=NUM_ROWS, verbose=0)


def keras_export(folder):
    """Keras' own export of one small model, for comparison."""
    kept_plain_model().export(folder / "plain", verbose=False)
    shutil.rmtree(folder / "plain")


CALLS = [fit, calibrate, calibrate_in_full, export, export_in_new_process, refresh]
QUICK = [fit]


def live_graphs():
    from tensorflow.python.framework.func_graph import FuncGraph

    gc.collect()
    return sum(isinstance(each, FuncGraph) for each in gc.get_objects())


def what_is_open(num_threads=float("inf")):
    """Numbers of open files, threads and live graphs; waits a while for threads that end."""
    for _ in range(20):
        num_files, threads = (len(os.listdir(f"/proc/self/{each}")) for each in ("fd", "task"))
        if threads <= num_threads:
            break
        time.sleep(0.1)
    return {"files": num_files, "threads": threads, "graphs": live_graphs()}


def left_since(opened):
    now = what_is_open(opened["threads"])
    return {each: n for each, n in now.items() if n > opened[each]}


def resident_megabytes():
    num_pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return num_pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def held_megabytes():
    """The memory of this process without what Python and the C library can give back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return resident_megabytes()


def growth(name, num_calls, folder):
    """Calls a function many times, and prints what the calls after the tenth left.

    In between, nothing is collected or given back that a user's process would keep.
    """
    call = globals()[name]
    resident = []
    for number in range(1, num_calls + 1):
        call(pathlib.Path(folder))
        resident.append(resident_megabytes())
        if number == 10:
            first, opened = held_megabytes(), what_is_open()
    num_more = num_calls - 10
    # From the 20th on: at the tenth, memory was given back.
    slope = np.polyfit(np.arange(num_more - 10), resident[20:], 1)[0]
    held, waiting = held_megabytes(), max(resident)
    figures = {
        "held": (held - first) / num_more,
        "resident": float(slope),
        "most": waiting - held,
        "left": left_since(opened),
    }
    print(json.dumps(figures))


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


@pytest.mark.parametrize("call", slow_except(QUICK, CALLS))
def test_a_call_leaves_nothing(call, tmp_path, new_names):
    call(tmp_path)
    # TensorFlow starts some threads late, once; what leaks, leaks in every call.
    for _ in range(3):
        opened = what_is_open()
        new_names.clear()
        call(tmp_path)
        left = left_since(opened)
        if not left and not new_names:
            break
    assert left == {}
    assert new_names == []


def test_names_of_the_user_go_on():
    keras.layers.Dense(1)
    first = keras.layers.Dense(1).name
    kc.calibrate(base(), X, Y, methods="bias", verbose=0)
    second = keras.layers.Dense(1).name
    assert int(second.rpartition("_")[2]) == int(first.rpartition("_")[2]) + 1


def test_layers_keep_their_names_and_paths():
    new = new_model()
    new.head.adapt(X["score"], Y, X)
    new.compile("adam", "binary_crossentropy")
    new.fit(X, Y, batch_size=NUM_ROWS, verbose=0)
    head = new.head
    paths = [weight.path for weight in head.weights]
    assert f"{head.name}/{head.calibrator.name}/values" in paths
    assert len(set(paths)) == len(paths)
    assert any(
        f"{head.name}_{head.calibrator.name}_values" in v.path for v in new.optimizer.variables
    )


IN_A_NEW_PROCESS = f"""
import importlib.util, sys
spec = importlib.util.spec_from_file_location("long_runs", {__file__!r})
long_runs = importlib.util.module_from_spec(spec); spec.loader.exec_module(long_runs)
long_runs.growth(sys.argv[1], int(sys.argv[2]), sys.argv[3])
"""
# As many as take a few minutes on two cores.
NUM_CALLS = {
    "fit": 200,
    "calibrate": 200,
    "calibrate_in_full": 30,
    "export": 200,
    "export_in_new_process": 25,
    "refresh": 50,
    "keras_fit": 60,
    "keras_export": 50,
}


@only_in_full_attack
@pytest.mark.parametrize("name", NUM_CALLS)
def test_many_calls_in_one_process(name, tmp_path):
    command = [sys.executable, "-c", IN_A_NEW_PROCESS, name, str(NUM_CALLS[name]), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    print(name, NUM_CALLS[name], figures)
    assert figures["left"] == {}
    if not name.startswith("keras"):
        assert figures["held"] < 1
        # Of fewer calls, the slope is that of what waits for Python's collector.
        assert figures["resident"] < 1 or NUM_CALLS[name] < 100
