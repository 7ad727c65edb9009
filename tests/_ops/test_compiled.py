"""Whether a function knows that it becomes part of a program of XLA's."""

import keras
import numpy as np
import pytest

from backends import ON_TENSORFLOW, compiled
from keras_calibration._ops.compiled import filled_up, is_compiled, runs_on_gpu


class Witness(keras.layers.Layer):
    """Hands on what it is given, and remembers whether it was compiled."""

    def call(self, inputs):
        self.seen = is_compiled(inputs)
        return inputs


@pytest.fixture
def witness():
    return Witness()


@pytest.mark.parametrize("is_one_program", [False, True])
def test_what_is_compiled_knows_it(witness, is_one_program):
    function = compiled(witness) if is_one_program else witness
    function(keras.ops.zeros((3, 1)))
    assert witness.seen == is_one_program


def test_a_branch_of_a_compiled_function_is_compiled(witness):
    def function(x):
        return keras.ops.cond(keras.ops.sum(x) > 0, lambda: witness(x), lambda: 2 * x)

    compiled(function)(keras.ops.zeros((3, 1)))
    assert witness.seen


@pytest.mark.tensorflow
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("outside", [False, True])
def test_functions_in_functions(witness, inside, outside):
    import tensorflow as tf

    inner = tf.function(witness, jit_compile=inside)
    tf.function(lambda x: inner(x), jit_compile=outside)(tf.zeros((3, 1)))
    assert witness.seen == (inside or outside)


@pytest.mark.parametrize("step", ["fit", "evaluate", "predict"])
@pytest.mark.parametrize("jit_compile", [False, True])
def test_the_steps_of_a_model(witness, step, jit_compile):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1), witness])
    model.compile("sgd", "mse", jit_compile=jit_compile)
    x = np.zeros((8, 1), "float32")
    getattr(model, step)(x, *([] if step == "predict" else [x]), verbose=0)
    # On JAX, Keras traces what it does not compile too, to learn shapes.
    assert witness.seen == jit_compile or not ON_TENSORFLOW


@pytest.mark.parametrize("has_gpu", [False, True])
def test_a_gpu_is_found_where_the_backend_has_one(has_gpu, monkeypatch):
    if ON_TENSORFLOW:
        import tensorflow as tf

        devices = {"GPU": ["a GPU"] * has_gpu, "CPU": ["a CPU"]}
        monkeypatch.setattr(tf.config, "list_physical_devices", devices.get)
    else:
        import jax

        monkeypatch.setattr(jax, "default_backend", lambda: "gpu" if has_gpu else "cpu")
    assert runs_on_gpu() == has_gpu


@pytest.mark.parametrize(("num_rows", "expected"), [(0, 0), (1, 512), (512, 512), (513, 1024)])
def test_batches_are_padded_with_zeros_to_a_multiple_of_512(num_rows, expected):
    ones, twos = filled_up(keras.ops.ones(num_rows), 2 * keras.ops.ones(num_rows))
    assert (ones.shape[0], twos.shape[0]) == (expected, expected)
    assert float(keras.ops.sum(ones)) == num_rows
    assert float(keras.ops.sum(twos)) == 2 * num_rows
