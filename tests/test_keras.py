"""`throwaway_layers`: what is made in its block leaves nothing, and nothing is changed after it."""

import threading

import keras
import numpy as np
import pytest

from keras_calibration._keras import throwaway_layers

pytestmark = pytest.mark.tensorflow

SUM = "_all_reduce_sum_gradients"


def trained():
    """A small model that was trained for a step; its optimizer sums gradients over replicas."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(np.ones((4, 2)), np.ones(4), verbose=0)
    return model


def sums_in(graph):
    """The sums over replicas in a traced step; each is a function with a gradient of its own."""
    return [op.type for op in graph.get_operations() if op.type == "IdentityN"]


def traced_step(model):
    import tensorflow as tf

    rows = tf.ones((4, 2)), tf.ones((4, 1))
    return tf.function(lambda: model.train_step(rows), autograph=False).get_concrete_function()


def test_names():
    import tensorflow as tf

    keras.layers.Dense(1)
    first = keras.layers.Dense(1)
    with throwaway_layers():
        inner = keras.layers.Dense(1)
        inner.build((None, 2))
        with throwaway_layers():
            assert keras.layers.Dense(1).name == "dense"
        assert keras.layers.Dense(1).name == "dense_1"
        second = keras.layers.Dense(1, name="hidden_7")
        second.build((None, 2))
    assert inner.name == "dense"
    assert inner.kernel.path == "dense/kernel"
    assert second.kernel.path == "hidden_7/kernel"
    assert second.kernel.value.name == "kernel:0"
    after = keras.layers.Dense(1)
    assert int(after.name.rpartition("_")[2]) == int(first.name.rpartition("_")[2]) + 1
    after.build((None, 2))
    assert after.kernel.value.name == f"{after.name}/kernel:0"
    with throwaway_layers(), tf.name_scope("scope_3"):
        assert tf.Variable(0.0, name="count_12").name == "count:0"


def test_sums_of_gradients_inside_and_after():
    model = trained()
    assert sums_in(traced_step(model).graph)
    with throwaway_layers():
        assert not sums_in(traced_step(model).graph)
    assert sums_in(traced_step(model).graph)


def test_one_step_gives_the_same_weights():
    weights = []
    for door in (throwaway_layers, threading.Lock):
        model = keras.Sequential(
            [keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")]
        )
        model.compile(keras.optimizers.Adam(0.1), "mse")
        with door():
            step = traced_step(model)
        step()
        weights.append(model.get_weights())
    for one, other in zip(*weights, strict=True):
        np.testing.assert_array_equal(one, other)


def test_blocks_of_threads_and_errors_end_together():
    assert SUM not in vars(keras.optimizers.Optimizer)
    opened, may_end = threading.Event(), threading.Event()

    def wait():
        with throwaway_layers():
            opened.set()
            may_end.wait(10)

    thread = threading.Thread(target=wait)
    thread.start()
    opened.wait(10)
    with pytest.raises(KeyError), throwaway_layers(), throwaway_layers():
        raise KeyError
    # The other thread still needs it.
    assert SUM in vars(keras.optimizers.Optimizer)
    may_end.set()
    thread.join()
    assert SUM not in vars(keras.optimizers.Optimizer)


def test_several_replicas_still_sum(monkeypatch):
    import tensorflow as tf

    class Two:
        num_replicas_in_sync = 2

    called = []
    owner = next(base for base in keras.optimizers.Optimizer.__mro__ if SUM in vars(base))
    monkeypatch.setattr(owner, SUM, lambda self, pairs: called.append(pairs))
    monkeypatch.setattr(tf.distribute, "get_strategy", Two)
    with throwaway_layers():
        getattr(keras.optimizers.SGD(), SUM)([])
    assert called == [[]]
