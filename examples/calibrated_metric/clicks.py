"""The papers' pairs of click pipelines, re-run on a table of real data.

    ./dev run python examples/calibrated_metric/clicks.py                     all pairs
    ./dev run python examples/calibrated_metric/clicks.py --kinds dropout l2  pairs of two kinds
    ./dev run python examples/calibrated_metric/clicks.py --mixing 0.5        half way to a shuffle

Fan et al. (*Calibration-then-Calculation*, arXiv 2401.16692, tables 1 to 6, and tables 14 to 19 of
its other version) train pairs of similar pipelines with many seeds on Avazu and Criteo, and ask how
often a single run of each shows the better one: by the log loss, and by the calibrated log loss.
Here the same variants are trained for one epoch on another table, with `seeds.train`. The sizes are
scaled down with the table. Every pipeline is trained with Adam, also DLRM. A logistic regression is
fitted too: a network with a lower AUC is not trained well enough to bear on the papers' claims.

An epoch has at least 1,000 steps: by default, a batch has a thousandth of the training rows. The
models are trained by TensorFlow, in one program for all seeds.

`--mixing` is a drift axis on one table: 1 shuffles the rows before the split, as in the papers, and
0 leaves them in their own order (of time, where the table has one), so that the held-out rows come
after the training rows and differ from them as the data drift. `--fold` holds out another block of
the shuffled rows.

The data are read from $KERAS_CALIBRATION_DATA, or else from ../shared/data.
"""

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np

import keras_calibration as kc
from keras_calibration.metrics import CalibratedLogLoss, LogitAUC, LogLoss
from keras_calibration.seeds import Ledger

sys.path.append(str(Path(__file__).parents[1]))
from block_losses import FILE as BLOCK_FILE
from block_losses import BlockLosses, is_rolling
from click_auc import REGRESSION, regression_record
from click_models import ARCHITECTURES, ModelOptions
from click_study import Pipeline, Study, make_study
from id_table import Rows, read_rows
from pairs import Pair, PairRow, markdown_accuracies, pair_rows, section

from data_folder import data_root

SECONDS = "seconds.csv"
DIFFERENCES = """
In all tables of clicks, unlike in the papers: thousands of rows in place of millions, and sizes to
match (cross interactions of 16 and 16 in xDeepFM for 128 and 128, two experts of rank 8 in DCN-Mix
for four of rank 32); FNN without pre-training; DLRM is trained with Adam on numeric columns as
quantiles; L2 weights are 200 times as large, since smaller ones change nothing (by ten seeds that
are not used here); runs of the same seed are not compared. The papers' metric has 10 % of the
held-out rows for the bias, and 20 % on criteo.
"""
PLAIN = "val_log_loss"
PAPERS = "val_papers_calibrated_log_loss"
ROLLING = "val_rolling_calibrated_log_loss"
CALIBRATED = {"papers'": PAPERS, "ours": "val_calibrated_log_loss"}
# Share of the held-out rows that the papers take for the bias: 2 of 20 % of the rows of Avazu, 3 of
# 15 % of those of Criteo.
BIAS_FRACTION, CRITEO_BIAS_FRACTION = 0.1, 0.2
STEPS = 1000


def main() -> None:
    """Trains the runs that are missing in the ledger, then prints the pairs."""
    arguments = parse_arguments()
    rows = read_rows(
        arguments.data, arguments.held_out, mixing=arguments.mixing, fold=arguments.fold
    )
    if arguments.rows is not None:
        rows = rows._replace(
            train=rows.train[-arguments.rows :], train_labels=rows.train_labels[-arguments.rows :]
        )
    base = Pipeline(
        embedding_dim=arguments.embedding_dim,
        hidden_units=tuple(arguments.hidden_units),
        batch_size=arguments.batch_size or batch_size_of(len(rows.train)),
    )
    print(
        f"{arguments.data.name}: {len(rows.train):,} rows to train on, {len(rows.held_out):,} held "
        f"out, {rows.train_labels.mean():.1%} positive"
    )
    setting = setting_of(
        arguments.data.name, rows, base, arguments.mixing, arguments.fold, arguments.l2_scale
    )
    study = make_study(base, arguments.l2_scale).with_kinds(arguments.kinds)
    ledger = Ledger(arguments.output / "clicks" / ledger_name(setting))
    train_study(study, rows, ledger, range(arguments.seeds), setting)
    rows_of_pairs = pair_rows(ledger, list(study.published), plain=PLAIN, calibrated=CALIBRATED)
    print(markdown_accuracies(rows_of_pairs))


def batch_size_of(num_rows: int) -> int:
    """The largest batch size with at least 1,000 steps an epoch; 1 on fewer rows."""
    return max(1, num_rows // STEPS)


def setting_of(
    data: str, rows: Rows, base: Pipeline, mixing: float = 1.0, fold: int = 0, l2_scale: float = 1.0
) -> dict[str, Any]:
    """What all runs of a ledger have in common, for their records."""
    return {
        "data": data,
        "mixing": mixing,
        "fold": fold,
        "num_train": len(rows.train),
        "num_held_out": len(rows.held_out),
        "num_positives": int(rows.held_out_labels.sum()),
        "base": as_json(base),
        "l2_scale": l2_scale,
    }


def ledger_name(setting: Mapping[str, Any]) -> str:
    """The folder of the ledger of a setting."""
    fold = f"_fold_{setting['fold']}" if setting["fold"] else ""
    return f"{setting['data']}_mixing_{setting['mixing']:g}{fold}"


def metrics_of(setting: Mapping[str, Any]) -> dict[str, dict[str, Any] | None]:
    """Name in the ledger → arguments of the calibrated losses; `None` for the plain loss.

    Rows in the order of time, in periods, have the rolling calibrated loss, which is no metric.
    """
    if "num_periods" in setting:
        return {PLAIN: None, ROLLING: {"num_periods": setting["num_periods"]}}
    return {PLAIN: None, PAPERS: {"bias_fraction": bias_fraction(setting)}, CALIBRATED["ours"]: {}}


def bias_fraction(setting: Mapping[str, Any]) -> float:
    """The share of the held-out rows that the papers' metric takes for the bias."""
    return CRITEO_BIAS_FRACTION if setting["data"].startswith("criteo") else BIAS_FRACTION


def parse_arguments() -> argparse.Namespace:
    """The command-line arguments."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--data", type=Path, default=data_root() / "nycflights13_337k", help="folder")
    add("--kinds", nargs="+", help="kinds of pairs (default: all)")
    add("--seeds", type=int, default=60, help="of each pipeline (default: %(default)s)")
    add("--rows", type=int, help="use only the last ROWS training rows (default: all)")
    add("--held-out", type=int, default=60_000, help="held-out rows (default: %(default)s)")
    add("--mixing", type=float, default=1.0, help="1: shuffled before the split, 0: own order")
    add("--fold", type=int, default=0, help="block of rows held out (default: 0, the last one)")
    add("--embedding-dim", type=int, default=8, help="(default: %(default)s)")
    add("--hidden-units", type=int, nargs="+", default=[64, 32], help="(default: 64 32)")
    add("--batch-size", type=int, help="(default: a thousandth of the training rows)")
    add("--l2-scale", type=float, default=200.0, help="of the L2 weights (default: %(default)s)")
    add("--output", type=Path, default=Path("output"), help="folder for the ledger")
    return parser.parse_args()


def train_study(
    study: Study,
    rows: Rows,
    ledger: Ledger,
    seeds: Sequence[int],
    setting: Mapping[str, Any],
) -> None:
    """Trains the missing runs, one pipeline after another."""
    if any(run["configuration"]["setting"] != setting for run in ledger.runs()):
        raise SystemExit(
            f"The runs in {ledger.path} are of other rows or sizes. Choose another --output."
        )
    if not ledger.runs(REGRESSION):
        print("A logistic regression, to compare the networks with")
        ledger.append(regression_record(rows, {"setting": setting}))
    for number, (name, pipeline) in enumerate(study.pipelines.items()):
        if pipeline.without == "dense" and not rows.num_numeric:
            print(f"{name} is left out: the table has no numeric columns.")
            continue
        print(f"{name} ({number + 1} of {len(study.pipelines)} pipelines)")
        kept = kept_columns(rows, pipeline.without)
        held_out = (rows.held_out[:, kept], rows.held_out_labels)
        num_ended, started = len(ledger.runs(name, status="finished")), time.monotonic()
        try:
            kc.seeds.train(
                partial(build_model, pipeline, rows, metrics_of(setting)),
                (rows.train[:, kept], rows.train_labels),
                ledger=ledger,
                pipeline=name,
                seeds=seeds,
                batch_size=pipeline.batch_size,
                validation_data=held_out,
                configuration={"setting": setting, **as_json(pipeline)},
                callbacks=partial(block_losses, ledger, name, held_out, metrics_of(setting)),
            )
        finally:  # also what an interrupted training has finished
            if num_new := len(ledger.runs(name, status="finished")) - num_ended:
                with (ledger.path / SECONDS).open("a") as file:
                    file.write(f"{name},{num_new},{time.monotonic() - started:.1f}\n")


def block_losses(
    ledger: Ledger,
    name: str,
    held_out: tuple[Any, Any],
    metrics: dict[str, dict[str, Any] | None],
    seed: int,
) -> list[Any]:
    """The callback of a run that records its losses by block of the held-out rows."""
    return [BlockLosses(ledger.path / BLOCK_FILE, name, seed, *held_out, metrics)]


def as_json(pipeline: Pipeline) -> dict[str, Any]:
    """The fields of a pipeline as a ledger returns them, with lists in place of tuples."""
    return dict(json.loads(json.dumps(dataclasses.asdict(pipeline))))


def kept_columns(rows: Rows, without: str | None) -> list[int]:
    """Positions of the columns that a model gets."""
    num_categorical = len(rows.columns) - rows.num_numeric
    removed: set[int] = set()
    if without == "dense":
        removed = set(range(num_categorical, num_categorical + (rows.num_numeric + 1) // 2))
    elif without == "sparse":
        removed = {int(np.argmin(rows.num_ids[:num_categorical]))}
    return [column for column in range(len(rows.columns)) if column not in removed]


def build_model(
    pipeline: Pipeline, rows: Rows, metrics: Mapping[str, dict[str, Any] | None]
) -> keras.Model:
    """The compiled model of a pipeline, for the columns that it gets."""
    kept = kept_columns(rows, pipeline.without)
    num_categorical = len(rows.columns) - rows.num_numeric
    model = ARCHITECTURES[pipeline.architecture](
        ModelOptions(
            num_ids=tuple(rows.num_ids[column] for column in kept),
            num_numeric=sum(column >= num_categorical for column in kept),
            embedding_dim=pipeline.embedding_dim,
            hidden_units=pipeline.hidden_units,
            dropout=pipeline.dropout,
            batch_normalization=pipeline.batch_normalization,
            l2=pipeline.l2,
        )
    )
    model.compile(
        optimizer=keras.optimizers.Adam(pipeline.learning_rate),
        loss=keras.losses.BinaryCrossentropy(from_logits=True),
        metrics=[
            *(
                click_metric(name, arguments)
                for name, arguments in metrics.items()
                if not is_rolling(arguments)
            ),
            LogitAUC(from_logits=True, name="auc"),
        ],
        jit_compile=True,
    )
    return model


def click_metric(name: str, arguments: dict[str, Any] | None) -> keras.metrics.Metric:
    """The metric of a name in `metrics_of`."""
    name = name.removeprefix("val_")
    if arguments is None:
        return LogLoss(from_logits=True, name=name)
    return CalibratedLogLoss(from_logits=True, name=name, **arguments)


def title(ledger: Ledger) -> str:
    """What the runs of a ledger were trained on."""
    setting = _setting(ledger)
    return f"Clicks, {setting['data']}, {split_of(setting)}"


def split_of(setting: Mapping[str, Any]) -> str:
    """How the rows of a ledger were split, in words."""
    mixing = setting["mixing"]
    return {0: "in their own order", 1: "shuffled"}.get(mixing, f"mixed by {mixing:g}")


def rows_of(ledger: Ledger) -> list[PairRow]:
    """The rows of all pairs in a ledger of this study; see `pair_rows`."""
    return pair_rows(ledger, list(published_of(ledger)), plain=PLAIN, calibrated=CALIBRATED)


def published_of(ledger: Ledger) -> dict[Pair, str]:
    """All pairs of the study with the sizes of a ledger, and what the papers report on them."""
    setting = _setting(ledger)
    return make_study(base_of(setting), setting["l2_scale"]).published


def _setting(ledger: Ledger) -> dict[str, Any]:
    """What all runs of a ledger have in common."""
    runs = ledger.runs(status="finished")
    if not runs:
        raise ValueError(f"The ledger {ledger.path} has no finished runs. Run clicks.py first.")
    return dict(runs[0]["configuration"]["setting"])


def base_of(setting: Mapping[str, Any]) -> Pipeline:
    """The base pipeline that a ledger's runs have in their records."""
    return Pipeline(**{**setting["base"], "hidden_units": tuple(setting["base"]["hidden_units"])})


def markdown(ledger: Ledger) -> str:
    """The section of a ledger's runs for a page of results."""
    rows = rows_of(ledger)
    if not rows:
        raise ValueError(f"No pair in {ledger.path} has two common seeds. Train more seeds.")
    setting = _setting(ledger)
    base = base_of(setting)
    counts = {row.num_seeds for row in rows}
    seeds = f"{min(counts)} to {max(counts)}" if len(counts) > 1 else f"{min(counts)}"
    text = (
        f"`{setting['data']}`, {split_of(setting)}; {setting['num_train']:,} rows to train on for "
        f"one epoch, {setting['num_held_out']:,} held out. Embeddings of {base.embedding_dim}, "
        f"hidden layers of {base.hidden_units}, batches of {base.batch_size}; {len(rows)} pairs, "
        f"{seeds} seeds. Pairs that count:"
    )
    return section(text, rows, published_of(ledger))


if __name__ == "__main__":
    main()
