"""Every kernel must give the same eagerly and in a graph, on TensorFlow, and under XLA."""

import keras
import numpy as np
import pytest

from backends import FLOATS, ON_TENSORFLOW, compiled


# JAX has no graphs beside what XLA compiles, and single operations are compiled one by one.
@pytest.fixture(params=["eager", "graph", "compiled"] if ON_TENSORFLOW else ["compiled"])
def run(request):
    """Calls a function on arrays; the first `num_of_any_size` have rows of unknown number.

    A function called again with the same signature is neither traced nor compiled again.
    """
    traced = {}

    def run(function, *arrays, num_of_any_size=0):
        arrays = [np.asarray(array) for array in arrays]
        if not ON_TENSORFLOW:
            tensors = [keras.ops.convert_to_tensor(array) for array in arrays]
            return traced.setdefault(function, compiled(function))(*tensors)
        import tensorflow as tf

        tensors = [tf.constant(array) for array in arrays]
        if request.param == "eager":
            return function(*tensors)
        signature = [
            tf.TensorSpec(
                (None, *array.shape[1:]) if place < num_of_any_size else array.shape, array.dtype
            )
            for place, array in enumerate(arrays)
        ]
        key = (function, *signature)
        if key not in traced:
            traced[key] = tf.function(
                function,
                input_signature=signature,
                jit_compile=request.param == "compiled",
                autograph=False,
            )
        return traced[key](*tensors)

    return run


@pytest.fixture(params=FLOATS)
def dtype(request):
    return request.param


@pytest.fixture
def tolerance(dtype):
    return {"float32": 1e-5, "float64": 1e-12}[dtype]
