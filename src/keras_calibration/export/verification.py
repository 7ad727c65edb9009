"""The check of a SavedModel after it is written, by default in a process that has only TensorFlow.

TensorFlow is loaded there a second time: some seconds, for which it is known that the file holds
all that serving needs.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_calibration.export import check_savedmodel

_TOLERANCES = {"probability": 1e-6, "uncalibrated_probability": 1e-6, "logit": 1e-5}
_WAYS = ("new_process", "same_process")


def check_way(verify: str) -> None:
    """Refuses a way to verify that there is not.

    Args:
        verify: `"new_process"` or `"same_process"`.

    Raises:
        ValueError: If it is neither.
    """
    if verify not in _WAYS:
        raise ValueError(f"Argument `verify` must be one of {_WAYS}. Received: verify={verify!r}.")


def verify_signatures(
    path: Path, rows: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]], verify: str
) -> dict[str, float]:
    """Loads a SavedModel and compares what it gives with what it should.

    Args:
        path: Folder of the SavedModel.
        rows: Signature → its inputs and its expected outputs, by name.
        verify: `"new_process"` or `"same_process"`.

    Returns:
        `"SIGNATURE/OUTPUT"` → the largest difference.

    Raises:
        RuntimeError: If it cannot be loaded, or gives something else.
    """
    with tempfile.TemporaryDirectory() as folder:
        rows_file = f"{folder}/rows.npz"
        write_rows(rows, rows_file)
        if verify == "new_process":
            differences = _in_new_process(path, rows_file)
        else:
            differences = check_savedmodel.largest_differences(str(path), rows_file)
    for output, difference in differences.items():
        tolerance = _TOLERANCES[output.split("/")[1]]
        if not difference <= tolerance:
            raise RuntimeError(
                f"The SavedModel's output {output!r} is up to {difference:g} from the Keras "
                f"model's on the sample rows; expected at most {tolerance:g}. Nothing was written. "
                "Look for layers that compute differently when saved."
            )
    return differences


def write_rows(
    rows: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]], rows_file: str
) -> None:
    """Writes inputs and expected outputs of signatures, for `check_savedmodel`.

    Args:
        rows: Signature → its inputs and its expected outputs, by name.
        rows_file: The file to write.
    """
    arrays: dict[str, Any] = {
        f"{signature}/{kind}/{name}": _plain(values)
        for signature, columns in rows.items()
        for kind, by_name in zip(("inputs", "outputs"), columns, strict=True)
        for name, values in by_name.items()
    }
    np.savez(rows_file, **arrays)


def _plain(values: Any) -> np.ndarray:
    """As an array without Python objects: strings as bytes."""
    array = np.asarray(values)
    return array.astype("S") if array.dtype == object else array


def _in_new_process(path: Path, rows_file: str) -> dict[str, float]:
    # On the CPU: the memory of a GPU is this process's own.
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    # -P: the folder of the program does not become one to import from.
    command = [sys.executable, "-P", check_savedmodel.__file__, str(path), rows_file]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(
            "The SavedModel does not load and run in a new process that has TensorFlow alone. "
            f"Nothing was written. That process said:\n{done.stderr[-2000:]}"
        )
    return dict(json.loads(done.stdout.splitlines()[-1]))
