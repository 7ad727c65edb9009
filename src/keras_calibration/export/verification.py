"""Verifies a SavedModel after it is written, by default in a process with TensorFlow alone.

That process runs this file as a program, `python verification.py SAVEDMODEL ROWS.npz`, without
Keras and this package. This file must therefore not import them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

# Relative differences of logits that rounding alone can cause: another order of summation, and in
# half precision fused operations.
_FLOAT32_TOLERANCE = 4e-6
_HALF_TOLERANCES = {"float16": 2.0**-7, "bfloat16": 2.0**-4}
_WAYS = ("new_process", "same_process")
# Signature → its inputs and its expected outputs, by name.
Rows = Mapping[str, tuple[Mapping[str, ArrayLike], Mapping[str, ArrayLike]]]


def check_verification(verify: str, tolerance: float | None = None) -> None:
    """Raises for invalid values of `verify` and `tolerance`."""
    if verify not in _WAYS:
        raise ValueError(f"Argument `verify` must be one of {_WAYS}. Received: verify={verify!r}.")
    if tolerance is not None and not tolerance > 0:
        raise ValueError(
            f"Argument `tolerance` must be above 0, or None. Received: tolerance={tolerance!r}."
        )


@dataclass(frozen=True)
class Tolerance:
    """Largest allowed differences between the outputs of an export and of the Keras model.

    The rounding error of a sum is proportional to its largest terms. Logits may therefore differ by
    a share of the largest logit, and probabilities by a quarter of that, because σ' ≤ 1/4.

    Args:
        base: The share for outputs of the base model.
        head: The share for outputs of the head, which computes in float32.
        largest_logit: The largest |logit| of the rows, at least 1.
    """

    base: float
    head: float
    largest_logit: float

    def share(self, output: str) -> float:
        """The allowed share of the largest logit for an output."""
        return self.head if output == "probability" else self.base

    def allowed(self, output: str) -> float:
        """The largest allowed difference for an output."""
        return self.share(output) * self.largest_logit / (1 if output == "logit" else 4)


def tolerance_for(
    logits: ArrayLike, base_dtypes: Collection[str] = (), tolerance: float | None = None
) -> Tolerance:
    """The tolerance for rows with these logits.

    Args:
        logits: The base model's logits of the compared rows.
        base_dtypes: Compute dtypes of the base model.
        tolerance: Share of the largest logit; None derives it from the dtypes.

    Example:
        >>> round(tolerance_for([-0.5, 100.0], tolerance=1e-6).allowed("probability"), 9)
        2.5e-05
    """
    shares = (_HALF_TOLERANCES.get(dtype, 0.0) for dtype in base_dtypes)
    base = max([_FLOAT32_TOLERANCE, *shares])
    sizes = np.abs(np.asarray(logits, "float64"))
    largest = max(1.0, float(sizes[np.isfinite(sizes)].max(initial=0.0)))
    return Tolerance(tolerance or base, tolerance or _FLOAT32_TOLERANCE, largest)


def verify_signatures(
    path: Path, rows: Rows, verify: str, tolerance: Tolerance
) -> dict[str, float]:
    """Loads a SavedModel and compares its outputs with the expected ones.

    Returns:
        `"SIGNATURE/OUTPUT"` → the largest difference.

    Raises:
        RuntimeError: If it cannot be loaded, or an output differs too much.
    """
    with tempfile.TemporaryDirectory() as folder:
        rows_file = f"{folder}/rows.npz"
        _write_rows(rows, rows_file)
        differ = _in_new_process if verify == "new_process" else largest_differences
        differences = differ(str(path), rows_file)
    for output, difference in differences.items():
        name = output.split("/")[1]
        if not difference <= tolerance.allowed(name):
            raise RuntimeError(
                f"The output {output!r} of the SavedModel may differ from the Keras model's by at "
                f"most {tolerance.allowed(name):g}, for the largest logit "
                f"{tolerance.largest_logit:g} and a tolerance of {tolerance.share(name):g}. "
                f"Received: a difference of {difference:g} on the sample rows. Nothing was "
                "written. Look for layers that compute differently when saved, or pass a higher "
                "`tolerance`."
            )
    return differences


def largest_differences(path: str, rows_file: str) -> dict[str, float]:
    """The largest difference of each output of each signature from the expected output.

    Two NaN, or two infinities of the same sign, count as equal.

    Args:
        path: Folder of the SavedModel.
        rows_file: A NumPy file with arrays named `SIGNATURE/inputs/NAME` and
            `SIGNATURE/outputs/NAME`.

    Returns:
        `"SIGNATURE/OUTPUT"` → the largest difference.
    """
    import tensorflow as tf

    rows: dict[str, dict[str, dict[str, np.ndarray]]] = {}
    with np.load(rows_file) as arrays:
        for key in arrays:
            signature, kind, name = key.split("/", 2)
            rows.setdefault(signature, {"inputs": {}, "outputs": {}})[kind][name] = arrays[key]
    loaded = tf.saved_model.load(path)
    received: dict[str, dict[str, tf.Tensor]] = {}
    with tf.device("CPU:0"):
        for signature, columns in rows.items():
            inputs = {name: tf.constant(values) for name, values in columns["inputs"].items()}
            received[signature] = loaded.signatures[signature](**inputs)
        if "serving_default" in rows:
            # Compared with `calibrate` on its own logits, because a step function may jump between
            # two logits that differ only by rounding.
            of_head = {name: tf.constant(v) for name, v in rows["calibrate"]["inputs"].items()}
            of_head["logit"] = received["serving_default"]["logit"]
            calibrated = loaded.signatures["calibrate"](**of_head)
            rows["serving_default"]["outputs"]["probability"] = calibrated["probability"].numpy()
    return {
        f"{signature}/{name}": _difference(received[signature][name].numpy(), values)
        for signature, columns in rows.items()
        for name, values in columns["outputs"].items()
    }


def _difference(received: np.ndarray, expected: np.ndarray) -> float:
    if received.shape != expected.shape:
        return float("inf")
    a, b = received.astype("float64"), expected.astype("float64")
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        differences = np.where(same, 0.0, np.abs(a - b))
    return float(np.nan_to_num(differences, nan=np.inf).max(initial=0.0))


def _write_rows(rows: Rows, rows_file: str) -> None:
    arrays = {
        f"{signature}/{kind}/{name}": np.asarray(values)
        for signature, columns in rows.items()
        for kind, by_name in zip(("inputs", "outputs"), columns, strict=True)
        for name, values in by_name.items()
    }
    # Strings as bytes, so that no Python objects are pickled.
    plain: dict[str, Any] = {
        k: v.astype("S") if v.dtype == object else v for k, v in arrays.items()
    }
    np.savez(rows_file, **plain)


def _in_new_process(path: str, rows_file: str) -> dict[str, float]:
    # On the CPU, because this process may hold all memory of the GPU.
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    # -P: modules are not imported from the folder of the program.
    command = [sys.executable, "-P", __file__, path, rows_file]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(
            "The SavedModel does not load and run in a new process with TensorFlow only. Nothing "
            f"was written. The error of that process:\n{done.stderr[-2000:]}"
        )
    return dict(json.loads(done.stdout.splitlines()[-1]))


if __name__ == "__main__":
    for module in ("keras", "keras_calibration", "tf_keras"):
        sys.modules[module] = None  # type: ignore[assignment]  # cannot be imported
    print(json.dumps(largest_differences(sys.argv[1], sys.argv[2])))
