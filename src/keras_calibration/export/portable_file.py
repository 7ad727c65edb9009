"""export_onnx and export_litert: a calibrated model as one file, checked in its runtime."""

import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calibration._compat import flatten_layers, patch_tf2onnx, with_constant_weights
from keras_calibration.export.serving_spec import (
    ServingSpec,
    by_signature,
    outputs_on,
    sample_rows,
    serving_spec,
    warn_if_unfitted,
)
from keras_calibration.export.verification import tolerance_for
from keras_calibration.export.version_folder import temporary_folder
from keras_calibration.models.calibrated_model import CalibratedModel

_OUTPUTS = ("probability", "uncalibrated_probability", "logit")
_OPSET = 17
_LOOKUPS = (
    keras.layers.IntegerLookup,
    keras.layers.StringLookup,
    keras.layers.Hashing,
    keras.layers.TextVectorization,
)
_Rows = dict[str, np.ndarray]


def export_onnx(model: CalibratedModel, path: str | os.PathLike[str], sample: Any = None) -> Path:
    """Writes a calibrated model of numeric inputs as an ONNX file, for onnxruntime.

    It takes the features under the names of the SavedModel's `serving_default` and gives
    `probability`, `uncalibrated_probability` and `logit`, float32 (batch, 1), for any number of
    rows. The file is written to a temporary folder, run in onnxruntime on sample rows, compared
    with the Keras model, and only then put at `path`.

    Needs tf2onnx, onnx and onnxruntime: `pip install "keras-calibration[onnx]"`.

    Args:
        model: The calibrated model. Strings and lookup layers have no counterpart in onnxruntime:
            such models are refused.
        path: The file to write, `ctr.onnx` for example; it must not exist.
        sample: Input rows to compare on, as the model takes them; by default random ones.

    Returns:
        The path.

    Raises:
        ValueError: If the model cannot run in onnxruntime, or `path` exists. Nothing is written.
        ImportError: If a package is missing. Nothing is written.
        RuntimeError: If onnxruntime gives other probabilities than rounding can explain.

    Example:
        >>> export_onnx("model", "ctr.onnx")
        Traceback (most recent call last):
        ...
        ValueError: Expected a CalibratedModel. Received: str. Other Keras models export with
        model.export(path).
    """
    return _export(model, path, sample, "onnxruntime", _to_onnx, run_onnx)


def export_litert(model: CalibratedModel, path: str | os.PathLike[str], sample: Any = None) -> Path:
    """Writes a calibrated model of numeric inputs as a LiteRT file, for phones and small devices.

    Its one signature, `serving_default`, takes the features under the names of the SavedModel's and
    gives `probability`, `uncalibrated_probability` and `logit`, float32 (batch, 1), for any number
    of rows. It uses built-in operations only, so that every interpreter runs it. The file is
    written to a temporary folder, run in the interpreter that comes with TensorFlow on sample rows,
    compared with the Keras model, and only then put at `path`.

    Args:
        model: The calibrated model. Strings and lookup layers have no built-in operations: such
            models are refused.
        path: The file to write, `ctr.tflite` for example; it must not exist.
        sample: Input rows to compare on, as the model takes them; by default random ones.

    Returns:
        The path.

    Raises:
        ValueError: If the model cannot run in LiteRT, or `path` exists. Nothing is written.
        RuntimeError: If the interpreter gives other probabilities than rounding can explain.

    Example:
        >>> export_litert("model", "ctr.tflite")
        Traceback (most recent call last):
        ...
        ValueError: Expected a CalibratedModel. Received: str. Other Keras models export with
        model.export(path).
    """
    return _export(model, path, sample, "LiteRT", _to_litert, run_litert)


def run_onnx(file: Path, inputs: _Rows) -> _Rows:
    """What onnxruntime gives for some rows."""
    _, onnxruntime = _onnx_packages()
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    return dict(zip(_OUTPUTS, session.run(list(_OUTPUTS), inputs), strict=True))


def run_litert(file: Path, inputs: _Rows) -> _Rows:
    """What TensorFlow's LiteRT interpreter gives for some rows."""
    import tensorflow as tf

    with warnings.catch_warnings():
        # It is to move into a package of its own.
        warnings.simplefilter("ignore")
        interpreter = tf.lite.Interpreter(str(file))
    outputs: _Rows = interpreter.get_signature_runner()(**inputs)
    return outputs


def _to_litert(function: Any, specs: dict[str, Any]) -> bytes:
    import tensorflow as tf

    concrete = function.get_concrete_function(specs)
    holder = tf.Module()
    holder.serve = function
    converter = tf.lite.TFLiteConverter.from_concrete_functions([concrete], holder)
    return bytes(converter.convert())


def _to_onnx(function: Any, specs: dict[str, Any]) -> bytes:
    tf2onnx, _ = _onnx_packages()

    def where(context: Any, node: Any, name: str, arguments: Any) -> None:
        """A choice between values; the converter's own multiplies them by 0 and 1, NaN included."""
        node.type = "Where"

    with warnings.catch_warnings():
        # About NumPy, from the converter's own lines.
        warnings.simplefilter("ignore")
        patch_tf2onnx()
        converted, _ = tf2onnx.convert.from_function(
            function, [specs], opset=_OPSET, custom_op_handlers={"SelectV2": (where, [])}
        )
    return bytes(converted.SerializeToString())


def _onnx_packages() -> tuple[Any, Any]:
    """`tf2onnx` and `onnxruntime`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import onnxruntime
            import tf2onnx
    except ImportError as error:
        raise ImportError(
            "export_onnx needs tf2onnx, onnx and onnxruntime, of which one is not installed "
            f'({error}): pip install "keras-calibration[onnx]".'
        ) from error
    return tf2onnx, onnxruntime


def _export(
    model: CalibratedModel,
    path: str | os.PathLike[str],
    sample: Any,
    runtime: str,
    convert: Callable[[Any, dict[str, Any]], bytes],
    run: Callable[[Path, _Rows], _Rows],
) -> Path:
    """Converts a model, runs the file in its runtime, compares, and puts it in place."""
    path = Path(path)
    spec = serving_spec(model)
    _check(model, spec, path, runtime)
    rows = sample_rows(model, spec, sample)
    logit, probability = outputs_on(spec, rows, is_random=sample is None)
    warn_if_unfitted(model, probability, logit)
    content = _told(runtime, lambda: convert(*portable_function(spec)))
    with temporary_folder(path.parent) as temporary:
        file = temporary / path.name
        file.write_bytes(content)
        _compare(spec, rows, runtime, lambda inputs: _told(runtime, lambda: run(file, inputs)))
        os.rename(file, path)
    return path


def _told(runtime: str, act: Callable[[], Any]) -> Any:
    """What an act returns; what converters and runtimes raise as a `ValueError` of few words."""
    try:
        return act()
    except ImportError:
        raise
    except Exception as error:
        words = next((line for line in str(error).splitlines() if line.strip()), repr(error))
        raise ValueError(
            f"{runtime} cannot take this model, and nothing was written: {words[:300]}. "
            "Serve it as a SavedModel, or here the base model and there the SavedModel's signature "
            "'calibrate'."
        ) from error


def _check(model: CalibratedModel, spec: ServingSpec, path: Path, runtime: str) -> None:
    strings = sorted(name for name, each in spec.inputs.items() if each.dtype.name == "string")
    if strings:
        raise ValueError(
            f"{runtime} has no string lookups: expected a model of numeric inputs. Received the "
            f"string inputs {strings}, and nothing was written. Turn them into ids before the "
            "model, or serve it as a SavedModel."
        )
    of_head = [v for reader in model.head.field_readers() for v in reader.fields.values()]
    layers = [*flatten_layers(model.base_model), *of_head]
    if found := sorted({layer.name for layer in layers if isinstance(layer, _LOOKUPS)}):
        raise ValueError(
            f"{runtime} has no lookup tables: expected a model that takes ids. Received the "
            f"lookup layers {found}, and nothing was written. Turn the values into ids before "
            "the model, or serve it as a SavedModel."
        )
    if path.exists():
        raise ValueError(
            f"Received: path={str(path)!r}, which exists. An export never overwrites: choose "
            "another name."
        )


def _compare(
    spec: ServingSpec, rows: Mapping[str, Any], runtime: str, run: Callable[[_Rows], _Rows]
) -> None:
    """On the rows, and on the first alone: another number of rows must do as well.

    The head is compared on the runtime's own logits: a curve of steps may jump between two logits
    that differ by their rounding alone.
    """
    for num_rows in (len(next(iter(rows.values()))), 1):
        part = {name: values[:num_rows] for name, values in rows.items()}
        received = run({name: np.asarray(v) for name, v in by_signature(part).items()})
        calibrated = spec.head(ops.convert_to_tensor(received["logit"]), spec.of_head(part))
        expected = {
            "probability": ops.sigmoid(calibrated),
            "uncalibrated_probability": ops.sigmoid(spec.base(spec.structured(part))),
        }
        tolerance = tolerance_for(received["logit"], spec.base_dtypes)
        for name, values in expected.items():
            error = np.max(np.abs(received[name] - ops.convert_to_numpy(values)))
            if not error <= tolerance.allowed(name):
                raise RuntimeError(
                    f"{runtime} gives a {name} up to {error:g} from the Keras model's on "
                    f"{num_rows} rows; expected at most {tolerance.allowed(name):g}. Nothing was "
                    "written."
                )


def portable_function(spec: ServingSpec) -> tuple[Any, dict[str, Any]]:
    """A `tf.function` from features by name to the three outputs, and the specs of the features.

    The weights are constants in it. Neither ONNX nor LiteRT has `UpperBound`, with which a curve
    finds its segment: the number of knots that are not above a logit stands for it.
    """
    import tensorflow as tf

    feature_of = {each.name: name for name, each in spec.inputs.items()}
    specs = {each.name: each for each in spec.inputs.values()}

    def serve(features: Mapping[str, Any]) -> tuple[Any, ...]:
        by_name = {feature_of[name]: values for name, values in features.items()}
        logit, probability = spec.outputs(spec.structured(by_name), training=False)
        return probability, ops.sigmoid(logit), logit

    traced = tf.function(serve, autograph=False).get_concrete_function(specs)
    frozen = with_constant_weights(traced)
    graph = _without_upper_bound(frozen.graph.as_graph_def())
    imported = tf.compat.v1.wrap_function(
        lambda: tf.graph_util.import_graph_def(graph, name=""), []
    )
    inputs, outputs = ([t.name for t in ends] for ends in (frozen.inputs, frozen.outputs))
    pruned = imported.prune(inputs, outputs)
    # Dictionaries are taken in the order of their keys, by Keras and by TensorFlow alike.
    names = sorted(specs)

    def portable(features: Mapping[str, Any]) -> dict[str, Any]:
        values = pruned(*(features[name] for name in names))
        return dict(zip(_OUTPUTS, values, strict=True))

    return tf.function(portable, autograph=False), specs


def _without_upper_bound(graph: Any) -> Any:
    """A graph with `Σ_k [a_k ≤ l]` in place of every `UpperBound(a, l)`."""
    import tensorflow as tf

    rewritten = tf.compat.v1.GraphDef(versions=graph.versions, library=graph.library)
    for node in graph.node:
        if node.op != "UpperBound":
            # Converters would look for the gradient of a curve, which nobody needs here.
            node.attr.pop("_gradient_op_type", None)
            rewritten.node.append(node)
            continue
        knots, values = node.input
        with tf.Graph().as_default() as piece:
            dtype = tf.as_dtype(node.attr["T"].type)
            a = tf.compat.v1.placeholder(dtype, (None, None), name="knots")
            values_of = tf.compat.v1.placeholder(dtype, (None, None), name="values")
            is_below = tf.expand_dims(a, 1) <= tf.expand_dims(values_of, 2)
            out_type = tf.as_dtype(node.attr["out_type"].type)
            tf.reduce_sum(tf.cast(is_below, out_type), axis=2, name="count")
        for part in piece.as_graph_def().node:
            if part.op != "Placeholder":
                rewritten.node.append(_renamed(part, node.name, {"knots": knots, "values": values}))
    return rewritten


def _renamed(part: Any, name: str, ends: Mapping[str, str]) -> Any:
    """A node of the piece under the name of what it stands for; its last one has that name."""
    import tensorflow as tf

    def new_name(of: str) -> str:
        return ends.get(of) or (name if of == "count" else f"{name}/{of}")

    node = tf.compat.v1.NodeDef()
    node.CopyFrom(part)
    node.name = new_name(part.name)
    del node.input[:]
    node.input.extend(map(new_name, part.input))
    return node
