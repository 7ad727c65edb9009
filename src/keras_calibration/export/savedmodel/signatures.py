"""Writes the SavedModel with its signatures, compiled with XLA if requested and possible."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from keras_calibration.layers.served_curve import curves_as_tables

if TYPE_CHECKING:
    import tensorflow as tf

# The variable collection in which a refresh finds the weights of the head.
HEAD_WEIGHTS = "head_weights"
# TensorFlow Serving compiles on a CPU only if enabled, and otherwise rejects compiled models.
_NOT_ASKED_FOR = (
    "off: jit_compile=False, because TensorFlow Serving rejects compiled models on a CPU by default"
)

_Function = Callable[[Features], dict[str, Tensor]]


def write_signatures(spec: Spec, path: Path, jit_compile: bool) -> dict[str, str]:
    """Writes a SavedModel with the signatures `serving_default`, `raw` and `calibrate`.

    Returns:
        "base" and "head" → "on", or the reason why it is not compiled.
    """
    calibrate: _Function = lambda rows: head_outputs(spec.head, rows, spec.interval)  # noqa: E731
    raw: _Function = lambda rows: spec.base_outputs(rows)[0]  # noqa: E731
    before: Callable[[Features], Any] = spec.base_outputs
    xla = dict.fromkeys(("base", "head"), _NOT_ASKED_FOR)
    with curves_as_tables(spec.head) as tables:
        if jit_compile:
            raw, xla["base"] = _compile_if_possible(raw, spec.rows)
            calibrate, xla["head"] = _compile_if_possible(calibrate, spec.head_rows)
            before = _compile(before) if xla["base"] == "on" else before

        def serving(rows: Features) -> dict[str, Tensor]:
            outputs, head_rows = before(rows)
            return {**calibrate(head_rows), **outputs}

        _write({SERVING: serving, RAW: raw, CALIBRATE: calibrate}, spec, tables, path)
    return xla


def served_weights(head: Head, interval: float | None) -> list[keras.Variable]:
    """The weights of a head that an export reads: the posterior only for an interval."""
    return without_posterior(head.weights) if interval is None else head.weights


def _write(
    endpoints: Mapping[str, _Function], spec: Spec, tables: list[tf.Variable], path: Path
) -> None:
    import tensorflow as tf

    archive = keras.export.ExportArchive()
    # The parts hold the lookup tables. Keras would write each weight of a tracked layer twice, for
    # the layer and for the function; for a tracked module, it writes each once.
    parts = tf.Module()
    parts.base, parts.head, parts.tables = spec.base, spec.head, tables
    archive.track(parts)
    weights = served_weights(spec.head, spec.interval)
    archive.add_variable_collection(HEAD_WEIGHTS, [*(weight.value for weight in weights), *tables])
    for name, endpoint in endpoints.items():
        inputs = dict(spec.head_inputs if name == CALIBRATE else spec.inputs)
        archive.add_endpoint(name, with_checked_inputs(endpoint, inputs), input_signature=[inputs])
    # The SavedModel is not trained: without gradients, the graph is smaller and loads faster.
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    with without_notices("tensorflow"):
        archive.write_out(str(path), options=options, verbose=False)


def _compile_if_possible(function: _Function, rows: Features) -> tuple[_Function, str]:
    """The function compiled with XLA and "on", or unchanged and the reason."""
    import tensorflow as tf

    if strings := sorted(name for name, values in rows.items() if values.dtype == tf.string):
        return function, f"off: XLA does not support strings, which these features hold: {strings}"
    compiled = _compile(function)
    try:
        compiled(rows)
    except (tf.errors.OpError, ValueError, TypeError) as error:
        return function, f"off: {str(error).strip().splitlines()[0][:300]}"
    return compiled, "on"


def _compile(function: Callable[[Features], Any]) -> Callable[[Features], Any]:
    """The function compiled with XLA, once for each number of rows in a request."""
    import tensorflow as tf

    return tf.function(function, jit_compile=True, autograph=False)
