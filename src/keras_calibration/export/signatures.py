"""The SavedModel itself: its signatures, compiled by XLA where that is wished and possible."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras
from keras import ops

from keras_calibration.export.constants import small_weights, with_constants
from keras_calibration.export.model_rows import head_inputs, input_specs, restructured
from keras_calibration.export.served_embeddings import plain_embeddings, with_quick_embeddings
from keras_calibration.export.served_head import served_head, weights_of_tables
from keras_calibration.models.calibrated_model import CalibratedModel

# The collection under which the SavedModel lists the head's weights, for a refresh to find them.
HEAD_WEIGHTS = "head_weights"
SERVING, RAW, CALIBRATE = "serving_default", "raw", "calibrate"
# XLA compiles once for every number of rows, for about half a second each: batches are filled up to
# one of these, or to a multiple of the largest.
COMPILED_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_LARGEST = COMPILED_SIZES[-1]
# XLA multiplies large batches by a large constant slower than by a variable.
_LARGEST_COMPILED = 2**13
# TensorFlow Serving compiles on a CPU only if it is told to, and refuses such a model otherwise.
_NOT_ASKED_FOR = "off: jit_compile=False, as TensorFlow Serving needs it on a CPU by default"

_Function = Callable[[Mapping[str, Any]], dict[str, Any]]


def write_signatures(
    model: CalibratedModel,
    path: Path,
    rows: Mapping[str, Any],
    jit_compile: bool = False,
    fill_up: bool = True,
) -> dict[str, str]:
    """Writes a SavedModel with the signatures `serving_default`, `raw` and `calibrate`.

    Args:
        model: The calibrated model.
        path: The folder to write, which does not exist.
        rows: Input rows by name, to try the compiler on.
        jit_compile: Whether to compile by XLA what can be.
        fill_up: Whether to fill compiled batches up to one of `COMPILED_SIZES`.

    Returns:
        "base" and "head" → "on", or why it is not compiled.
    """
    import tensorflow as tf

    inputs = input_specs(model)
    head, names = served_head(model.head), head_inputs(model)
    base_model = keras.Model(model.input, model.base.output)

    def of_base(features: Mapping[str, Any]) -> dict[str, Any]:
        logit = base_model(restructured(model, features), training=False)
        return {"uncalibrated_probability": ops.sigmoid(logit), "logit": logit}

    def of_head(features: Mapping[str, Any]) -> dict[str, Any]:
        calibrated = head(features["logit"], {name: features[name] for name in names})
        return {"probability": model.probability(calibrated)}

    def composed(first: _Function, second: _Function, features: Mapping[str, Any]) -> Any:
        outputs = first(features)
        head_rows = {name: features[name] for name in names}
        return {**second({"logit": outputs["logit"], **head_rows}), **outputs}

    logits = model.base(restructured(model, rows))
    head_rows = {"logit": logits, **{name: rows[name] for name in names}}
    of_head(head_rows)  # builds the head
    raw = _with_base_constants(of_base, model, jit_compile)
    # What a layer computes from constants XLA works out at compilation, for seconds at its worst.
    of_tables = small_weights(weights_of_tables(head) if jit_compile else head.weights)
    calibrate = with_constants(of_head, of_tables, head.weights)

    def both(features: Mapping[str, Any]) -> dict[str, Any]:
        return composed(raw, calibrate, features)

    endpoints: dict[str, _Function] = {SERVING: both, RAW: raw, CALIBRATE: calibrate}
    xla = {"base": _NOT_ASKED_FOR, "head": _NOT_ASKED_FOR}
    if jit_compile:
        endpoints[RAW], xla["base"] = _compiled_if_possible(raw, rows, fill_up)
        endpoints[CALIBRATE], xla["head"] = _compiled_if_possible(calibrate, head_rows, fill_up)
        if set(xla.values()) == {"on"}:
            endpoints[SERVING] = _compiled(both, fill_up)
        else:
            parts = endpoints[RAW], endpoints[CALIBRATE]
            endpoints[SERVING] = lambda features: composed(*parts, features)

    logit = tf.TensorSpec((None, 1), model.base.compute_dtype, name="logit")
    calibrate_inputs = {"logit": logit, **{name: inputs[name] for name in names}}
    archive = keras.export.ExportArchive()
    # They hold the lookup tables.
    archive.track(base_model)
    archive.track(head)
    archive.add_variable_collection(HEAD_WEIGHTS, head.weights)
    specs = {SERVING: inputs, RAW: inputs, CALIBRATE: calibrate_inputs}
    for name, endpoint in endpoints.items():
        archive.add_endpoint(name, endpoint, input_signature=[specs[name]])
    # Nobody trains what is served: without gradients the graph is smaller and loads faster.
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    archive.write_out(str(path), options=options, verbose=False)
    return xla


def _with_base_constants(
    of_base: _Function, model: CalibratedModel, jit_compile: bool
) -> _Function:
    """The function with constants in place of small weights of the base model."""
    constants = {id(weight): weight for weight in small_weights(model.base.weights)}
    if jit_compile:
        small = [w for w in constants.values() if math.prod(w.shape) <= _LARGEST_COMPILED]
        return with_constants(of_base, small)
    layers = [
        layer
        for layer in plain_embeddings(model.base_model)
        if constants.pop(id(layer.embeddings), None) is not None
    ]
    return with_quick_embeddings(with_constants(of_base, constants.values()), layers)


def _compiled_if_possible(
    function: _Function, rows: Mapping[str, Any], fill_up: bool
) -> tuple[_Function, str]:
    """A function of rows under XLA and "on", or as it is and why."""
    import tensorflow as tf

    strings = sorted(name for name, values in rows.items() if values.dtype == tf.string)
    if strings:
        return function, f"off: XLA has no strings, and these features are: {strings}"
    compiled = _compiled(function, fill_up)
    try:
        tf.function(compiled, autograph=False)(rows)
    except (tf.errors.OpError, ValueError, TypeError) as error:
        return function, f"off: {str(error).strip().splitlines()[0][:300]}"
    return compiled, "on"


def _compiled(function: _Function, fill_up: bool) -> _Function:
    """The function under XLA; filled up, it sees few different numbers of rows."""
    import tensorflow as tf

    inner = tf.function(function, jit_compile=True, autograph=False)
    if not fill_up:
        return inner

    def compiled(features: Mapping[str, Any]) -> Any:
        num_rows = tf.shape(next(iter(features.values())))[0]

        def filled_up() -> dict[str, Any]:
            # By copies of the last row: nobody knows whether a row of zeros is valid.
            places = tf.minimum(tf.range(_filled_up(num_rows)), num_rows - 1)
            filled = {name: tf.gather(values, places) for name, values in features.items()}
            return {name: values[:num_rows] for name, values in inner(filled).items()}

        is_power_of_2 = tf.equal(tf.bitwise.bitwise_and(num_rows, num_rows - 1), 0)
        return tf.cond(is_power_of_2, lambda: inner(features), filled_up)

    return compiled


def _filled_up(num_rows: Any) -> Any:
    import tensorflow as tf

    powers = tf.constant(COMPILED_SIZES)
    power = tf.reduce_min(tf.where(powers >= num_rows, powers, _LARGEST))
    multiple = -(-num_rows // _LARGEST) * _LARGEST
    return tf.where(num_rows > _LARGEST, multiple, tf.where(num_rows > 0, power, 0))
