"""The package's kernels as programs for a GPU: lowered to StableHLO by TensorFlow or by JAX.

`kernels` names the functions of rows with the bytes of a row that must move, `lowered` makes
StableHLO of one on the backend that Keras runs on. Nothing is computed, so no size is too large.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import keras
from keras import ops

from gpu.compiler import stablehlo
from keras_calibration._ops import piecewise_linear
from keras_calibration._ops.class_temperature import temperature_summary
from keras_calibration._ops.field_sums import field_sums
from keras_calibration._ops.logit_moments import logit_moments
from keras_calibration.layers import ILPS, FieldNetwork, NeuralCalibration
from keras_calibration.metrics import CalibratedLogLoss
from keras_calibration.models import CalibratedModel

NUM_BYTES = {"float32": 4, "bfloat16": 2}
NUM_VALUES = 500  # of the field
NUM_CLASSES = 10
Function = Callable[..., Any]


@dataclass(frozen=True)
class Kernel:
    """A function of tensors whose first axis is the rows.

    Args:
        function: Returns a tensor, or several.
        arguments: Name → shape and dtype of each argument.
        bytes_a_row: Bytes of a row that must move: those of the arguments and of the results.
    """

    function: Function
    arguments: dict[str, tuple[tuple[int, ...], str]]
    bytes_a_row: int


def kernels(num_rows: int, dtype: str = "float32") -> dict[str, Kernel]:
    """Name → kernel, on logits of a dtype; sums are over float32."""
    item, row_argument = NUM_BYTES[dtype], {"logits": ((num_rows,), dtype)}
    by_curve = {"upstream": ((num_rows,), dtype)}
    by_name = {
        # Of the negative: a program that returns its argument moves nothing.
        "copy": Kernel(ops.negative, row_argument, 2 * item),
        "sigmoid": Kernel(ops.sigmoid, row_argument, 2 * item),
        "sigmoid with gradient": Kernel(
            with_gradient(ops.sigmoid), {**by_curve, **row_argument}, 4 * item
        ),
    }
    by_curve = {"upstream": ((num_rows,), "float32")}  # The curve is float32.
    for num_knots in (20, 100):
        arguments = {
            **row_argument,
            "knots": ((num_knots,), "float32"),
            "values": ((num_knots,), "float32"),
        }
        name = f"ILPS, {num_knots} knots"
        by_name[name] = Kernel(curve, arguments, item + 4)
        by_name[f"{name}, with gradient"] = Kernel(
            with_gradient(curve), {**by_curve, **arguments}, 2 * item + 8
        )
    if dtype == "float32":
        row, classes = ((num_rows,), dtype), ((num_rows, NUM_CLASSES), dtype)
        ids = ((num_rows,), "int32")
        by_name |= {
            "summary of logits": Kernel(summary, {"labels": row, "logits": row}, 8),
            "sums by field value": Kernel(
                sums_by_field, {"labels": row, "predictions": row, "ids": ids}, 12
            ),
            "sums by field value, without weights": Kernel(
                sums_by_field_without_weights, {"labels": row, "predictions": row, "ids": ids}, 12
            ),
            "sums by class": Kernel(
                sums_by_class, {"labels": classes, "logits": classes}, 8 * NUM_CLASSES
            ),
        }
    return by_name


def curve(logits: Any, knots: Any, values: Any) -> Any:
    return piecewise_linear(ops.cast(logits, "float32"), knots, values)


def summary(labels: Any, logits: Any) -> Any:
    return logit_moments(labels, logits, ops.ones_like(logits), ops.zeros_like(logits, "int32"), 1)


def sums_by_field(labels: Any, predictions: Any, ids: Any) -> Any:
    return field_sums(labels, predictions, ops.ones_like(labels), ids, NUM_VALUES)


def sums_by_field_without_weights(labels: Any, predictions: Any, ids: Any) -> Any:
    return field_sums(labels, predictions, ops.ones_like(labels), ids, NUM_VALUES, False)


def sums_by_class(labels: Any, logits: Any) -> Any:
    weights = ops.ones_like(logits[:, 0])
    return temperature_summary(labels, logits, weights, ops.zeros_like(weights, "int32"), 1)


def with_gradient(function: Function) -> Function:
    """Upstream gradient and arguments → results, and gradients by logits and values."""

    def on_tensorflow(upstream: Any, logits: Any, *knots_and_values: Any) -> Any:
        import tensorflow as tf

        sources = [logits, *knots_and_values[1:]]
        with tf.GradientTape() as tape:
            tape.watch(sources)
            results = function(logits, *knots_and_values)
        return results, *tape.gradient(results, sources, upstream)

    def on_jax(upstream: Any, logits: Any, *knots_and_values: Any) -> Any:
        import jax

        knots = knots_and_values[:1]
        results, pull_back = jax.vjp(
            lambda logits, *values: function(logits, *knots, *values), logits, *knots_and_values[1:]
        )
        return results, *pull_back(upstream)

    return on_tensorflow if keras.backend.backend() == "tensorflow" else on_jax


def lowered(kernel: Kernel) -> str:
    """StableHLO of a kernel, as for a GPU."""
    with on_a_gpu():
        if keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            specs = [tf.TensorSpec(*argument) for argument in kernel.arguments.values()]
            function = tf.function(
                kernel.function, input_signature=specs, jit_compile=True, autograph=False
            )
            function.get_concrete_function()  # A later trace would not know of XLA.
            hlo = function.experimental_get_compiler_ir(*specs)
            return stablehlo(hlo(stage="hlo_serialized", platform_name="GPU"))
    import jax

    arguments = [jax.ShapeDtypeStruct(*argument) for argument in kernel.arguments.values()]
    return lowered_with_variables(kernel.function, *arguments)


def lowered_training_step(num_rows: int) -> str:
    """StableHLO of a training step of ILPS + FieldNetwork with Adam."""
    head = some_head()
    logits, ids = ops.zeros((num_rows, 1)), ops.zeros((num_rows,), "int32")
    labels = ops.zeros((num_rows, 1))
    head(logits, {"site": ids})
    optimizer = keras.optimizers.Adam()
    optimizer.build(head.trainable_variables)
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        def step(logits: Any, ids: Any, labels: Any) -> Any:
            with tf.GradientTape() as tape:
                value = loss(labels, head(logits, {"site": ids})) + sum(head.losses, 0.0)
            weights = head.trainable_variables
            optimizer.apply(tape.gradient(value, [w.value for w in weights]), weights)
            return value

        return lowered_with_variables(step, logits, ids, labels)
    import jax

    def total(weights: Any, fixed: Any, logits: Any, ids: Any, labels: Any) -> Any:
        outputs, _, losses = head.stateless_call(
            weights, fixed, logits, {"site": ids}, return_losses=True
        )
        return loss(labels, outputs) + sum(losses, 0.0)

    def jax_step(weights: Any, fixed: Any, state: Any, *rows: Any) -> Any:
        return optimizer.stateless_apply(state, jax.grad(total)(weights, fixed, *rows), weights)

    variables = (head.trainable_variables, head.non_trainable_variables, optimizer.variables)
    values = [[variable.value for variable in some] for some in variables]
    return lowered_with_variables(jax_step, *values, logits, ids, labels)


def lowered_result() -> str:
    """StableHLO of the Calibrated Log Loss of its sums, which Keras asks for at every step."""
    metric = CalibratedLogLoss()
    return lowered_with_variables(lambda: metric.result())


def lowered_serving(num_rows: int) -> str:
    """StableHLO of what a calibrated model serves: base model, field network and ILPS."""
    inputs = {"x": keras.Input((8,), name="x"), "site": keras.Input((), dtype="int32", name="site")}
    base = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(inputs["x"]))
    model = CalibratedModel(base, some_head())
    rows = ops.zeros((num_rows, 8)), ops.zeros((num_rows,), "int32")
    return lowered_with_variables(
        lambda x, site: model({"x": x, "site": site}, training=False), *rows
    )


def some_head() -> NeuralCalibration:
    network = FieldNetwork({"site": 20_000}, regularization=0.0, dropout=0.0, seed=0)
    return NeuralCalibration(ILPS(knots="sigmoid", smoothness=0.0), network)


def lowered_with_variables(function: Function, *arguments: Any) -> str:
    """StableHLO of a function that may read variables; of TensorFlow's as for a CPU."""
    with on_a_gpu():
        if keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            function = tf.function(function, jit_compile=True, autograph=False)
            function.get_concrete_function(*arguments)
            hlo = function.experimental_get_compiler_ir(*arguments)
            return stablehlo(hlo(stage="hlo_serialized"))
        import jax

        # A function of its own: JAX remembers what it has traced.
        traced = jax.jit(lambda *tensors: function(*tensors)).trace(*arguments)
        return traced.lower(lowering_platforms=("cuda",)).as_text()


@contextlib.contextmanager
def on_a_gpu() -> Iterator[None]:
    """Lets the package take the way of a GPU, as if the backend had one."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        patched = mock.patch.object(tf.config, "list_physical_devices", return_value=["a GPU"])
    else:
        import jax

        patched = mock.patch.object(jax, "default_backend", return_value="gpu")
    with patched:
        yield
