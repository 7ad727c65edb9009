"""F1′, F3 and S1, and F4, F5, F6 and S2 of HYPOTHESES.md: the paper's schedule on tables in full.

    ./dev run python examples/field_aware_calibration/full_tables.py        20 minutes

All rows of the paper's tables 1 to 5, and the curves of table 6, with the paper's one epoch, in
batches of 200 rows. Each table is in its own order; those in the order of time are shuffled and run
a second time. Runs that are in the ledger are not repeated. The runs of F1′, F3 and S1 have seeds
400 to 409, and only Model-1, Platt scaling and Neural Calibration: they recorded no AUC and no
Brier score.
"""

import argparse
import functools
import importlib.metadata
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.metrics import roc_auc_score

sys.path.append(str(Path(__file__).parents[1]))
import development_rows
import methods
from base_network import Split, make_task, read_split
from calibration_task import Method
from jackknife import EPSILON
from tables_markdown import BASE, PLATT, Group, gather
from training import RowModel, Rows, mean_log_loss

from data_folder import data_root
from end_record import end_record
from keras_calibration.datasets.table import split_parts
from keras_calibration.seeds import Ledger
from verdicts import Effect, mean_over_tables

# The ledger behind F1′, F3 and S1, and the one that this program writes.
FOLDER, AGAIN = "full_tables", "full_tables_again"
IN_TIME = ("nycflights13_337k", "hotel_bookings_119k", "diabetes_readmit_102k", "movielens_100k")
DATA_SETS = (*development_rows.DATA_SETS, "adult_49k", "bank_marketing_45k", "kddcup2012_click40k")
OWN_ORDER, SHUFFLED = "own", "shuffled"
FIRST_SEED, NUM_SEEDS = 410, 10
BATCH_SIZE = 200
# A field counts if its values have at least so many test rows on average.
MIN_ROWS = 200
PACKAGES = ("keras", "tensorflow", "numpy", "keras-calibration")
# Draws of labels from the probabilities of a method, for the floor of its errors.
FLOOR_DRAWS = 20
NEURAL, MODEL_2, ILPS = "Neural Calibration", "Model-2", "ILPS"
METHODS: dict[str, Method] = {
    BASE: methods.model_1,
    MODEL_2: methods.model_2,
    "Isotonic regression": methods.isotonic_regression,
    PLATT: methods.platt_scaling,
    ILPS: functools.partial(methods.paper_ilps, to_the_end=False),
    "ILPS at its optimum": methods.paper_ilps_at_its_optimum,
    "Neural Calibration, z only": functools.partial(
        methods.paper_neural_calibration_of_field, to_the_end=False
    ),
    NEURAL: functools.partial(methods.paper_neural_calibration, to_the_end=False),
}
# The rows of `FOLDER`.
FIRST_METHODS = (BASE, PLATT, NEURAL)


def main() -> None:
    """Makes the runs that are missing in the ledger."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, default=data_root(), help="folder of the tables")
    parser.add_argument("--tables", nargs="+", default=DATA_SETS, help="(default: all nine)")
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED, help="(default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=NUM_SEEDS, help="(default: %(default)s)")
    parser.add_argument("--output", type=Path, default=Path("output"), help="folder of the ledger")
    arguments = parser.parse_args()
    ledger = Ledger(arguments.output / AGAIN)
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    for name in arguments.tables:
        split = read_split(arguments.data / name, None)
        fields = counted_fields(arguments.data / name, split)
        orders = {OWN_ORDER: split} | ({SHUFFLED: shuffled(split)} if name in IN_TIME else {})
        for order, rows in orders.items():
            # The models of the last table are not needed any more.
            keras.backend.clear_session()
            compiled: dict[str, RowModel] = {}
            for seed in seeds:
                run_seed(ledger, rows, order, fields, seed, compiled)
                print(f"{name}, {order} order, seed {seed}", flush=True)


def counted_fields(folder: Path, split: Split) -> list[str]:
    """The fields of a table whose values have at least 200 test rows each, on average."""
    fields = json.loads((folder / "meta.json").read_text(encoding="utf-8"))["fields"]
    columns = [name for name in fields if name in split.num_values]
    num_values = {name: len(np.unique(split.test.features[name])) for name in columns}
    return [name for name in columns if len(split.test.labels) >= MIN_ROWS * num_values[name]]


def shuffled(split: Split) -> Split:
    """The rows of a table in random order, and split again."""
    parts = (split.train, split.development, split.test)
    labels = np.concatenate([part.labels for part in parts])
    order = np.random.default_rng(0).permutation(len(labels))
    columns = {
        name: np.concatenate([part.features[name] for part in parts])[order]
        for name in split.num_values
    }

    def rows(chosen: slice) -> Rows:
        return Rows(
            {name: column[chosen] for name, column in columns.items()}, labels[order][chosen]
        )

    train, development, test = map(rows, split_parts(len(labels)).values())
    return split._replace(train=train, development=development, test=test)


def run_seed(
    ledger: Ledger,
    split: Split,
    order: str,
    fields: Sequence[str],
    seed: int,
    compiled: dict[str, RowModel],
) -> None:
    """The missing runs of one base model."""
    settings = {"data": split.name, "order": order}
    finished = {
        record["pipeline"]
        for record in ledger.runs(status="finished")
        if (record["configuration"]["settings"], record["seed"]) == (settings, seed)
    }
    if not (missing := [name for name in METHODS if name not in finished]):
        return
    task = make_task(split, development_rows.NETWORK, BATCH_SIZE, seed, compiled)
    data = {"num_development": len(split.development.labels), "num_test": len(split.test.labels)}
    for name in missing:
        started = time.monotonic()
        logits = METHODS[name](task)
        metrics = {"seconds": time.monotonic() - started}
        probabilities = expit(logits.astype(np.float64))
        metrics["log_loss"] = mean_log_loss(logits, task.test.labels)
        metrics["brier"] = float(np.mean((task.test.labels - probabilities) ** 2))
        metrics["auc"] = float(roc_auc_score(task.test.labels, logits))
        columns = {field: task.test.features[field] for field in fields}
        metrics |= field_errors(task.test.labels, probabilities, columns)
        record = end_record(
            name,
            seed,
            metrics,
            len(task.test.labels),
            configuration={"settings": settings, "data": data | {"fields": list(fields)}},
            versions={package: importlib.metadata.version(package) for package in PACKAGES},
            backend=keras.backend.backend(),
        )
        ledger.append(record)


def field_errors(
    labels: NDArray[np.float32],
    probabilities: NDArray[np.float64],
    columns: Mapping[str, NDArray[np.int32]],
) -> dict[str, float]:
    """The errors of each field, their floor, and the unbiased square of its bias.

    The floor is the error of labels drawn from the probabilities. With N rows, n of them with the
    value z, the square is Σ_z ((Σ (y − p))² − Σ p (1 − p)) / n / N. It needs no floor.
    """
    rng = np.random.default_rng(0)
    drawn = rng.random((FLOOR_DRAWS, len(labels))) < probabilities
    figures: dict[str, float] = {}
    for field, values in columns.items():
        _, place, num_rows = np.unique(values, return_inverse=True, return_counts=True)
        errors = functools.partial(_errors, probabilities, place, num_rows)
        floor = np.mean([errors(draw) for draw in drawn.astype(np.float64)], axis=0).tolist()
        names = [f"{name} of {field}" for name in ("field_ece", "field_rce")]
        figures |= dict(zip(names, errors(labels), strict=True))
        figures |= dict(zip([f"floor of {name}" for name in names], floor, strict=True))
        gaps = np.bincount(place, labels - probabilities)
        noise = np.bincount(place, probabilities * (1 - probabilities))
        figures[f"square of {field}"] = float(((gaps**2 - noise) / num_rows).sum() / len(labels))
    return figures


def _errors(
    probabilities: NDArray[np.float64],
    place: NDArray[np.intp],
    num_rows: NDArray[np.intp],
    labels: NDArray[np.floating[Any]],
) -> tuple[float, float]:
    """Field-ECE and Field-RCE."""
    gaps = np.abs(np.bincount(place, labels - probabilities))
    relative = num_rows * gaps / (np.bincount(place, labels) + EPSILON * num_rows)
    return float(gaps.sum() / len(labels)), float(relative.sum() / len(labels))


class Errors(NamedTuple):
    """How the error of a row on a field is measured: by a metric, with or without its floor."""

    metric: str
    less_floor: bool = False

    def of(self, group: Group, row: str, field: str) -> float:
        """The mean error over the seeds; 0 or below where it does not exceed its floor."""
        name = f"{self.metric} of {field}"
        value = group.mean(row, name)
        if self.metric == "square":
            return float(np.sign(value) * np.sqrt(abs(value)))
        return value - group.mean(row, f"floor of {name}") if self.less_floor else value


ERRORS = {
    "Field-ECE less the floor": Errors("field_ece", True),
    "Field-RCE less the floor": Errors("field_rce", True),
    "Field-ECE": Errors("field_ece"),
    "Field-RCE": Errors("field_rce"),
    "root mean square, unbiased": Errors("square"),
}


def groups_of(ledger: Ledger, order: str = OWN_ORDER) -> dict[str, Group]:
    """Table → its runs in one order of the rows."""
    groups = [group for group in gather(ledger, list(METHODS)) if group.settings["order"] == order]
    return {group.settings["data"]: group for group in groups}


def is_complete(
    groups: Mapping[str, Group],
    tables: Sequence[str] = DATA_SETS,
    rows: Sequence[str] = FIRST_METHODS,
) -> bool:
    """Whether these rows have all seeds on these tables."""
    return set(tables) <= set(groups) and all(
        len(groups[name].seeds(*rows)) >= NUM_SEEDS for name in tables
    )


def log_ratios(
    groups: Mapping[str, Group], row: str, base: str, errors: Errors
) -> dict[str, float]:
    """Table → log(error of a row / error of the base), a mean over the fields above the floor."""
    ratios = {}
    for table, group in groups.items():
        pairs = [[errors.of(group, name, f) for name in (row, base)] for f in group.data["fields"]]
        logs = [np.log(first / second) for first, second in pairs if min(first, second) > 0]
        if logs:
            ratios[table] = float(np.mean(logs))
    return ratios


def area_gains(groups: Mapping[str, Group], base: str) -> dict[str, float]:
    """Table → AUC of Neural Calibration minus that of a base, in points."""
    return {
        name: 100 * (group.mean(NEURAL, "auc") - group.mean(base, "auc"))
        for name, group in groups.items()
    }


def loss_ratios(groups: Mapping[str, Group]) -> dict[str, float]:
    """Table → log(log loss of Neural Calibration / log loss of Platt scaling)."""
    return {
        name: float(np.log(group.mean(NEURAL, "log_loss") / group.mean(PLATT, "log_loss")))
        for name, group in groups.items()
    }


def time_effects(ordered: Mapping[str, Group], mixed: Mapping[str, Group]) -> list[Effect | None]:
    """S1: minus the log ratio of losses in shuffled rows, and its rise in the order of time."""
    in_order, in_random = loss_ratios(ordered), loss_ratios(mixed)
    tables = [name for name in IN_TIME if name in in_order and name in in_random]
    rises = [in_order[name] - in_random[name] for name in tables]
    return [mean_over_tables([-in_random[name] for name in tables]), mean_over_tables(rises)]


if __name__ == "__main__":
    main()
