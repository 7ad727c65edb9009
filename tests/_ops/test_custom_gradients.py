"""Custom gradients, and that TensorFlow lets go of the graphs they were traced in."""

import gc
import weakref

import pytest
from keras import ops

from keras_calibration._ops.custom_gradients import with_gradient


def thrice(values):
    return ops.copy(values), lambda *up, **by_name: 3 * (*up, *by_name.values())[0]


@pytest.mark.quick_cases(1)
@pytest.mark.tensorflow  # its registry of gradients
@pytest.mark.parametrize(("inside", "jit_compile"), [(False, False), (False, True), (True, True)])
def test_gradients_in_graphs_that_are_let_go(jit_compile, inside):
    import tensorflow as tf
    from tensorflow.python.framework.ops import gradient_registry

    def step(values):
        with tf.GradientTape() as tape:
            tape.watch(values)
            total = tf.reduce_sum(with_gradient(thrice)(values))
        return tape.gradient(total, values) if inside else total

    values = tf.constant([1.0, 2.0])
    graphs, num_gradients = [], []
    for _ in range(3):
        traced = tf.function(step, jit_compile=jit_compile)
        graphs.append(weakref.ref(traced.get_concrete_function(values).graph))
        with tf.GradientTape() as tape:
            tape.watch(values)
            result = traced(values)
        gradient = result if inside else tape.gradient(result, values)
        assert gradient.numpy().tolist() == [3, 3]
        del traced, tape, result, gradient
        gc.collect()
        num_gradients.append(len(gradient_registry._registry))
    assert [graph() for graph in graphs] == [None] * 3
    assert num_gradients[1] == num_gradients[2]
