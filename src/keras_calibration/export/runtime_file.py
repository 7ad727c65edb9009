"""What the exports to other runtimes share: checks, and a file that is tried before it is there."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calibration.export.model_checks import check_model, outputs_on, warn_if_unfitted
from keras_calibration.export.model_rows import (
    given_rows,
    head_inputs,
    input_specs,
    random_rows,
    restructured,
    signature_input,
)
from keras_calibration.export.portable_function import portable_function
from keras_calibration.export.verification import tolerance_for
from keras_calibration.export.version_folder import temporary_folder
from keras_calibration.models.calibrated_model import CalibratedModel

Rows = dict[str, np.ndarray]


def export_file(
    model: CalibratedModel,
    path: str | os.PathLike[str],
    sample: Any,
    runtime: str,
    convert: Callable[[Any, dict[str, Any]], bytes],
    run: Callable[[Path, Rows], Rows],
) -> Path:
    """Converts a model, runs the file in its runtime, compares, and puts it in place.

    Args:
        model: The calibrated model.
        path: The file to write; it must not exist.
        sample: Input rows to compare on, or None for random ones.
        runtime: Name of the runtime, for messages.
        convert: From a `portable_function` and its specs to the bytes of the file.
        run: From a file and its inputs by name to its outputs by name.

    Returns:
        The path.

    Raises:
        ValueError: If the model is no `CalibratedModel`, Keras does not run on TensorFlow, an input
            is a string, the model cannot be converted, or `path` exists. Nothing is written then.
        RuntimeError: If the runtime gives other probabilities than the Keras model. Nothing is left
            at `path` then.
    """
    path = Path(path)
    check_model(model)
    _check(model, path, runtime)
    rows = random_rows(model) if sample is None else given_rows(model, sample)
    logit, probability = outputs_on(model, rows, is_random=sample is None)
    warn_if_unfitted(model, probability, ops.sigmoid(logit))
    content = _told(runtime, lambda: convert(*portable_function(model)))
    with temporary_folder(path.parent) as temporary:
        file = temporary / path.name
        file.write_bytes(content)
        _compare(model, rows, runtime, lambda inputs: _told(runtime, lambda: run(file, inputs)))
        os.rename(file, path)
    return path


def _told(runtime: str, act: Callable[[], Any]) -> Any:
    """What an act returns; what converters and runtimes raise as a `ValueError` of few words."""
    try:
        return act()
    except ImportError:
        raise
    except Exception as error:
        raise ValueError(
            f"{runtime} cannot take this model, and nothing was written: {_first_line(error)}. "
            "Serve it as a SavedModel, or here the base model and there the SavedModel's signature "
            "'calibrate'."
        ) from error


def _first_line(error: BaseException) -> str:
    lines = (line for line in str(error).splitlines() if line.strip())
    return next(lines, repr(error))[:300]


def _check(model: CalibratedModel, path: Path, runtime: str) -> None:
    strings = sorted(n for n, spec in input_specs(model).items() if spec.dtype.name == "string")
    if strings:
        raise ValueError(
            f"{runtime} has no string look-ups: expected a model of numeric inputs. Received the "
            f"string inputs {strings}, and nothing was written. Turn them into ids before the "
            "model, or serve it as a SavedModel."
        )
    if lookups := _lookup_layers(model):
        raise ValueError(
            f"{runtime} has no look-up tables: expected a model that takes ids. Received the "
            f"look-up layers {lookups}, and nothing was written. Turn the values into ids before "
            "the model, or serve it as a SavedModel."
        )
    if path.exists():
        raise ValueError(
            f"Received: path={str(path)!r}, which exists. An export never overwrites: choose "
            "another name."
        )


def _lookup_layers(model: CalibratedModel) -> list[str]:
    kinds = (
        keras.layers.IntegerLookup,
        keras.layers.StringLookup,
        keras.layers.Hashing,
        keras.layers.TextVectorization,
    )
    layers = list(model.base.base_model._flatten_layers())
    for reader in model.head.field_readers():
        layers += reader.fields.values()
    return sorted({layer.name for layer in layers if isinstance(layer, kinds)})


def _compare(
    model: CalibratedModel,
    rows: Mapping[str, Any],
    runtime: str,
    run: Callable[[Rows], Rows],
) -> None:
    """On the rows, and on the first alone: another number of rows must do as well.

    The head is compared on the runtime's own logits: a curve of steps may jump between two logits
    that differ by their rounding alone.
    """
    for num_rows in (len(next(iter(rows.values()))), 1):
        part = {name: values[:num_rows] for name, values in rows.items()}
        received = run({signature_input(name): np.asarray(v) for name, v in part.items()})
        of_head = {name: part[name] for name in head_inputs(model)}
        calibrated = model.head(ops.convert_to_tensor(received["logit"]), of_head)
        uncalibrated = ops.sigmoid(model.base(restructured(model, part)))
        expected = {
            "probability": model.probability(calibrated),
            "uncalibrated_probability": uncalibrated,
        }
        tolerance = tolerance_for(received["logit"], model.base_model)
        for name, values in expected.items():
            error = np.max(np.abs(received[name] - ops.convert_to_numpy(values)))
            if not error <= tolerance.allowed(name):
                raise RuntimeError(
                    f"{runtime} gives a {name} up to {error:g} from the Keras model's on "
                    f"{num_rows} rows; expected at most {tolerance.allowed(name):g}. Nothing was "
                    "written."
                )
