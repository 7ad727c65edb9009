"""Verifies a SavedModel after it is written, by default in a process with TensorFlow alone.

That process runs this file as a program, `python verification.py SAVEDMODEL ROWS.npz`, without
Keras and without the packages of this wheel. This file must therefore not import them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

# Relative differences of logits that rounding alone can cause: another order of summation, and in
# half precision fused operations.
_FLOAT32_TOLERANCE = 4e-6
_HALF_TOLERANCES = {"float16": 2.0**-7, "bfloat16": 2.0**-4}
_PLACES = ("new_process", "same_process")
# Signature → its inputs and its expected outputs, by name.
Rows = Mapping[str, tuple[Mapping[str, ArrayLike], Mapping[str, ArrayLike]]]


def check_verification(verify: str, tolerance: float | None = None) -> None:
    """Raises for invalid values of `verify` and `tolerance`."""
    if verify not in _PLACES:
        raise ValueError(
            f"Argument `verify` must be one of {_PLACES}. Received: verify={verify!r}."
        )
    if tolerance is not None and not tolerance > 0:
        raise ValueError(
            f"Argument `tolerance` must be above 0, or None. Received: tolerance={tolerance!r}."
        )


@dataclass(frozen=True)
class Tolerance:
    """Largest allowed differences between the outputs of an export and of the Keras model.

    The rounding error of a sum is proportional to its largest terms. Logits may therefore differ by
    a share of the largest logit, and probabilities by a quarter of that, because σ' ≤ 1/4. The base
    model's other outputs may differ by a share of their own largest value.

    Args:
        base: The share for outputs of the base model.
        head: The share for outputs of the head, which computes in float32.
        largest_logit: The largest |logit| of the rows, at least 1.
        largest_others: The base model's other outputs: name → largest |value|, at least 1.
    """

    base: float
    head: float
    largest_logit: float
    largest_others: Mapping[str, float] = field(default_factory=dict)

    def share(self, output: str) -> float:
        """The allowed share of the largest logit for an output."""
        return self.head if output == "probability" else self.base

    def largest(self, output: str) -> float:
        """The largest value, of an output or of the logits, to which its differences relate."""
        return self.largest_others.get(output, self.largest_logit)

    def allowed(self, output: str) -> float:
        """The largest allowed difference for an output."""
        is_sum = output == "logit" or output in self.largest_others
        return self.share(output) * self.largest(output) / (1 if is_sum else 4)


def tolerance_for(
    logits: ArrayLike,
    base_dtypes: Collection[str] = (),
    tolerance: float | None = None,
    others: Mapping[str, ArrayLike] | None = None,
) -> Tolerance:
    """The tolerance for rows with these logits.

    Args:
        logits: The base model's logits of the compared rows.
        base_dtypes: Compute dtypes of the base model.
        tolerance: Share of the largest logit; None derives it from the dtypes.
        others: The base model's other outputs on the compared rows, by name.

    Example:
        >>> round(tolerance_for([-0.5, 100.0], tolerance=1e-6).allowed("probability"), 9)
        2.5e-05
    """
    shares = (_HALF_TOLERANCES.get(dtype, 0.0) for dtype in base_dtypes)
    base = max([_FLOAT32_TOLERANCE, *shares])
    arrays = {name: np.asarray(values) for name, values in (others or {}).items()}
    # Others must be equal: integers, booleans, strings.
    largest = {name: _largest(v) for name, v in arrays.items() if not _is_exact(v)}
    head = tolerance or _FLOAT32_TOLERANCE
    return Tolerance(tolerance or base, head, _largest(np.asarray(logits)), largest)


def _largest(values: np.ndarray) -> float:
    """The largest finite absolute value, at least 1."""
    sizes = np.abs(values.astype("float64"))
    return max(1.0, float(sizes[np.isfinite(sizes)].max(initial=0.0)))


def _is_exact(values: np.ndarray) -> bool:
    return values.dtype.kind in "biuOSU"


def verify_signatures(
    path: Path, rows: Rows, verify: str, tolerance: Tolerance
) -> dict[str, float]:
    """Loads a SavedModel and compares its outputs with the expected ones.

    Returns:
        `"SIGNATURE/OUTPUT"` → the largest difference.

    Raises:
        RuntimeError: If it cannot be loaded, or an output differs too much.
    """
    # Beside the SavedModel: what a killed export leaves there, the next one removes.
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        rows_file = f"{folder}/rows.npz"
        _write_rows(rows, rows_file)
        differ = _in_new_process if verify == "new_process" else largest_differences
        differences = differ(str(path), rows_file)
    for output, difference in differences.items():
        name = output.split("/", 1)[1]
        if not difference <= tolerance.allowed(name):
            kind = "value" if name in tolerance.largest_others else "logit"
            raise RuntimeError(
                f"The output {output!r} of the SavedModel may differ from the Keras model's by at "
                f"most {tolerance.allowed(name):g}, for the largest {kind} "
                f"{tolerance.largest(name):g} and a tolerance of {tolerance.share(name):g}. "
                f"Received: a difference of {difference:g} on the sample rows. Nothing was "
                "written. Look for layers that compute differently when saved, or pass a higher "
                "`tolerance` to `export_savedmodel`."
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
            head_inputs = {name: tf.constant(v) for name, v in rows["calibrate"]["inputs"].items()}
            head_inputs["logit"] = received["serving_default"]["logit"]
            calibrated = loaded.signatures["calibrate"](**head_inputs)
            rows["serving_default"]["outputs"]["probability"] = calibrated["probability"].numpy()
    return {
        f"{signature}/{name}": largest_difference(received[signature][name].numpy(), values)
        for signature, columns in rows.items()
        for name, values in columns["outputs"].items()
    }


def largest_difference(received: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference of two arrays; infinite if shapes, integers or strings differ."""
    if received.shape != expected.shape:
        return float("inf")
    if _is_exact(received):
        if received.dtype.kind in "OSU":
            received, expected = received.astype("S"), expected.astype("S")
        return 0.0 if np.array_equal(received, expected) else float("inf")
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
    plain: dict[str, Any] = {name: _plain(values) for name, values in arrays.items()}
    np.savez(rows_file, **plain)


def _plain(values: np.ndarray) -> np.ndarray:
    """An array of a type that NumPy writes to a file without pickling Python objects."""
    if values.dtype == object:
        return values.astype("S")
    # bfloat16 is no type of NumPy's own.
    return values.astype("float32") if values.dtype.kind == "V" else values


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
    for module in ("keras", "keras_calibration", "calibration_records", "tf_keras"):
        sys.modules[module] = None  # type: ignore[assignment]  # cannot be imported
    print(json.dumps(largest_differences(sys.argv[1], sys.argv[2])))
