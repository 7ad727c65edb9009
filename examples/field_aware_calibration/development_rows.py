"""F2 of HYPOTHESES.md: Neural Calibration against Platt scaling, by the number of development rows.

    ./dev run python examples/field_aware_calibration/development_rows.py     half an hour
    ./dev run python examples/field_aware_calibration/development_rows.py --seeds 2

Six tables in full, split as in `tables.py`. The base model of a seed is the same for all numbers of
development rows. The last development rows are used: in tables in the order of time, those nearest
to the test rows. Runs that are in the ledger are not repeated.
"""

import argparse
import dataclasses
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import keras
import numpy as np
from numpy.typing import NDArray

sys.path.append(str(Path(__file__).parents[1]))
from base_network import Split, make_task, read_split
from calibration_task import CalibrationTask, NetworkSize
from jackknife import append_jackknife
from tables import run
from tables_markdown import PLATT, Group, gather
from training import RowModel

from data_folder import data_root
from keras_calibration.seeds import Ledger
from markdown_table import markdown_table
from two_way_bootstrap import pseudo_values, two_way_effects
from verdicts import Effect, hartung_knapp, interval_text, student_effect

FOLDER = "development_rows"
DATA_SETS = (
    *("fremtpl2_678k", "nycflights13_337k", "hotel_bookings_119k", "diabetes_readmit_102k"),
    *("pg15_motor_100k", "movielens_100k"),
)
SIZES = (1_000, 3_000, 10_000, 30_000, 100_000)
# The runs of `tables.py` have the seeds 0 to 9.
FIRST_SEED = 100
NETWORK = NetworkSize(16, (200, 200))
NEURAL = "Neural Calibration to the end"
OTHER_METHODS = ("Neural Calibration", "Our NeuralCalibration")
METHODS = (PLATT, NEURAL, *OTHER_METHODS)
TEXT = """
### F2: do more development rows favour Neural Calibration over Platt scaling?

Six tables in full. A cell is the difference in mean log loss, in percent of that of Platt scaling;
it is negative where Neural Calibration is better. *Slope*: that of the log of the loss ratio on the
natural log of the number of development rows, in percent. The first rows decide; the others have
the paper's schedule, or are the package's own `NeuralCalibration`.
"""


def main() -> None:
    """Makes the runs that are missing in the ledger, then prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, default=data_root(), help="folder of the tables")
    parser.add_argument("--tables", nargs="+", default=DATA_SETS, help="(default: all six)")
    parser.add_argument("--seeds", type=int, default=5, help="of each table (default: 5)")
    parser.add_argument("--output", type=Path, default=Path("output"), help="folder of the ledger")
    arguments = parser.parse_args()
    ledger = Ledger(arguments.output / FOLDER)
    bar = keras.utils.Progbar(arguments.seeds * len(arguments.tables), unit_name="base model")
    for name in arguments.tables:
        # The models of the last table are not needed any more.
        keras.backend.clear_session()
        compiled: dict[str, RowModel] = {}
        split = read_split(arguments.data / name, None)
        for seed in range(FIRST_SEED, FIRST_SEED + arguments.seeds):
            run_seed(ledger, split, seed, compiled)
            bar.add(1)
    print(markdown(groups_of(ledger)))


def run_seed(ledger: Ledger, split: Split, seed: int, compiled: dict[str, RowModel]) -> None:
    """The missing runs of one base model: all methods on all numbers of development rows."""
    finished = {
        (record["pipeline"], record["configuration"]["settings"]["development_rows"])
        for record in ledger.runs(status="finished")
        if (record["configuration"]["settings"]["data"], record["seed"]) == (split.name, seed)
    }
    missing = [
        (size, name)
        for size in sizes_of(len(split.development.labels))
        for name in METHODS
        if (name, size) not in finished
    ]
    if not missing:
        return
    started = time.monotonic()
    task = make_task(split, NETWORK, None, seed, compiled)
    base_seconds = time.monotonic() - started
    for size, name in missing:
        settings = {"data": split.name, "development_rows": size}
        record, without_block = run(name, last_rows(task, size), settings, base_seconds)
        append_jackknife(ledger.path, record, without_block)
        ledger.append(record)


def sizes_of(num_rows: int) -> list[int]:
    """The numbers of development rows to try on a table that has `num_rows` of them."""
    return [size for size in SIZES if size < num_rows] + [num_rows]


def last_rows(task: CalibrationTask, size: int) -> CalibrationTask:
    """The task with the last development rows only."""
    rows, last = task.development, slice(-size, None)
    columns = {name: column[last] for name, column in rows.features.items()}
    return dataclasses.replace(
        task,
        development=rows._replace(features=columns, labels=rows.labels[last]),
        development_logits=task.development_logits[last],
    )


def groups_of(ledger: Ledger) -> dict[str, list[Group]]:
    """Table → its runs, a group for each number of development rows in ascending order."""
    groups = sorted(gather(ledger, METHODS), key=lambda group: group.settings["development_rows"])
    tables = {name: [g for g in groups if g.settings["data"] == name] for name in DATA_SETS}
    return {name: of_table for name, of_table in tables.items() if of_table}


def slope(groups: Sequence[Group], method: str = NEURAL) -> tuple[float, float] | None:
    """The slope of log(loss / loss of Platt scaling) on log(development rows), on one table."""
    seeds = sorted(set.intersection(*(set(group.seeds(method, PLATT)) for group in groups)))
    if len(groups) < 3 or len(seeds) < 2:
        return None
    x = np.log([group.settings["development_rows"] for group in groups])
    parts = (x - x.mean()) / np.sum((x - x.mean()) ** 2)
    # Shape (groups, seeds), and without each block (groups, seeds, blocks).
    ratios = np.array([_log_ratios(group.values, method, seeds) for group in groups])
    without = np.array([_log_ratios(group.without_blocks, method, seeds) for group in groups])
    values = pseudo_values(parts @ ratios, np.tensordot(parts, without, axes=1))
    return float(values.mean()), two_way_effects(values)[-1]


def _log_ratios(
    losses_of: Callable[[str, str, Sequence[int]], NDArray[np.float64]],
    method: str,
    seeds: Sequence[int],
) -> NDArray[np.float64]:
    """Log of the losses over those of Platt scaling, on all test rows or without each block."""
    ours, theirs = (losses_of(name, "log_loss", seeds) for name in (method, PLATT))
    return np.asarray(np.log(ours / theirs))


def mean_slope(tables: Mapping[str, Sequence[Group]], method: str = NEURAL) -> Effect | None:
    """Minus the mean slope over the tables, positive in the direction of F2; `None` below two."""
    slopes = [estimate for groups in tables.values() if (estimate := slope(groups, method))]
    if len(slopes) < 2:
        return None
    return hartung_knapp([-value for value, _ in slopes], [error for _, error in slopes])


def markdown(tables: Mapping[str, Sequence[Group]]) -> str:
    """The differences by number of rows, and the slopes, as Markdown; nothing without runs."""
    if not tables:
        return ""
    lines = []
    for method in METHODS[1:]:
        for name, groups in tables.items():
            cells = {group.settings["development_rows"]: _cell(group, method) for group in groups}
            last = max(cells)
            line = [method, name, *(cells.get(size, "") for size in SIZES)]
            line.append("" if last in SIZES else f"{cells[last]} ({last:,})")
            fit = slope(groups, method)
            # Infinitely many degrees of freedom: a normal distribution.
            line.append(interval_text(fit and student_effect(-fit[0], fit[1], np.inf), -100, 2))
            lines.append(line)
        lines.append([method, "mean", *[""] * (len(SIZES) + 1)])
        lines[-1].append(interval_text(mean_slope(tables, method), -100, 2))
    head = ["row", "table", *(f"{size:,}" for size in SIZES), "all", "slope"]
    return f"{TEXT.strip()}\n\n{markdown_table(head, lines)}"


def _cell(group: Group, method: str) -> str:
    seeds = group.seeds(method, PLATT)
    if not seeds:
        return "–"
    ours, theirs = (group.values(name, "log_loss", seeds).mean() for name in (method, PLATT))
    return f"{100 * (ours / theirs - 1):+.2f}"


if __name__ == "__main__":
    main()
