"""Runs a SavedModel in a process with TensorFlow alone, and measures differences.

That process runs this file as a program, `python verification.py SAVEDMODEL REQUESTS.npz
ANSWERS.npz`, without Keras and without the packages of this wheel. This file must not import them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

# Relative differences of logits that rounding alone can cause: another order of summation, and in
# half precision fused operations.
_FLOAT32_TOLERANCE = 4e-6
_HALF_TOLERANCES = {"float16": 2.0**-7, "bfloat16": 2.0**-4}
# Tests export hundreds of models and avoid the seconds of a new process.
in_new_process = True
# Signatures, each with its inputs by name.
Requests = Sequence[tuple[str, Mapping[str, Any]]]
Outputs = dict[str, np.ndarray]


@dataclass(frozen=True)
class Tolerance:
    """Largest allowed differences between the outputs of an export and of the Keras model.

    The rounding error of a sum is proportional to its largest terms. Logits may therefore differ by
    a share of the largest logit, and probabilities by a quarter of that, because σ' ≤ 1/4. Other
    outputs of the base model may differ by a share of their largest value. The head computes in
    float32, so this share is that of float32 for its outputs.

    Args:
        base: The share for outputs of the base model.
        largest_logit: The largest |logit| of the rows, at least 1.
        largest_others: The base model's other outputs: name → largest |value|, at least 1.
    """

    base: float
    largest_logit: float
    largest_others: Mapping[str, float] = field(default_factory=dict)

    def allowed(self, output: str) -> float:
        """The largest allowed difference for an output."""
        is_sum = output == "logit" or output in self.largest_others
        is_of_base = is_sum or not output.startswith("probability")
        share = self.base if is_of_base else _FLOAT32_TOLERANCE
        return share * self.largest_others.get(output, self.largest_logit) / (1 if is_sum else 4)


def tolerance_for(
    logits: ArrayLike,
    base_dtypes: Collection[str] = (),
    others: Mapping[str, ArrayLike] | None = None,
) -> Tolerance:
    """The tolerance for rows with these logits.

    Args:
        logits: The base model's logits of the compared rows.
        base_dtypes: Compute dtypes of the base model.
        others: The base model's other outputs on the compared rows, by name.

    Example:
        >>> round(tolerance_for([-0.5, 100.0]).allowed("probability"), 9)
        0.0001
    """
    base = max([_FLOAT32_TOLERANCE, *(_HALF_TOLERANCES.get(dtype, 0.0) for dtype in base_dtypes)])
    arrays = {name: np.asarray(values) for name, values in (others or {}).items()}
    # Integers, booleans and strings do not round: they must be equal, and have no tolerance.
    largest = {name: _find_largest(v) for name, v in arrays.items() if not _is_exact(v)}
    return Tolerance(base, _find_largest(np.asarray(logits)), largest)


def _find_largest(values: np.ndarray) -> float:
    """The largest finite absolute value, at least 1."""
    sizes = np.abs(values.astype("float64"))
    return max(1.0, float(sizes[np.isfinite(sizes)].max(initial=0.0)))


def _is_exact(values: np.ndarray) -> bool:
    return values.dtype.kind in "biuOSU"


def run_savedmodel(path: Path, requests: Requests) -> list[Outputs]:
    """The outputs by name of a SavedModel, run in a new process, for each request to a signature.

    Raises:
        RuntimeError: If that process cannot load or run it.
    """
    if not in_new_process:
        return _answer_requests(str(path), requests)
    with tempfile.TemporaryDirectory() as folder:
        files = f"{folder}/requests.npz", f"{folder}/answers.npz"
        _write(requests, files[0])
        _run_in_new_process(str(path), *files)
        return [outputs for _, outputs in _read(files[1])]


def _answer_requests(path: str, requests: Requests) -> list[Outputs]:
    import tensorflow as tf

    loaded = tf.saved_model.load(path)
    answers = []
    with tf.device("CPU:0"):
        for signature, inputs in requests:
            run = loaded.signatures[signature]
            # A file holds bfloat16 as float32.
            dtypes = {spec.name: spec.dtype for spec in run.structured_input_signature[1].values()}
            outputs = run(
                **{name: tf.cast(_convert_to_plain(v), dtypes[name]) for name, v in inputs.items()}
            )
            answers.append({name: values.numpy() for name, values in outputs.items()})
    return answers


def largest_difference(received: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference of two arrays; infinite if shapes, integers or strings differ."""
    if received.shape != expected.shape:
        return float("inf")
    if _is_exact(received):
        kind = "S" if received.dtype.kind in "OSU" else object
        is_same = np.array_equal(received.astype(kind), expected.astype(kind))
        return 0.0 if is_same else float("inf")
    a = received.astype("float64")
    b = expected.astype("float64")
    # Two infinities of one sign, and NaN with NaN, are equal; anything else with NaN is infinitely
    # far off.
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        differences = np.where(same, 0.0, np.abs(a - b))
    return float(np.nan_to_num(differences, nan=np.inf).max(initial=0.0))


def _write(requests: Requests, file: str) -> None:
    """Writes a NumPy file with arrays named `NUMBER/SIGNATURE/NAME`."""
    arrays: dict[str, Any] = {
        f"{number}/{signature}/{name}": _convert_to_plain(values)
        for number, (signature, columns) in enumerate(requests)
        for name, values in columns.items()
    }
    np.savez(file, **arrays)


def _read(file: str) -> list[tuple[str, Outputs]]:
    """Reads what `_write` wrote."""
    content: dict[int, tuple[str, Outputs]] = {}
    with np.load(file) as arrays:
        for key in arrays:
            number, signature, name = key.split("/", 2)
            content.setdefault(int(number), (signature, {}))[1][name] = arrays[key]
    return [content[number] for number in sorted(content)]


def _convert_to_plain(values: ArrayLike) -> np.ndarray:
    """An array of a type that NumPy writes to a file without pickling Python objects."""
    values = np.asarray(values)
    if values.dtype == object:
        return values.astype("S")
    # NumPy has no bfloat16.
    return values.astype("float32") if values.dtype.kind == "V" else values


def _run_in_new_process(path: str, requests_file: str, answers_file: str) -> None:
    # On the CPU, because this process may hold all memory of the GPU.
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    # -P: modules are not imported from the folder of the program.
    command = [sys.executable, "-P", __file__, path, requests_file, answers_file]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(
            "The SavedModel does not load and run in a new process with TensorFlow only. Nothing "
            f"was written. The error of that process:\n{done.stderr[-2000:]}"
        )


def _answer_file(path: str, requests_file: str, answers_file: str) -> None:
    requests = _read(requests_file)
    signatures = (signature for signature, _ in requests)
    _write(list(zip(signatures, _answer_requests(path, requests), strict=True)), answers_file)


if __name__ == "__main__":
    for module in ("keras", "keras_calibration", "calibration_records", "tf_keras"):
        sys.modules[module] = None  # type: ignore[assignment]  # cannot be imported
    _answer_file(*sys.argv[1:])
