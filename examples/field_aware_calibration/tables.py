"""The tables of Pan et al., *Field-aware Calibration* (WWW 2020), on any data folder.

    ./dev run python examples/field_aware_calibration/tables.py                      in full
    ./dev run python examples/field_aware_calibration/tables.py --data FOLDER        your data
    ./dev run python examples/field_aware_calibration/tables.py --rows 24000 --embedding-dim 16

The last command is that of the page of results, whose README says where it used fewer rows. It
takes about an hour on two cores.

For each data set and seed, a base model is trained on the training rows. Every row of the tables
calibrates it on the development rows, and is scored on the test rows. Finished runs are kept in a
ledger and are not repeated; beside them, `jackknife.jsonl` keeps their metrics without each of 20
blocks of test rows.

The data are read from $KERAS_CALIBRATION_DATA, or else from ../shared/data.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
from scipy.special import expit

sys.path.append(str(Path(__file__).parents[1]))
import later_methods
import methods
from base_network import make_task, read_split
from calibration_task import CalibrationTask, Method, NetworkSize
from jackknife import append_jackknife, scores, scores_without_blocks
from tables_markdown import FLOOR
from tables_markdown import markdown as markdown_of_rows
from training import RowModel

from data_folder import data_root
from end_record import end_record
from keras_calibration.seeds import Ledger

DATA_SETS = (
    "avazu_head10k",
    "kddcup2012_click40k",
    "movielens_100k",
    "nycflights13_337k",
    "bank_marketing_45k",
    "adult_49k",
    "sba_loans_22k",
    "pg15_motor_100k",
    "credit_default_tw_30k",
    "criteo_head10k",
    "lendingclub_2018_32k",
    "hotel_bookings_119k",
    "diabetes_readmit_102k",
)
METHODS: dict[str, Method] = methods.METHODS | later_methods.METHODS
# Draws of labels from the probabilities of `calibrate`, for the noise floor.
FLOOR_DRAWS = 20
GROUPS = {
    "paper": list(methods.PAPER),
    "ours": list(methods.OURS),
    "later": list(later_methods.METHODS),
    "all": [*METHODS, FLOOR],
}
DIRECTIONS = {
    **{"log_loss": "min", "brier": "min", "field_ece": "min", "field_rce": "min"},
    "auc": "max",
}


def main() -> None:
    """Makes the runs that are missing in the ledger, then prints the tables."""
    arguments = parse_arguments()
    names = choose_methods(arguments.methods)
    ledger = Ledger(arguments.output)
    missing = missing_runs(arguments, ledger, names)
    num_runs = sum(len(names) for _, _, names in missing)
    bar = keras.utils.Progbar(max(num_runs, 1), unit_name="run")
    size = NetworkSize(arguments.embedding_dim, tuple(arguments.hidden_units))
    read: Path | None = None
    compiled: dict[str, RowModel] = {}
    refused = []
    for folder, seed, lacking in missing:
        if folder != read:
            # The models of the last data set are not needed any more.
            keras.backend.clear_session()
            compiled = {}
            split = read_split(folder, arguments.field, arguments.rows)
            read = folder
        started = time.monotonic()
        task = make_task(split, size, arguments.batch_size, seed, compiled)
        base_seconds = time.monotonic() - started
        for name in lacking:
            try:
                record, without_block = run(
                    name, task, settings_of(folder, arguments), base_seconds
                )
                if without_block:
                    append_jackknife(ledger.path, record, without_block)
                ledger.append(record)
            except ValueError as error:
                # For example, Platt scaling refuses separable rows. The others go on.
                refused.append(f"{folder.name}, seed {seed}, {name}: {error}")
            bar.add(1)
    print(f"Made {num_runs - len(refused)} runs; {ledger.path}\n")
    print(markdown(ledger))
    if refused:
        raise SystemExit("\n".join(["These rows could not be fitted:", *refused]))


def parse_arguments() -> argparse.Namespace:
    """The command-line arguments."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    folders = [data_root() / name for name in DATA_SETS]
    add("--data", type=Path, nargs="+", default=folders, help="(default: 13 data sets)")
    add("--field", help="the field z (default: the first of meta.json's fields)")
    add("--methods", nargs="+", default=["all"], help=f"rows by name, or {', '.join(GROUPS)}")
    add("--seeds", type=int, default=10, help="of each row (default: 10)")
    add("--embedding-dim", type=int, default=256, help="(default: 256)")
    add("--rows", type=int, help="use only the last ROWS rows of each table (default: all)")
    add("--hidden-units", type=int, nargs="+", default=[200, 200], help="(default: 200 200)")
    add("--batch-size", type=int, help="(default: 512, or less for an epoch of 150 steps)")
    add("--output", type=Path, default=Path("output") / "field_aware_calibration", help="ledger")
    return parser.parse_args()


def choose_methods(chosen: Sequence[str]) -> list[str]:
    """The names of the rows, in the order of `METHODS`."""
    rows = [*METHODS, FLOOR]
    if unknown := [name for name in chosen if name not in rows and name not in GROUPS]:
        raise SystemExit(f"No rows {unknown}: expected names of {rows}, or groups {list(GROUPS)}.")
    names = {name for choice in chosen for name in GROUPS.get(choice, [choice])}
    return [name for name in rows if name in names]


def settings_of(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings that identify a run, beside its row and seed."""
    return {
        "data": folder.name,
        "field": arguments.field,
        "embedding_dim": arguments.embedding_dim,
        "hidden_units": arguments.hidden_units,
        "batch_size": arguments.batch_size,
        "rows": arguments.rows,
    }


def missing_runs(
    arguments: argparse.Namespace, ledger: Ledger, names: Sequence[str]
) -> list[tuple[Path, int, list[str]]]:
    """Data folder, seed, and the rows that the ledger lacks for them."""
    done = [
        (run["pipeline"], run["seed"], run["configuration"]["settings"])
        for run in ledger.runs(status="finished")
    ]
    missing = []
    for folder in arguments.data:
        settings = settings_of(folder, arguments)
        for seed in range(arguments.seeds):
            lacking = [name for name in names if (name, seed, settings) not in done]
            if lacking:
                missing.append((folder, seed, lacking))
    return missing


def run(
    name: str, task: CalibrationTask, settings: dict[str, Any], base_seconds: float
) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """Calibrates by one method, and scores the test rows."""
    # So that a row does not depend on the rows computed before it.
    keras.utils.set_random_seed(task.seed)
    started = time.monotonic()
    if name == FLOOR:
        metrics, without_block = noise_floor(task), {}
        seconds = time.monotonic() - started
    else:
        logits = METHODS[name](task)
        seconds = time.monotonic() - started
        metrics = scores(logits, task.test.labels, task.test.features[task.field])
        without_block = scores_without_blocks(
            logits, task.test.labels, task.test.features[task.field]
        )
    data = {
        "field": task.field,
        "num_field_values": task.num_values[task.field],
        "num_columns": len(task.num_values),
        "batch_size": task.batch_size,
        "num_train": len(task.train.labels),
        "num_development": len(task.development.labels),
        "num_test": len(task.test.labels),
        "positive_rate": float(task.test.labels.mean()),
    }
    timing = {"seconds": seconds, "base_seconds": base_seconds}
    record = end_record(
        name,
        task.seed,
        metrics | timing,
        len(task.test.labels),
        directions=DIRECTIONS,
        configuration={"settings": settings, "data": data},
        backend=keras.backend.backend(),
    )
    return record, without_block


def noise_floor(task: CalibrationTask) -> dict[str, float]:
    """The columns as they would be if the probabilities of `calibrate` were the true ones.

    Returns:
        Means over labels drawn from these probabilities. Those of Field-ECE and Field-RCE are what
        a perfectly calibrated model would show on as many test rows.
    """
    logits = methods.calibrate(task)
    rng = np.random.default_rng(task.seed)
    draws = rng.random((FLOOR_DRAWS, len(logits))) < expit(logits)
    values = task.test.features[task.field]
    by_draw = [scores(logits, labels.astype(np.float32), values) for labels in draws]
    return {metric: float(np.mean([draw[metric] for draw in by_draw])) for metric in by_draw[0]}


def markdown(ledger: Ledger) -> str:
    """All tables of a ledger as Markdown."""
    return markdown_of_rows(ledger, [*METHODS, FLOOR])


if __name__ == "__main__":
    main()
