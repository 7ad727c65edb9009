"""export_onnx and export_litert: write a calibrated model as one file and verify it."""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calibration._compat import counted_searches, flatten_layers, patch_tf2onnx
from keras_calibration._typing import Features, Inputs, Tensor
from keras_calibration._warn import without_notices
from keras_calibration.export.serving_spec import (
    ServingSpec,
    by_signature,
    outputs_on,
    sample_rows,
    serving_spec,
    warn_if_unfitted,
)
from keras_calibration.export.verification import largest_difference, tolerance_for
from keras_calibration.export.version_folder import (
    check_file,
    move_file_into_place,
    temporary_folder,
)
from keras_calibration.ops.losses import probabilities_from_logits

_OUTPUTS = ("probability", "uncalibrated_probability", "logit")
_OPSET = 17
_LOOKUPS = (
    keras.layers.IntegerLookup,
    keras.layers.StringLookup,
    keras.layers.Hashing,
    keras.layers.TextVectorization,
)
_Rows = dict[str, np.ndarray]


def export_onnx(
    model: keras.Model,
    path: str | os.PathLike[str],
    sample: Inputs | None = None,
    *,
    calibrated_output: str | int | None = None,
) -> Path:
    """Writes a calibrated model with numeric inputs as an ONNX file, for onnxruntime.

    The ONNX model takes the features under their names in the SavedModel's `serving_default`, and
    returns `probability`, `uncalibrated_probability` and `logit`, float32 (batch, 1), or (batch, K)
    for K classes, for any number of rows. Other outputs of the base model are returned unchanged,
    by their names. The file is written to a temporary folder, run in onnxruntime on sample rows and
    compared with the Keras model. Only then is it moved to `path`.

    Needs tf2onnx, onnx and onnxruntime: `pip install "keras-calibration[onnx]"`.

    Args:
        model: A Functional or Sequential model with a head. Strings and lookup layers do not
            exist in onnxruntime: such models raise an error.
        path: The file to write, for example `ctr.onnx`; it must not exist.
        sample: Input rows for the comparison, in the form that the model takes; by default random
            rows.
        calibrated_output: Key, index or name of the output to calibrate, if several have a head.

    Returns:
        The path.

    Raises:
        ValueError: If the model cannot run in onnxruntime, or `path` exists. Nothing is written.
        ImportError: If a package is missing. Nothing is written.
        RuntimeError: If the outputs of onnxruntime differ by more than rounding can explain.

    Example:
        >>> export_onnx("model", "ctr.onnx")
        Traceback (most recent call last):
        ...
        ValueError: Argument `model` must be a Functional or Sequential Keras model with a
        calibration head, or a CalibratedModel. Received: str. ...
    """
    spec = serving_spec(model, calibrated_output)
    return _export(spec, path, sample, "onnxruntime", _to_onnx, run_onnx)


def export_litert(
    model: keras.Model,
    path: str | os.PathLike[str],
    sample: Inputs | None = None,
    *,
    calibrated_output: str | int | None = None,
) -> Path:
    """Writes a calibrated model with numeric inputs as a LiteRT file, for phones and small devices.

    Its only signature, `serving_default`, takes the features under their names in the SavedModel,
    and returns `probability`, `uncalibrated_probability` and `logit`, float32 (batch, 1), or
    (batch, K) for K classes, for any number of rows. Other outputs of the base model are returned
    unchanged, by their names. It uses only built-in operations, so that every interpreter can run
    it. The file is written to a temporary folder, run on sample rows in the interpreter that comes
    with TensorFlow, and compared with the Keras model. Only then is it moved to `path`.

    Args:
        model: A Functional or Sequential model with a head. Strings and lookup layers have
            no built-in operations: such models raise an error.
        path: The file to write, for example `ctr.tflite`; it must not exist.
        sample: Input rows for the comparison, in the form that the model takes; by default random
            rows.
        calibrated_output: Key, index or name of the output to calibrate, if several have a head.

    Returns:
        The path.

    Raises:
        ValueError: If the model cannot run in LiteRT, or `path` exists. Nothing is written.
        RuntimeError: If the outputs of the interpreter differ by more than rounding can explain.

    Example:
        >>> export_litert("model", "ctr.tflite")
        Traceback (most recent call last):
        ...
        ValueError: Argument `model` must be a Functional or Sequential Keras model with a
        calibration head, or a CalibratedModel. Received: str. ...
    """
    spec = serving_spec(model, calibrated_output)
    return _export(spec, path, sample, "LiteRT", _to_litert, run_litert)


def run_onnx(file: Path, inputs: _Rows) -> _Rows:
    """Runs an ONNX file in onnxruntime."""
    _, onnxruntime = _onnx_packages()
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


def run_litert(file: Path, inputs: _Rows) -> _Rows:
    """Runs a LiteRT file in TensorFlow's interpreter."""
    import tensorflow as tf

    with warnings.catch_warnings():
        # It warns that it will move to another package.
        warnings.simplefilter("ignore")
        interpreter = tf.lite.Interpreter(str(file))
    outputs: _Rows = interpreter.get_signature_runner()(**inputs)
    return outputs


def _to_litert(spec: ServingSpec) -> bytes:
    """Converts a model by Keras' own export, to built-in operations alone."""
    import tensorflow as tf

    signature = [spec.found.structured(spec.inputs)]
    builtins = {"supported_ops": [tf.lite.OpsSet.TFLITE_BUILTINS]}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "model.tflite")
        portable_model(spec).export(
            file, "litert", verbose=False, input_signature=signature, target_spec=builtins
        )
        return file.read_bytes()


def _to_onnx(spec: ServingSpec) -> bytes:
    """Converts a model as Keras' own export does, which takes no handlers of operations."""
    import tensorflow as tf

    tf2onnx, _ = _onnx_packages()
    model = portable_model(spec)

    # By name: the converter knows the name of an input only from a dictionary.
    def serve(columns: Features) -> dict[str, Tensor]:
        outputs: dict[str, Tensor] = model(spec.found.structured(columns), training=False)
        return outputs

    with warnings.catch_warnings():
        # Warnings about NumPy from the converter's own code.
        warnings.simplefilter("ignore")
        patch_tf2onnx()
        converted, _ = tf2onnx.convert.from_function(
            tf.function(serve, autograph=False),
            [dict(spec.inputs)],
            opset=_OPSET,
            custom_op_handlers={name: (handler, []) for name, handler in _ONNX_HANDLERS.items()},
        )
    return bytes(converted.SerializeToString())


def _select(context: Any, node: Any, name: str, arguments: object) -> None:
    """Selects by `Where`: the converter's own handler multiplies by 0 and 1, also NaN."""
    node.type = "Where"


# Operation of TensorFlow → what writes it in ONNX, where the converter's own handler is missing or
# does something else.
_ONNX_HANDLERS = {"SelectV2": _select}


def _onnx_packages() -> tuple[ModuleType, ModuleType]:
    """Imports `tf2onnx` and `onnxruntime`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import onnxruntime
            import tf2onnx
    except ImportError as error:
        raise ImportError(
            f"export_onnx requires tf2onnx, onnx and onnxruntime ({error}). Install them with `pip "
            'install "keras-calibration[onnx]"`.'
        ) from error
    return tf2onnx, onnxruntime


def _export(
    spec: ServingSpec,
    path: str | os.PathLike[str],
    sample: Inputs | None,
    runtime: str,
    convert: Callable[[ServingSpec], bytes],
    run: Callable[[Path, _Rows], _Rows],
) -> Path:
    """Converts a model, compares the file with it in the runtime, and moves it into place."""
    path = Path(path)
    _check(spec, path, runtime)
    rows = sample_rows(spec, sample)
    outputs = outputs_on(spec, rows, is_random=sample is None)
    warn_if_unfitted(spec, outputs["probability"], outputs["logit"])
    with _named_errors(runtime), without_notices("tensorflow"), counted_searches():
        content = convert(spec)
    with temporary_folder(path.parent) as temporary:
        file = temporary / path.name
        file.write_bytes(content)
        _compare(spec, rows, runtime, functools.partial(run, file))
        return move_file_into_place(file, path)


def portable_model(spec: ServingSpec) -> keras.Model:
    """A model from the inputs to all outputs of the file, by name."""
    raw = probabilities_from_logits(spec.outputs.output["logit"])
    return keras.Model(spec.outputs.input, {**spec.outputs.output, "uncalibrated_probability": raw})


@contextlib.contextmanager
def _named_errors(runtime: str) -> Iterator[None]:
    """Turns the errors of a converter or runtime into a short `ValueError`."""
    try:
        yield
    except ImportError:
        raise
    except Exception as error:
        words = next((line for line in str(error).splitlines() if line.strip()), repr(error))
        raise ValueError(
            f"{runtime} does not support this model: {words[:300]}. Nothing was written. Serve the "
            f"model as a SavedModel, or serve only the base model with {runtime} and calibrate its "
            "logits with the signature 'calibrate' of the SavedModel."
        ) from error


def _check(spec: ServingSpec, path: Path, runtime: str) -> None:
    strings = sorted(name for name, each in spec.inputs.items() if each.dtype.name == "string")
    if strings:
        raise ValueError(
            f"The inputs of the model must be numeric, because {runtime} has no string lookups. "
            f"Received: the string inputs {strings}. Nothing was written. Convert strings to ids "
            "before the model, or serve it as a SavedModel."
        )
    vocabularies = [v for reader in spec.head.field_readers() for v in reader.fields.values()]
    layers = [*flatten_layers(spec.base), *vocabularies]
    if found := sorted({layer.name for layer in layers if isinstance(layer, _LOOKUPS)}):
        raise ValueError(
            f"The model must take ids, because {runtime} has no lookup tables. Received: a model "
            f"with the lookup layers {found}. Nothing was written. Convert values to ids before "
            "the model, or serve it as a SavedModel."
        )
    named = {each.name for each in spec.inputs.values()} & {*_OUTPUTS, *spec.other_outputs}
    if named and runtime == "onnxruntime":
        raise ValueError(
            "Inputs and outputs must have different names in an ONNX file. Received: a model with "
            f"inputs and outputs named {sorted(named)}. Nothing was written. Rename these inputs, "
            "or these outputs of the base model."
        )
    check_file(path)


def _compare(
    spec: ServingSpec, rows: Features, runtime: str, run: Callable[[_Rows], _Rows]
) -> None:
    """Compares outputs on all rows and on the first row alone, to test another number of rows.

    The head is compared on the runtime's own logits, because a step function may jump between two
    logits that differ only by rounding.
    """
    for num_rows in (len(next(iter(rows.values()))), 1):
        part = {name: values[:num_rows] for name, values in rows.items()}
        with _named_errors(runtime):
            received = run({name: np.asarray(v) for name, v in by_signature(part).items()})
        calibrated = spec.head(ops.convert_to_tensor(received["logit"]), spec.head_features(part))
        outputs = spec.base_outputs(part)[0]
        others = {name: outputs[name] for name in spec.other_outputs}
        expected = {
            "probability": probabilities_from_logits(calibrated),
            "uncalibrated_probability": probabilities_from_logits(outputs["logit"]),
            **others,
        }
        tolerance = tolerance_for(received["logit"], spec.base_dtypes, others=others)
        for name, values in expected.items():
            error = largest_difference(received[name], np.asarray(values))
            if not error <= tolerance.allowed(name):
                raise RuntimeError(
                    f"The {name} from {runtime} may differ from the Keras model's by at most "
                    f"{tolerance.allowed(name):g}. Received: a difference of {error:g} on "
                    f"{num_rows} rows. Nothing was written."
                )
