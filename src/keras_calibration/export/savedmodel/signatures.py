"""Writes the SavedModel with its signatures, compiled with XLA if requested and possible."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras

from calibration_records._warn import without_notices
from keras_calibration._typing import Features, Tensor
from keras_calibration.export.checked_inputs import with_checked_inputs
from keras_calibration.export.publish import CALIBRATE, RAW, SERVING
from keras_calibration.export.spec import Spec, head_outputs
from keras_calibration.layers.head import Head
from keras_calibration.layers.posterior import without_posterior

if TYPE_CHECKING:
    import tensorflow as tf

# The variable collections with the weights of the served head and, with intervals, of the head and
# its posterior, by which a refresh finds them.
HEAD_WEIGHTS, INTERVAL_WEIGHTS = "head_weights", "interval_weights"
# The value of `jit_compile` that compiles without padding of batches.
UNPADDED = "unpadded"
# XLA compiles once per number of rows, for about half a second each: batches are padded to one of
# these sizes, or to a multiple of the largest.
COMPILED_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_LARGEST = COMPILED_SIZES[-1]
# TensorFlow Serving compiles on a CPU only if enabled, and otherwise rejects compiled models.
_NOT_ASKED_FOR = (
    "off: jit_compile=False, because TensorFlow Serving rejects compiled models on a CPU by default"
)

_Rows = Features
_Function = Callable[[_Rows], dict[str, Tensor]]


def write_signatures(spec: Spec, path: Path, jit_compile: bool | str = False) -> dict[str, str]:
    """Writes a SavedModel with the signatures `serving_default`, `raw` and `calibrate`.

    The base model is exported by Keras itself.

    Args:
        spec: The model to serve.
        path: The folder to write; it must not exist.
        jit_compile: Whether to compile with XLA where possible; `"unpadded"` compiles without
            padding of batches.

    Returns:
        "base" and "head" → "on", or the reason why it is not compiled.
    """
    head = spec.head.served()

    def calibrate(given: _Rows) -> dict[str, Tensor]:
        return head_outputs(spec.head, given, spec.interval, served=head)

    def raw(rows: _Rows) -> dict[str, Tensor]:
        return spec.base_outputs(rows)[0]

    calibrate(spec.head_rows)  # builds the head
    endpoints: dict[str, _Function] = {RAW: raw, CALIBRATE: calibrate}
    xla = dict.fromkeys(endpoints, _NOT_ASKED_FOR)
    serving = _one_after_the_other(spec.base_outputs, calibrate)
    if jit_compile:
        fill_up = jit_compile != UNPADDED
        for name, sample in ((RAW, spec.rows), (CALIBRATE, spec.head_rows)):
            endpoints[name], xla[name] = _compiled_if_possible(endpoints[name], sample, fill_up)
        if set(xla.values()) == {"on"}:
            serving = _compiled(serving, fill_up)
        elif "on" in xla.values():
            before = spec.base_outputs
            compiled = before if xla[RAW] != "on" else _compiled(before, fill_up)
            serving = _one_after_the_other(compiled, endpoints[CALIBRATE])
    _write({SERVING: serving, **endpoints}, spec, head, path)
    return {"base": xla[RAW], "head": xla[CALIBRATE]}


def _one_after_the_other(
    before_head: Callable[[_Rows], tuple[dict[str, Tensor], dict[str, Tensor]]],
    calibrate: _Function,
) -> _Function:
    """A function with all outputs, by calling the base model's and then the head's function."""

    def both(features: _Rows) -> dict[str, Tensor]:
        outputs, given = before_head(features)
        return {**calibrate(given), **outputs}

    return both


def _write(endpoints: Mapping[str, _Function], spec: Spec, head: Head, path: Path) -> None:
    import tensorflow as tf

    archive = keras.export.ExportArchive()
    # They contain the lookup tables. Keras writes each weight of a layer that it tracks itself
    # twice, as the layer's and as the function's; of those in a module it writes the function's.
    parts = tf.Module()
    parts.base, parts.head = spec.base, head
    archive.track(parts)
    archive.add_variable_collection(HEAD_WEIGHTS, _values(without_posterior(head.weights)))
    if spec.interval is not None:
        parts.fitted_head = spec.head
        archive.add_variable_collection(INTERVAL_WEIGHTS, _values(spec.head.weights))
    for name, endpoint in endpoints.items():
        inputs = dict(spec.head_inputs if name == CALIBRATE else spec.inputs)
        archive.add_endpoint(name, with_checked_inputs(endpoint, inputs), input_signature=[inputs])
    # The SavedModel is not trained: without gradients, the graph is smaller and loads faster.
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    with without_notices("tensorflow"):
        archive.write_out(str(path), options=options, verbose=False)


def _values(weights: Sequence[keras.Variable]) -> list[tf.Variable]:
    """The TensorFlow variables of Keras weights."""
    return [weight.value for weight in weights]


def _compiled_if_possible(function: _Function, rows: _Rows, fill_up: bool) -> tuple[_Function, str]:
    """The function compiled with XLA and "on", or unchanged and the reason."""
    import tensorflow as tf

    strings = sorted(name for name, values in rows.items() if values.dtype == tf.string)
    if strings:
        return function, f"off: XLA does not support strings, which these features hold: {strings}"
    compiled = _compiled(function, fill_up)
    try:
        tf.function(compiled, autograph=False)(rows)
    except (tf.errors.OpError, ValueError, TypeError) as error:
        return function, f"off: {str(error).strip().splitlines()[0][:300]}"
    return compiled, "on"


def _compiled(function: Callable[[_Rows], Any], fill_up: bool) -> Callable[[_Rows], Any]:
    """The function compiled with XLA; padding limits the number of different batch sizes."""
    import tensorflow as tf

    inner = tf.function(function, jit_compile=True, autograph=False)
    if not fill_up:
        return inner

    def compiled(features: _Rows) -> Any:
        num_rows = tf.shape(next(iter(features.values())))[0]

        def filled_up() -> Any:
            # With copies of the last row, because a row of zeros may be invalid.
            places = tf.minimum(tf.range(_filled_up(num_rows)), num_rows - 1)
            filled = {name: tf.gather(values, places) for name, values in features.items()}
            return keras.tree.map_structure(lambda values: values[:num_rows], inner(filled))

        is_power_of_2 = tf.equal(tf.bitwise.bitwise_and(num_rows, num_rows - 1), 0)
        return tf.cond(is_power_of_2, lambda: inner(features), filled_up)

    return compiled


def _filled_up(num_rows: Tensor) -> Tensor:
    import tensorflow as tf

    powers = tf.constant(COMPILED_SIZES)
    power = tf.reduce_min(tf.where(powers >= num_rows, powers, _LARGEST))
    multiple = -(-num_rows // _LARGEST) * _LARGEST
    return tf.where(num_rows > _LARGEST, multiple, tf.where(num_rows > 0, power, 0))
