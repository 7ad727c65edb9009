"""The runs of the primary hypotheses V1 and A1: click pipelines, rotated held-out fifths.

    KERAS_BACKEND=jax ./dev run python examples/calibrated_metric/primary_clicks.py

[HYPOTHESES.md](../HYPOTHESES.md) has the hypotheses, written down before the runs. Each table is
shuffled and cut into fifths. Each fifth is held out once, with twelve seeds of its own: 2000 to
2011 for the last fifth, 2012 to 2023 for the one before, and so on. A fifth of all tables is
trained before the next one, so that runs that are stopped early are balanced. Runs that are in the
ledgers are not trained again.
"""

import argparse
import os
from pathlib import Path

from click_study import Pipeline, Study, make_study
from clicks import ROOT, batch_size_of, ledger_name, setting_of, train_study
from id_table import Rows, read_rows

from data_folder import read_data_folder
from keras_calibration.seeds import Ledger

TABLES = ("avazu_head10k", "criteo_head10k", "kddcup2012_click40k")
NUM_FOLDS, SEEDS_PER_FOLD, FIRST_SEED = 5, 12, 2000
L2_SCALE = 200.0
L2 = "l2_0.0002"
PIPELINES = (
    *("xdeepfm", "fnn", "deepfm", "dcn", "dcn_mix"),
    *("smaller", "dropout_0.7", L2, "without_sparse", "without_dense"),
)


def main() -> None:
    """Trains the runs that are missing."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    data = Path(os.environ.get("KERAS_CALIBRATION_DATA", ROOT.parent / "shared" / "data"))
    add("--data", type=Path, default=data, help="folder of the tables")
    add("--tables", nargs="+", default=TABLES, help="(default: all)")
    add("--folds", nargs="+", type=int, default=range(NUM_FOLDS), help="(default: all)")
    add("--first-seed", type=int, default=FIRST_SEED, help="(default: %(default)s)")
    add("--seeds", type=int, default=SEEDS_PER_FOLD, help="of a fold (default: %(default)s)")
    add("--output", type=Path, default=Path("output"), help="folder for the ledgers")
    arguments = parser.parse_args()
    for fold in arguments.folds:
        first = arguments.first_seed + fold * arguments.seeds
        for name in arguments.tables:
            rows = read_fold(arguments.data / name, fold)
            base = Pipeline(batch_size=batch_size_of(len(rows.train)))
            setting = setting_of(name, rows, base, fold=fold, l2_scale=L2_SCALE)
            ledger = Ledger(arguments.output / "primary" / ledger_name(setting))
            seeds = range(first, first + arguments.seeds)
            print(f"{name}, fold {fold}, seeds {first} to {seeds[-1]}", flush=True)
            study = primary_study(base)
            train_study(study, rows, ledger, seeds, setting, num_parallel=len(seeds))


def read_fold(folder: Path, fold: int) -> Rows:
    """The rows of a table, shuffled, with a fifth held out."""
    num_rows = len(read_data_folder(folder).labels)
    return read_rows(folder, num_rows // NUM_FOLDS, mixing=1.0, fold=fold)


def primary_study(base: Pipeline) -> Study:
    """The pipelines of the hypotheses, and their pairs with what the papers report."""
    study = make_study(base, L2_SCALE)
    pairs = {
        # With dense gradients, as on JAX, the base is a pipeline without a penalty.
        pair._replace(first="xdeepfm") if pair.kind == "l2" else pair: text
        for pair, text in study.published.items()
    }
    return Study(
        {name: study.pipelines[name] for name in PIPELINES},
        {
            pair: text
            for pair, text in pairs.items()
            if pair.first in PIPELINES and pair.second in PIPELINES
        },
    )


if __name__ == "__main__":
    main()
