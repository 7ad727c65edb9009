"""Scoring logs at scale: DuckDB by hand, this package on it and on Ray, and Polars.

    ./dev run python benchmarks/scale.py                        # 10 million rows
    ./dev run python benchmarks/scale.py --rows 100000000       # ten files, about 1.3 GB
    ./dev run python benchmarks/scale.py --extrapolate          # what a billion rows would take

The log loss, the Calibrated Log Loss of two folds, and the field errors of one field are computed
from Parquet files that the script makes, for fields of 5,000 and of a million values, as ids and as
strings. Each way runs in a process of its own, in turn; the times are medians of three rounds, from
open files to numbers, without the start of Python. The peak is that of the resident memory (in all
processes of Ray together, less what its idle cluster takes).
"""

import argparse
import glob
import json
import logging
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

ROWS_OF_FILE = 10_000_000
FIELDS = ("site", "user", "site_name", "user_name")
# The sums of the metrics by hand, with the log loss in place of the Calibrated Log Loss, whose
# state (two folds of logits in 418 bins) only the package computes.
BY_HAND = """
SELECT {field} AS value, sum(label - p) AS residual, sum(label) AS positives, count(*) AS rows,
    sum(p * (1 - p)) AS variance, sum(p) AS predicted, sum(p * p) AS squares
FROM (SELECT {field}, label::DOUBLE AS label, probability::DOUBLE AS p FROM read_parquet('{files}'))
GROUP BY {field}
"""
LOSS_BY_HAND = """
SELECT avg(-label * ln(p) - (1 - label) * ln(1 - p)) AS log_loss
FROM (SELECT label::DOUBLE AS label, probability::DOUBLE AS p FROM read_parquet('{files}'))
"""


def make(folder: Path, rows: int) -> None:
    """Writes the files that are missing, of ten million rows each."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True, exist_ok=True)
    sites = pa.array([f"site-{number}" for number in range(5000)])
    users = pa.array([f"user-{number}" for number in range(1_000_000)])
    for number, start in enumerate(range(0, rows, ROWS_OF_FILE)):
        path = folder / f"part-{number:03d}.parquet"
        if path.exists():
            continue
        n = min(ROWS_OF_FILE, rows - start)
        rng = np.random.default_rng(number)
        p = (1 / (1 + np.exp(-rng.normal(-2, 1.2, n)))).astype("float32")
        site, user = rng.integers(0, 5000, n, "int32"), rng.integers(0, 1_000_000, n, "int32")
        columns = {
            "label": (rng.random(n) < p).astype("int8"),
            "probability": p,
            "site": site,
            "user": user,
            "site_name": sites.take(pa.array(site)),
            "user_name": users.take(pa.array(user)),
        }
        temporary = path.with_suffix(".tmp")
        pq.write_table(pa.table(columns), temporary, row_group_size=1_000_000)
        temporary.rename(path)


def by_hand(files: str, field: str) -> dict[str, float]:
    import duckdb

    with tempfile.TemporaryDirectory() as folder:
        config = {"memory_limit": "512MB", "temp_directory": folder}
        with duckdb.connect(config=config) as connection:
            ((loss,),) = connection.sql(LOSS_BY_HAND.format(files=files)).fetchall()
            sums = connection.sql(BY_HAND.format(files=files, field=field)).fetchnumpy()
    return {"log_loss": loss, **errors(sums["residual"], sums["positives"], sums["rows"])}


def errors(residual: np.ndarray, positives: np.ndarray, rows: np.ndarray) -> dict[str, float]:
    rce = np.abs(residual) * rows / (positives + 0.01 * rows)
    return {
        "field_ece": float(np.abs(residual).sum() / rows.sum()),
        "field_rce": float(rce.sum() / rows.sum()),
    }


def score_of_log(source: Any, field: str, calibrated: bool = False) -> dict[str, float]:
    from keras_calibration.logs import ScoredLog
    from keras_calibration.metrics import CalibratedLogLoss, LogLoss
    from keras_calibration.scoring import score

    metrics = [LogLoss(), CalibratedLogLoss()] if calibrated else LogLoss()
    log = ScoredLog(source, fields=[field])
    return {
        name.removeprefix(f"{field}_"): value
        for name, value in score(log, metrics, verbose=0).items()
    }


def embedded(files: str, field: str) -> dict[str, float]:
    return score_of_log(files, field)


def calibrated(files: str, field: str) -> dict[str, float]:
    return score_of_log(files, field, calibrated=True)


def ray(files: str, field: str) -> dict[str, float]:
    import ray

    return score_of_log(
        ray.data.read_parquet(sorted(glob.glob(files)), override_num_blocks=16), field
    )


def polars(files: str, field: str) -> dict[str, float]:
    import polars as pl

    y, p = pl.col("label").cast(pl.Float64), pl.col("probability").cast(pl.Float64)
    rows = pl.scan_parquet(files)
    loss = rows.select((-y * p.log() - (1 - y) * (1 - p).log()).mean()).collect(engine="streaming")
    sums = (
        rows.group_by(field)
        .agg(
            residual=(y - p).sum(),
            positives=y.sum(),
            rows=pl.len().cast(pl.Float64),
            variance=(p * (1 - p)).sum(),
            predicted=p.sum(),
            squares=(p * p).sum(),
        )
        .collect(engine="streaming")
    )
    columns = (sums[name].to_numpy() for name in ("residual", "positives", "rows"))
    return {"log_loss": loss.item(), **errors(*columns)}


RUN = {
    "by hand": by_hand,
    "embedded": embedded,
    "with Calibrated Log Loss": calibrated,
    "ray": ray,
    "polars": polars,
}


def measure(way: str, files: str, field: str, rounds: int) -> dict[str, Any]:
    """Runs in a process of its own: times, numbers and peak memory."""
    if way == "ray":
        start_ray()
    idle = memory_of_children() if way == "ray" else 0
    watched = PeakOfChildren() if way == "ray" else None
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        numbers = RUN[way](files, field)
        seconds.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if watched is not None:
        peak += watched.peak() - idle
    return {"seconds": float(np.median(seconds)), "peak": peak, "numbers": numbers}


def start_ray() -> None:
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DATA_DISABLE_PROGRESS_BARS": "1"}
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)


def memory_of_children() -> int:
    """Resident bytes of all processes below this one, without what they share."""
    parents, sizes = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            shared = (folder / "statm").read_text().split()
        except OSError:
            continue
        parents[int(folder.name)] = int(fields[1])
        sizes[int(folder.name)] = (int(shared[1]) - int(shared[2])) * os.sysconf("SC_PAGESIZE")
    below, children = {os.getpid()}, {os.getpid()}
    while children:
        children = {pid for pid, parent in parents.items() if parent in below} - below
        below |= children
    return sum(sizes[pid] for pid in below - {os.getpid()})


class PeakOfChildren:
    """The largest memory of the processes below this one, looked at ten times a second."""

    def __init__(self) -> None:
        self._peak, self._done = 0, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def peak(self) -> int:
        """The largest memory so far; ends the watching."""
        self._done.set()
        self._thread.join()
        return self._peak

    def _look(self) -> None:
        while not self._done.wait(0.1):
            self._peak = max(self._peak, memory_of_children())


def in_process(way: str, files: str, field: str, rounds: int) -> dict[str, Any]:
    """`measure` in a new process."""
    arguments = ["--way", way, "--files", files, "--field", field, "--rounds", str(rounds)]
    done = subprocess.run(
        [sys.executable, __file__, *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:]
        return {"seconds": float("nan"), "peak": 0, "numbers": {}, "failed": reason}
    return json.loads(done.stdout.splitlines()[-1])


def table(folder: Path, rows: int, fields: list[str], ways: list[str], rounds: int) -> None:
    files = files_of(folder, rows)
    print(f"\n{rows:,} rows, medians of {rounds}\n")
    print("| field | way | seconds | over by hand | peak, GB | largest difference of a number |")
    print("| --- | --- | --- | --- | --- | --- |")
    for field in fields:
        reference = None
        for way in ways:
            measured = in_process(way, files, field, rounds)
            if reference is None:
                reference = measured
            differences = [
                abs(measured["numbers"][name] - value) / abs(value)
                for name, value in reference["numbers"].items()
                if name in measured["numbers"]
            ]
            ratio = measured["seconds"] / reference["seconds"]
            print(
                f"| {field} | {way} | {measured['seconds']:.2f} | {ratio:.2f} | "
                f"{measured['peak'] / 1e9:.2f} | {max(differences, default=float('nan')):.0e} |"
                f"{' ' + str(measured['failed']) if 'failed' in measured else ''}",
                flush=True,
            )


def extrapolate(folder: Path, rounds: int) -> None:
    """Fits a straight line to the times of three sizes, and extrapolates it."""
    sizes = [10_000_000, 30_000_000, 100_000_000]
    for field in ("site", "user"):
        seconds = []
        for rows in sizes:
            make(folder, rows)
            measured = in_process("with Calibrated Log Loss", files_of(folder, rows), field, rounds)
            seconds.append(measured["seconds"])
        slope, start = np.polyfit(sizes, seconds, 1)
        fit = ", ".join(f"{s:.1f} s at {n:,}" for n, s in zip(sizes, seconds, strict=True))
        print(f"{field}: {fit}; by a straight line, {start + slope * 1e9:.0f} s at 1,000,000,000")


def files_of(folder: Path, rows: int) -> str:
    """A glob of just the files of so many rows."""
    last = -(-rows // ROWS_OF_FILE) - 1
    if last == 0:
        return str(folder / "part-000.parquet")
    chosen = folder / f"first-{last + 1}"
    chosen.mkdir(exist_ok=True)
    for number in range(last + 1):
        link = chosen / f"part-{number:03d}.parquet"
        if not link.exists():
            link.symlink_to(folder / link.name)
    return str(chosen / "*.parquet")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=ROWS_OF_FILE)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", default="output/scale", help="of the Parquet files")
    parser.add_argument("--fields", nargs="+", default=list(FIELDS), choices=FIELDS)
    parser.add_argument("--ways", nargs="+", default=list(RUN), choices=list(RUN))
    parser.add_argument("--extrapolate", action="store_true")
    parser.add_argument("--way", choices=list(RUN), help=argparse.SUPPRESS)
    parser.add_argument("--files", help=argparse.SUPPRESS)
    parser.add_argument("--field", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        print(json.dumps(measure(options.way, options.files, options.field, options.rounds)))
        return
    folder = Path(options.folder)
    if options.extrapolate:
        extrapolate(folder, options.rounds)
        return
    make(folder, options.rows)
    table(folder, options.rows, options.fields, options.ways, options.rounds)


if __name__ == "__main__":
    main()
