"""A calibrated model in three runtimes: `./dev run python benchmarks/runtimes.py`.

The quickstart's base model alone and calibrated: as a SavedModel through TensorFlow's C API, as an
ONNX file in onnxruntime, as a LiteRT file in TensorFlow's interpreter. One core and one thread; one
runtime and model after the other in each round. The times of the two latter include a call from
Python. Printed are medians over the rounds of the base, of the calibrated model and of their
difference, in µs; and the peak memory of a new process that runs 1,024 rows, in MB. That of LiteRT
has the import of TensorFlow, whose interpreter it is.

Then the same of LightGBM with 100 trees, calibrated by a field of strings: one ONNX file, or
LightGBM's own `predict` on one thread and the head's SavedModel through C.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np

import keras_calibration as kc
import serving

NUMBERS = ["country", "device", "hour", "log_bid", "days_since_visit"]
ROUNDS = {1: 201, 32: 101, 1024: 41}
# `VmHWM`, for `ru_maxrss` of a child starts at its parent's.
PEAK = "print(next(line.split()[1] for line in open('/proc/self/status') if 'VmHWM' in line))"
ONNX = f"""
import sys, numpy as np, onnxruntime as rt
rows = dict(np.load(sys.argv[2]))
options = rt.SessionOptions(); options.intra_op_num_threads = 1
rt.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"]).run(None, rows)
{PEAK}
"""
LITERT = f"""
import sys, numpy as np, tensorflow as tf
rows = dict(np.load(sys.argv[2]))
tf.lite.Interpreter(sys.argv[1], num_threads=1).get_signature_runner()(**rows)
{PEAK}
"""
C = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=60_000, help="of the click log to train on")
    options = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    table = kc.datasets.generate_click_log(options.rows)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = export(table, folder)
        boosted = export_boosted(table, folder)
        rows, _ = table.part("test")
        print(
            "| runtime | rows | base, µs | calibrated, µs | head, µs | base, MB | calibrated, MB |"
        )
        print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
        for size, rounds in ROUNDS.items():
            some = {name: values[:size] for name, values in rows.items()}
            models = {files["SavedModel"]["base"]: serving.OUTPUTS[:1]}
            models[files["SavedModel"]["calibrated"]] = serving.OUTPUTS
            times = {"SavedModel, C": serving.time_models(models, some, folder, rounds, size)}
            times |= in_turns(
                {name: runners(name, files[name], some) for name in ("onnxruntime", "LiteRT")},
                rounds,
            )
            for runtime, seconds in times.items():
                memory = [""] * 2
                if size == max(ROUNDS):
                    parts = files[runtime.partition(",")[0]].values()
                    memory = [f"{peak(runtime, file, some, folder):,.0f}" for file in parts]
                print_line(runtime, size, seconds, memory)
        for size, rounds in ROUNDS.items():
            print_boosted(boosted, rows, size, rounds, folder)


def print_line(runtime: str, size: int, seconds: np.ndarray, memory: list[str]) -> None:
    """A line of the table, of the seconds (rounds, [base, calibrated])."""
    base, calibrated = 1e6 * seconds.T
    figures = [f"{np.median(each):,.0f}" for each in (base, calibrated, calibrated - base)]
    print(f"| {' | '.join([runtime, f'{size:,}', *figures, *memory])} |", flush=True)


def export_boosted(table: Any, folder: Path) -> dict[str, Any]:
    """LightGBM of 100 trees: an ONNX file, alone and calibrated; and the head as a SavedModel."""
    import onnxmltools
    from onnxmltools.convert.common.data_types import FloatTensorType

    x, clicks = table.part("train")
    booster = lightgbm.LGBMClassifier(n_jobs=1, verbose=-1).fit(matrix(x), clicks)
    x, clicks = table.part("development")
    scores = booster.predict_proba(matrix(x))[:, 1]
    sites = {"site_id": x["site_id"].astype(str)}
    model = kc.calibrate_scores(scores, clicks, sites, fields=["site_id"], verbose=0)
    kind = [("features", FloatTensorType([None, len(NUMBERS)]))]
    converted = onnxmltools.convert_lightgbm(booster, initial_types=kind, zipmap=False)
    base, calibrated = folder / "booster.onnx", folder / "booster-calibrated.onnx"
    base.write_bytes(converted.SerializeToString())
    kc.export_onnx(model, calibrated, base=base)
    kc.export_savedmodel(model, folder / "booster-head")
    return {"booster": booster, "onnx": {"base": base, "calibrated": calibrated}}


def print_boosted(
    boosted: dict[str, Any], rows: dict[str, np.ndarray], size: int, rounds: int, folder: Path
) -> None:
    """The lines of LightGBM."""
    features, sites = matrix(rows)[:size], rows["site_id"][:size].astype(str)
    given = {"features": features, "site_id": sites.astype(object)}
    booster = boosted["booster"].booster_
    runs = {
        "LightGBM, onnxruntime": runners("onnxruntime", boosted["onnx"], given),
        "LightGBM": {"base": lambda: booster.predict(features, num_threads=1)},
    }
    times = in_turns(runs, rounds)
    print_line("LightGBM, onnxruntime", size, times["LightGBM, onnxruntime"], [""] * 2)
    head = {"score": booster.predict(features).astype("float32"), "site_id": sites}
    models = {folder / "booster-head": serving.OUTPUTS}
    added = serving.time_models(models, head, folder, rounds, size)
    base = times["LightGBM"]
    print_line("LightGBM, then SavedModel, C", size, np.hstack([base, base + added]), [""] * 2)


def matrix(columns: dict[str, np.ndarray]) -> np.ndarray:
    """Rows as LightGBM and ONNX take them (n, columns)."""
    return np.stack([columns[name] for name in NUMBERS], 1).astype(np.float32)


def in_turns(
    runs: dict[str, dict[str, Callable[[], object]]], rounds: int
) -> dict[str, np.ndarray]:
    """Runtime → seconds of its parts (rounds, parts)."""
    seconds: dict[str, list[list[float]]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, parts in runs.items():
            seconds[name].append([timed(run) for run in parts.values()])
    return {name: np.array(values) for name, values in seconds.items()}


def export(table: Any, folder: Path) -> dict[str, dict[str, Path]]:
    """Runtime → part → file."""
    base = serving.quickstart.train_base_model(table, "Base model")
    model = serving.quickstart.calibrate(table, base, folder / "runs", 0, "Calibration")
    rows, _ = table.part("test")
    serving.export_base(base, folder / "base", jit_compile=False)
    kc.export_savedmodel(model, folder / "calibrated", rows)
    for kind, suffix in (("onnx", "onnx"), ("litert", "tflite")):
        base.export(folder / f"base.{suffix}", kind, verbose=False)
    kc.export_onnx(model, folder / "calibrated.onnx", rows)
    kc.export_litert(model, folder / "calibrated.tflite", rows)
    return {
        runtime: {part: folder / f"{part}{suffix}" for part in ("base", "calibrated")}
        for runtime, suffix in (("SavedModel", ""), ("onnxruntime", ".onnx"), ("LiteRT", ".tflite"))
    }


def runners(
    runtime: str, files: dict[str, Path], rows: dict[str, np.ndarray]
) -> dict[str, Callable[[], object]]:
    """Part → a function that runs it on the rows."""
    found: dict[str, Callable[[], object]] = {}
    for part, file in files.items():
        if runtime == "onnxruntime":
            import onnxruntime

            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = 1
            session = onnxruntime.InferenceSession(
                str(file), options, providers=["CPUExecutionProvider"]
            )
            taken = {each.name for each in session.get_inputs()}
            given = {name: values for name, values in rows.items() if name in taken}
            found[part] = lambda session=session, given=given: session.run(None, given)
        else:
            import tensorflow as tf

            runner = tf.lite.Interpreter(str(file), num_threads=1).get_signature_runner()
            taken = runner.get_input_details()
            given = {name: values for name, values in rows.items() if name in taken}
            found[part] = lambda runner=runner, given=given: runner(**given)
    return found


def timed(run: Callable[[], object]) -> float:
    """Seconds of one of several runs."""
    start = time.perf_counter()
    for _ in range(3):
        run()
    return (time.perf_counter() - start) / 3


def peak(runtime: str, file: Path, rows: dict[str, np.ndarray], folder: Path) -> float:
    """Peak memory in MB of a new process that runs the rows."""
    if runtime.startswith("SavedModel"):
        request = folder / "request"
        outputs = serving.OUTPUTS[: 1 if file.name == "base" else 3]
        serving.c_client.write_request(request, file, rows, outputs=outputs)
        arguments = [C, str(serving.c_client.client()), str(file), str(request)]
    else:
        np.savez(folder / "rows.npz", **rows)
        program = ONNX if runtime == "onnxruntime" else LITERT
        arguments = [program, str(file), str(folder / "rows.npz")]
    done = subprocess.run(
        [sys.executable, "-c", *arguments], capture_output=True, text=True, check=True
    )
    return int(done.stdout.split()[-1]) / 1024


if __name__ == "__main__":
    main()
