"""What a test must know of the Keras backend that it runs on."""

import importlib

import keras
import pytest
from hypothesis import strategies as st

from keras_calibration._ops.compiled import runs_on_gpu
from keras_calibration.metrics.additive_metric import accumulator_dtype

ON_TENSORFLOW = keras.backend.backend() == "tensorflow"
# Where sums are in no fixed order: additions are atomic.
ON_GPU = runs_on_gpu()
HAS_FLOAT64 = accumulator_dtype() == "float64"
FLOATS = ["float32", "float64"] if HAS_FLOAT64 else ["float32"]
# JAX without `jit` runs operation by operation, which nobody trains or evaluates with.
JIT_COMPILE = [False, True] if ON_TENSORFLOW else [True]

needs_float64 = pytest.mark.skipif(not HAS_FLOAT64, reason="The backend has no float64.")


def digits(tolerance, in_float32=1e-5):
    """The tolerance given, but never less than float32 can keep where there is no float64.

    Args:
        tolerance: What results in float64 must keep.
        in_float32: What they must keep on a backend without float64.
    """
    return tolerance if HAS_FLOAT64 else max(tolerance, in_float32)


def repeated(value):
    """What the same computation gives once more; on a GPU, sums differ in their last digits."""
    return pytest.approx(value, rel=1e-5) if ON_GPU else value


def examples(number):
    """Hypothesis' examples of one run: fewer where every number of rows is compiled anew.

    A run with the slow tests draws others: for the sake of the time, one run has a part of them.
    """
    return number // (4 if ON_TENSORFLOW else 8)


def few_lengths(elements, *, min_size=0, max_size):
    """Hypothesis' lists; of four lengths on JAX, which compiles every length anew."""
    if ON_TENSORFLOW:
        return st.lists(elements, min_size=min_size, max_size=max_size)
    lengths = {min_size, min_size + 1, (min_size + max_size) // 2, max_size}
    return st.sampled_from(sorted(lengths)).flatmap(
        lambda length: st.lists(elements, min_size=length, max_size=length)
    )


# Logits, labels and weights of a few rows, for the fits that must take or refuse whatever comes.
HOSTILE_ROWS = few_lengths(
    st.tuples(
        st.sampled_from([-16384.0, -500.0, -2.0, -2.0, 0.0, 0.3, 3.0, 40.0, 16384.0]),
        st.sampled_from([0.0, 0.0, 1.0, 0.5]),
        st.sampled_from([0.0, 1e-6, 1.0, 1e6]),
    ),
    min_size=1,
    max_size=12,
)


def on_a_gpu(monkeypatch, is_one=True):
    """Lets the sums and curves take the way of a GPU, or of a CPU, whatever the backend has."""
    for name in ("logit_moments", "piecewise_linear", "sums_by_cell"):
        module = importlib.import_module(f"keras_calibration._ops.{name}")
        monkeypatch.setattr(module, "runs_on_gpu", lambda: is_one)


def dtype_of(values):
    """The dtype that the backend gives an array: without x64, JAX has no 64-bit ones."""
    return keras.backend.standardize_dtype(keras.ops.convert_to_tensor(values).dtype)


def gradients(function, *arrays):
    """The gradients of a function's sum by each of its arguments."""
    if ON_TENSORFLOW:
        import tensorflow as tf

        tensors = [tf.convert_to_tensor(array) for array in arrays]
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            total = tf.reduce_sum(function(*tensors))
        return tape.gradient(total, tensors)
    import jax

    tensors = [keras.ops.convert_to_tensor(array) for array in arrays]
    return jax.grad(lambda *values: function(*values).sum(), tuple(range(len(tensors))))(*tensors)


def gradients_by_weights(layer, inputs):
    """The gradients of a layer's summed output by its trainable weights."""
    layer(inputs)  # builds
    weights = [weight.value for weight in layer.trainable_weights]
    if ON_TENSORFLOW:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            total = tf.reduce_sum(layer(inputs))
        return tape.gradient(total, weights)
    import jax

    fixed = [weight.value for weight in layer.non_trainable_variables]
    return jax.grad(lambda values: layer.stateless_call(values, fixed, inputs)[0].sum())(weights)


def compiled(function):
    """The function under XLA."""
    if ON_TENSORFLOW:
        import tensorflow as tf

        return tf.function(function, jit_compile=True, autograph=False)
    import jax

    return jax.jit(function)


def one_program(function):
    """The function itself; on JAX, which else compiles every operation by itself, under `jit`."""
    if ON_TENSORFLOW:
        return function
    import jax

    def call(*arguments):
        plain = [place for place, value in enumerate(arguments) if not hasattr(value, "shape")]
        return jax.jit(function, static_argnums=plain)(*arguments)

    return call


def update_step(metric, jit_compile):
    """`metric.update_state` as a compiled training step calls it."""
    if ON_TENSORFLOW:
        import tensorflow as tf

        return tf.function(metric.update_state, jit_compile=jit_compile, autograph=False)
    import jax

    step = metric.stateless_update_state
    step = jax.jit(step) if jit_compile else step

    def update(*rows):
        state = step([variable.value for variable in metric.variables], *rows)
        for variable, value in zip(metric.variables, state, strict=True):
            variable.assign(value)

    return update
