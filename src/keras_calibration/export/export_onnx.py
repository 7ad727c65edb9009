"""export_onnx: a calibrated model as one ONNX file, checked in onnxruntime."""

import os
import warnings
from pathlib import Path
from typing import Any

from keras_calibration.export.portable_function import OUTPUTS
from keras_calibration.export.runtime_file import Rows, export_file
from keras_calibration.models.calibrated_model import CalibratedModel

_OPSET = 17


def export_onnx(model: CalibratedModel, path: str | os.PathLike[str], sample: Any = None) -> Path:
    """Writes a calibrated model of numeric inputs as an ONNX file, for onnxruntime.

    Features in, under the names of the SavedModel's `serving_default`; `probability`,
    `uncalibrated_probability` and `logit` out, float32 (batch, 1), any number of rows. The file is
    written to a temporary folder, run in onnxruntime on sample rows, compared with the Keras model,
    and only then put at `path`.

    Needs tf2onnx, onnx and onnxruntime: `pip install "keras-calibration[onnx]"`.

    Args:
        model: The calibrated model. Strings and look-up layers have no counterpart in onnxruntime:
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
    return export_file(model, path, sample, "onnxruntime", _convert, _run)


def _packages() -> tuple[Any, Any]:
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


def _convert(function: Any, specs: dict[str, Any]) -> bytes:
    tf2onnx, _ = _packages()
    from keras.src.export.tf2onnx_lib import patch_tf2onnx

    with warnings.catch_warnings():
        # About NumPy, from the converter's own lines.
        warnings.simplefilter("ignore")
        patch_tf2onnx()
        converted, _ = tf2onnx.convert.from_function(
            function, [specs], opset=_OPSET, custom_op_handlers={"SelectV2": (_where, [])}
        )
    return bytes(converted.SerializeToString())


def _where(context: Any, node: Any, name: str, arguments: Any) -> None:
    """A choice between two values; the converter's own multiplies them by 0 and 1, NaN included."""
    node.type = "Where"


def _run(file: Path, inputs: Rows) -> Rows:
    _, onnxruntime = _packages()
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    return dict(zip(OUTPUTS, session.run(list(OUTPUTS), inputs), strict=True))
