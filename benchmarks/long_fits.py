"""Fits to logs that do not fit into memory: `./dev run python benchmarks/long_fits.py`.

    ./dev run python benchmarks/long_fits.py                   # a million rows, beside memory
    ./dev run python benchmarks/long_fits.py --rows 50000000   # 50 files, about 4 GB, and 6 GB more

`FieldBias` of ten fields, the last with as many values as `--users` (by default, a fiftieth of the
rows), and four numeric columns, is fitted to Parquet files in passes (`fit_calibrator`), and
`calibrate_scores(methods="quick")` chooses with a sample. Up to a million rows, the fit is
compared with that of `head.fit` to the same rows in memory. Each way runs in a process of its own.
Memory is the most that the process has had to itself, without files that are mapped into it: the
system drops those when others need the room.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray
ROWS_OF_FILE = 1_000_000
SIZES = [3, 7, 12, 24, 50, 200, 1_000, 5_000, 20_000]
SPREADS = [0.2, 0.3, 0.1, 0.15, 0.3, 0.25, 0.4, 0.3, 0.35, 0.5]
FIELDS, NUMERIC = [f"f{number}" for number in range(10)], [f"x{number}" for number in range(4)]


def make_rows(num_rows: int, users: int, seed: int) -> dict[str, Array]:
    """Rows whose logits are off by field, by columns and in their slope."""
    rng, effects = np.random.default_rng(seed), np.random.default_rng(0)
    logit = rng.normal(-2, 1, num_rows)
    columns: dict[str, Array] = {"logit": logit}
    true = 0.8 * logit - 0.3
    for name, size, spread in zip(FIELDS, [*SIZES, users], SPREADS, strict=True):
        ids = np.minimum(size * rng.random(num_rows) ** 1.5, size - 1).astype("int32")
        true += spread * effects.normal(size=size)[ids]
        columns[name] = ids
    numbers = rng.normal(size=num_rows), rng.exponential(size=num_rows)
    numbers = *numbers, rng.integers(0, 40, num_rows), rng.random(num_rows)
    columns |= {n: each.astype("float32") for n, each in zip(NUMERIC, numbers, strict=True)}
    columns["x3"][rng.random(num_rows) < 0.1] = np.nan
    true += 0.2 * np.sin(2 * columns["x0"]) + 0.1 * columns["x1"] - 0.3 * (columns["x2"] > 20)
    true += np.where(np.isnan(columns["x3"]), 0.4, 0.0)
    columns["label"] = (rng.random(num_rows) < 1 / (1 + np.exp(-true))).astype("int8")
    return {**columns, "true": true}


def make_files(folder: Path, num_rows: int, users: int) -> None:
    """Writes the files that are missing."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True, exist_ok=True)
    for number, start in enumerate(range(0, num_rows, ROWS_OF_FILE)):
        path = folder / f"{number:03d}.parquet"
        if not path.exists():
            rows = make_rows(min(ROWS_OF_FILE, num_rows - start), users, 1 + number)
            del rows["true"]
            pq.write_table(pa.table(rows), path.with_suffix(".tmp"))
            path.with_suffix(".tmp").rename(path)


def own_memory() -> float:
    """MB that the process has to itself."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) / 1024


def measured(work: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """What a function returns, its seconds, and its largest memory in MB."""
    ended, largest = threading.Event(), [own_memory()]

    def watch() -> None:
        while not ended.wait(0.1):
            largest[0] = max(largest[0], own_memory())

    watching = threading.Thread(target=watch)
    watching.start()
    start, before = time.perf_counter(), own_memory()
    found = work()
    seconds = time.perf_counter() - start
    ended.set()
    watching.join()
    return found, {"seconds": seconds, "before": before, "MB": largest[0]}


def make_head(users: int) -> Any:
    from keras_calibration.layers import ILPS, FieldBias

    return FieldBias(dict(zip(FIELDS, [*SIZES, users], strict=True)), ILPS(), numeric=NUMERIC)


def run(way: str, folder: Path, num_rows: int, users: int) -> dict[str, Any]:
    """One way, in this process."""
    import keras_calibration as kc
    from keras_calibration.calibration import log_fits

    # Fewer rows have few groups: the same fit is wanted.
    log_fits._MOST_CELLS = 0
    log = kc.logs.ScoredLog(str(folder), logit="logit")
    new = make_rows(200_000, users, 12_345)
    features = {name: new[name] for name in (*FIELDS, *NUMERIC)}
    if way == "quick":
        options = {"fields": FIELDS, "numeric": NUMERIC, "methods": "quick", "verbose": 0}
        model, figures = measured(lambda: kc.calibrate_scores(log, **options))
        print(model.report)
        inputs = {"score": new["logit"].astype("float32"), **features}
        eta = model.predict(inputs, batch_size=8192, verbose=0)[:, 0].astype(float)
        eta = np.log(eta) - np.log1p(-eta)
    else:
        head = make_head(users)
        if way == "passes":
            summary, figures = measured(lambda: kc.fit_calibrator(head, log, verbose=0))
        else:
            rows = make_rows(num_rows, users, 1)
            given = rows["logit"], rows["label"], {n: rows[n] for n in features}
            summary, figures = measured(lambda: head.fit(*given))
        print(summary)
        eta = np.asarray(head(new["logit"], features))[:, 0]
        np.savez(folder / f"{way}.weights", logits=eta, **head.get_deviations())
    losses = {}
    for name, logits in (("raw", new["logit"]), ("calibrated", eta), ("truth", new["true"])):
        losses[name] = float(np.mean(np.logaddexp(0, logits) - new["label"] * logits))
    return figures | losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--users", type=int)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--way", choices=["memory", "passes", "quick"])
    options = parser.parse_args()
    users = options.users or options.rows // 50
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        if options.way:
            print(json.dumps(run(options.way, folder, options.rows, users)))
            return
        make_files(folder, options.rows, users)
        ways = ["passes", "quick", *(["memory"] if options.rows <= ROWS_OF_FILE else [])]
        print("| | seconds | MB | of them before | log loss of new rows: raw | after | truth |")
        print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
        for way in ways:
            arguments = "--way", way, "--folder", folder, "--rows", options.rows, "--users", users
            command = [sys.executable, __file__, *map(str, arguments)]
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            *text, figures = output.splitlines()
            found = json.loads(figures)
            sizes = " | ".join(f"{found[name]:,.0f}" for name in ("seconds", "MB", "before"))
            losses = " | ".join(f"{found[name]:.5f}" for name in ("raw", "calibrated", "truth"))
            print(f"| {way} | {sizes} | {losses} |", flush=True)
            print("\n".join(text), file=sys.stderr, flush=True)
        if "memory" in ways:
            one, other = (np.load(folder / f"{way}.weights.npz") for way in ("passes", "memory"))
            gaps = {name: np.abs(one[name] - other[name]).max() for name in one.files}
            print(
                f"\nLargest difference of logits {gaps.pop('logits'):.1e}, of spreads "
                f"{max(gaps.values()):.1e}."
            )


if __name__ == "__main__":
    main()
