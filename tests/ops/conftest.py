"""Every kernel must give the same eagerly, in a graph and under XLA."""

import numpy as np
import pytest
import tensorflow as tf


@pytest.fixture(params=["eager", "graph", "compiled"])
def run(request):
    """Calls a function on arrays; the first `num_of_any_size` have rows of unknown number."""

    def run(function, *arrays, num_of_any_size=0):
        arrays = [np.asarray(array) for array in arrays]
        tensors = [tf.constant(array) for array in arrays]
        if request.param == "eager":
            return function(*tensors)
        signature = [
            tf.TensorSpec(
                (None, *array.shape[1:]) if place < num_of_any_size else array.shape, array.dtype
            )
            for place, array in enumerate(arrays)
        ]
        compiled = tf.function(
            function, input_signature=signature, jit_compile=request.param == "compiled"
        )
        return compiled(*tensors)

    return run


@pytest.fixture(params=["float32", "float64"])
def dtype(request):
    return request.param


@pytest.fixture
def tolerance(dtype):
    return {"float32": 1e-5, "float64": 1e-12}[dtype]
