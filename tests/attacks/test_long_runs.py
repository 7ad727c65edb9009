"""Long runs: many fits, calibrations and exports in one process leave no memory, file or thread."""

import gc
import sys

import keras
import numpy as np
import pytest

import keras_calibration as kc
from keras_calibration.layers import ILPS, FieldNetwork, NeuralCalibration, PlattScaling

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.skipif(sys.platform != "linux", reason="Reads /proc."),
]

RNG = np.random.default_rng(0)
NUM_ROWS = 400
X = {
    "site": RNG.integers(0, 4, NUM_ROWS).astype("int32"),
    "logit": RNG.normal(-1, 1, (NUM_ROWS, 1)).astype("float32"),
}
Y = (RNG.random(NUM_ROWS) < 1 / (1 + np.exp(-X["logit"][:, 0] - X["site"] % 2))).astype("float32")


@pytest.fixture(scope="module")
def base():
    inputs = {
        "site": keras.Input((), dtype="int32", name="site"),
        "logit": keras.Input((1,), name="logit"),
    }
    return keras.Model(inputs, keras.layers.Activation("sigmoid")(inputs["logit"]))


@pytest.fixture
def new_names(monkeypatch):
    """The names of new variables, of which TensorFlow keeps 35 kB each: its cache of kernels."""
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


def live_graphs():
    from tensorflow.python.framework.func_graph import FuncGraph

    gc.collect()
    return sum(isinstance(each, FuncGraph) for each in gc.get_objects())


def test_calibrate_names_what_it_throws_away_as_before(base, new_names):
    for _ in range(2):
        new_names.clear()
        kc.calibrate(base, X, Y, fields=["site"], effort="quick", verbose=0)
    # The head that is returned, numbered as the user's own layers, and nothing else.
    assert len(new_names) <= 14


@pytest.mark.slow
def test_cross_fits_name_their_copies_as_before(base, new_names):
    def fit():
        network = FieldNetwork({"site": 4}, numeric=("logit",), dropout=0.1)
        head = NeuralCalibration(ILPS(), network, num_members=2)
        kc.models.CalibratedModel(base, head).fit(X, Y, verbose=0)
        return head

    fit()
    new_names.clear()
    head = fit()
    num_generators = len([each for each in new_names if each.startswith("seed_generator")])
    assert len(new_names) - num_generators <= len(head.weights)


@pytest.mark.filterwarnings("ignore:.*standard errors")
def test_a_traced_training_step_is_freed(base):
    def train():
        model = kc.models.CalibratedModel(base, PlattScaling())
        model.compile("adam")
        model.fit(X, Y, batch_size=NUM_ROWS, initialize=None, verbose=0)

    train()
    before = live_graphs()
    train()
    assert live_graphs() == before


def test_names_of_the_user_go_on(base):
    keras.layers.Dense(1)
    first = keras.layers.Dense(1).name
    kc.calibrate(base, X, Y, method="bias", verbose=0)
    second = keras.layers.Dense(1).name
    assert int(second.rpartition("_")[2]) == int(first.rpartition("_")[2]) + 1
