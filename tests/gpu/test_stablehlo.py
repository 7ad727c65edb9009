"""The programs packed for a machine with a GPU, run on the CPU."""

import importlib.util
import os
import pathlib
import subprocess
import sys

import keras
import pytest

from gpu import programs

pytestmark = pytest.mark.slow

BENCHMARKS = pathlib.Path(__file__).parents[2] / "benchmarks"
NAMES = ["copy", "sigmoid", "ILPS, 20 knots", "ILPS, 100 knots, with gradient", "summary of logits"]


def gpu_programs():
    spec = importlib.util.spec_from_file_location("gpu_programs", BENCHMARKS / "gpu_programs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_packed_programs_run_by_themselves(tmp_path):
    pytest.importorskip("jax", "0.10")
    path, kernels = tmp_path / "programs.pyz", programs.kernels(2000)
    for name in NAMES:
        # Packed one by one: what the file holds already is kept.
        gpu_programs().Pack(path).add(
            f"2,000 rows, {keras.backend.backend()}",
            name,
            2000,
            kernels[name],
            programs.lowered(kernels[name]),
            {"cpu": "7"},
        )
    done = subprocess.run(
        [sys.executable, path, "--rounds", "1", "--launches", "2"],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if "|" in line]
    assert [row[0] for row in rows[2:]] == NAMES
    # The same program on the same device, and the prediction for it.
    assert {tuple(row[-2:]) for row in rows[2:]} == {("7", "0.0e+00")}
    assert all(float(row[2]) > 0 for row in rows[2:])
