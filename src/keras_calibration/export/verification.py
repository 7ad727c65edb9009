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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from keras_calibration.export import check_savedmodel

# Relative differences of logits that rounding alone makes: sums in another order, and in half
# precision one fused operation for several.
_FLOAT32_TOLERANCE = 4e-6
_HALF_TOLERANCES = {"float16": 2.0**-7, "bfloat16": 2.0**-4}
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


@dataclass(frozen=True)
class Tolerance:
    """How far the outputs of an export may be from the Keras model's.

    A sum of large terms is rounded in proportion to the terms, whatever is left of them: logits may
    differ by a share of the largest one, and probabilities by a quarter of that, for σ' ≤ 1/4.

    Args:
        base: The share, for the base model.
        head: The share, for the head, which computes in float32.
        largest_logit: The largest |logit| of the rows, or 1 if that is more.
    """

    base: float
    head: float
    largest_logit: float

    def share(self, output: str) -> float:
        """The share of the largest logit for an output of that name."""
        return self.head if output == "probability" else self.base

    def allowed(self, output: str) -> float:
        """The largest allowed difference of an output of that name."""
        return self.share(output) * self.largest_logit / (1 if output == "logit" else 4)


def tolerance_for(logits: Any, base_model: Any = None, tolerance: float | None = None) -> Tolerance:
    """The tolerance for the rows of these logits.

    Args:
        logits: The base model's logits of the rows that are compared.
        base_model: The base model, whose compute dtypes tell how it rounds; None for a head alone.
        tolerance: Share of the largest logit; None for what the dtypes make.

    Returns:
        The tolerance.

    Example:
        >>> tolerance_for([-0.5, 100.0], tolerance=1e-6).allowed("probability")
        2.5e-05
    """
    layers = [] if base_model is None else base_model._flatten_layers()
    dtypes = {layer.compute_dtype for layer in layers} & {*_HALF_TOLERANCES}
    base = max((_HALF_TOLERANCES[dtype] for dtype in dtypes), default=_FLOAT32_TOLERANCE)
    sizes = np.abs(np.asarray(logits, "float64"))
    largest = max(1.0, float(sizes[np.isfinite(sizes)].max(initial=0.0)))
    return Tolerance(tolerance or base, tolerance or _FLOAT32_TOLERANCE, largest)


def check_tolerance(tolerance: float | None) -> None:
    """Refuses a tolerance that is neither None nor a number above 0."""
    if tolerance is not None and not tolerance > 0:
        raise ValueError(
            f"Argument `tolerance` must be above 0, or None. Received: tolerance={tolerance!r}."
        )


def verify_signatures(
    path: Path,
    rows: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]],
    verify: str,
    tolerance: Tolerance,
) -> dict[str, float]:
    """Loads a SavedModel and compares what it gives with what it should.

    Args:
        path: Folder of the SavedModel.
        rows: Signature → its inputs and its expected outputs, by name.
        verify: `"new_process"` or `"same_process"`.
        tolerance: How far the outputs may be.

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
        name = output.split("/")[1]
        if not difference <= tolerance.allowed(name):
            raise RuntimeError(
                f"The SavedModel's output {output!r} is up to {difference:g} from the Keras "
                f"model's on the sample rows; expected at most {tolerance.allowed(name):g}, for "
                f"the largest logit {tolerance.largest_logit:g} and a tolerance of "
                f"{tolerance.share(name):g}. Nothing was written. Look for layers that compute "
                "differently when saved, or pass a higher `tolerance`."
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
