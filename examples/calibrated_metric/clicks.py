"""The papers' pairs of click pipelines, re-run on a table of real data.

    ./dev run python examples/calibrated_metric/clicks.py                     all pairs
    ./dev run python examples/calibrated_metric/clicks.py --kinds dropout l2  pairs of two kinds
    ./dev run python examples/calibrated_metric/clicks.py --mixing 0.5        half way to a shuffle

Fan et al. (*Calibration-then-Calculation*, arXiv 2401.16692, tables 1 to 6, and tables 14 to 19 of
its other version) train pairs of similar pipelines with many seeds on Avazu and Criteo, and ask how
often a single run of each shows the better one: by the log loss, and by the calibrated log loss.
Here the same variants are trained for one epoch on another table, with `seeds.train`. The sizes are
scaled down with the table. Every pipeline is trained with Adam, also DLRM. With the architectures,
a logistic regression is fitted too, for its AUC.

`--mixing` is a drift axis on one table: 1 shuffles the rows before the split, as in the papers, and
0 leaves them in their own order (of time, where the table has one), so that the held-out rows come
after the training rows and differ from them as the data drift.

The data are read from $KERAS_CALIBRATION_DATA, or else from ../shared/data.
"""

import argparse
import csv
import dataclasses
import itertools
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np

import keras_calibration as kc
from keras_calibration.metrics import CalibratedLogLoss, LogitAUC, LogLoss
from keras_calibration.seeds import Ledger

ROOT = Path(__file__).parents[2]
sys.path += [str(ROOT / "examples"), str(Path(__file__).parent)]
from block_losses import FILE as BLOCK_FILE  # noqa: E402
from block_losses import BlockLosses  # noqa: E402
from click_auc import REGRESSION, auc_table, regression_record  # noqa: E402
from click_models import ARCHITECTURES, ModelOptions  # noqa: E402
from id_table import Rows, read_rows  # noqa: E402
from pairs import (  # noqa: E402
    Pair,
    PairRow,
    markdown_accuracies,
    markdown_losses,
    pair_rows,
    print_table,
)

SECONDS = "seconds.csv"
DIFFERENCES = (
    "Unlike in the papers: thousands of rows in place of millions, and sizes to match (cross "
    "interactions of 16 and 16 in xDeepFM for 128 and 128, two experts of rank 8 in DCN-Mix for "
    "four of rank 32); FNN without pre-training; DLRM is trained with Adam, not with SGD, on "
    "numeric columns as quantiles; L2 weights are 200 times as large, since smaller ones change "
    "nothing (by ten seeds that are not used here); runs of the same seed are not compared, which "
    "leaves m (m − 1) of m² pairs of runs. The papers' metric has 10 % of the held-out rows for "
    "the bias, as there."
)
PLAIN = "val_log_loss"
PAPERS = "val_papers_calibrated_log_loss"
CALIBRATED = {"papers'": PAPERS, "ours": "val_calibrated_log_loss"}
# The arguments of the calibrated losses; the plain loss has none.
METRICS: dict[str, dict[str, Any] | None] = {
    PLAIN: None,
    PAPERS: {"bias_fraction": 0.1},
    CALIBRATED["ours"]: {},
}
L2_WEIGHTS = (3e-7, 5e-7, 7e-7, 1e-6, 2e-6)
# A penalty, however small, makes the gradients of the embeddings dense, and Adam then updates rows
# that are not in the batch too: the pipeline without a penalty has one that weighs nothing.
NO_L2 = 1e-12
# Accuracy by the log loss → by the calibrated log loss, in percent.
PUBLISHED_ARCHITECTURES = {
    ("dcn", "dcn_mix"): "64.4 → 71.5",
    ("deepfm", "dcn"): "77.2 → 83.9",
    ("deepfm", "fnn"): "76.9 → 79.9",
    ("fnn", "dcn_mix"): "61.5 → 72.0",
    ("deepfm", "dcn_mix"): "84.8 → 93.4",
}
PUBLISHED_L2 = ("63.2 → 69.3", "82.2 → 88.2", "86.6 → 92.4", "95.2 → 98.8", "98.8 → 100.0")


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """A click model and how it is trained.

    Args:
        architecture: One of `click_models.ARCHITECTURES`.
        embedding_dim: Embedding size of every column.
        hidden_units: Units of the layers of the perceptron.
        dropout: Dropout rate after each hidden layer.
        batch_normalization: Whether hidden layers are batch-normalised.
        l2: Weight of the sum of squares of embeddings and kernels.
        batch_size: Rows of a batch.
        learning_rate: Learning rate of Adam.
        without: Columns that the model does not get: `None`, `"dense"` or `"sparse"`.
    """

    architecture: str = "xdeepfm"
    embedding_dim: int = 8
    hidden_units: tuple[int, ...] = (64, 32)
    dropout: float = 0.0
    batch_normalization: bool = False
    l2: float = 0.0
    batch_size: int = 1024
    learning_rate: float = 1e-3
    without: str | None = None


class Study(NamedTuple):
    """The pipelines by name, and the pairs with what the papers report on them.

    Args:
        pipelines: Name → pipeline.
        published: Pair → published accuracies, an empty string for pairs that the papers lack.
    """

    pipelines: dict[str, Pipeline]
    published: dict[Pair, str]

    def with_kinds(self, kinds: Sequence[str] | None) -> "Study":
        """The pairs of some kinds, and their pipelines."""
        known = list(dict.fromkeys(pair.kind for pair in self.published))
        if unknown := set(kinds or ()) - set(known):
            raise SystemExit(f"No kinds of pairs {sorted(unknown)}: expected some of {known}.")
        published = {p: text for p, text in self.published.items() if p.kind in (kinds or known)}
        used = {name for pair in published for name in (pair.first, pair.second)}
        return Study({n: p for n, p in self.pipelines.items() if n in used}, published)


def make_study(base: Pipeline, l2_scale: float = 1.0) -> Study:
    """The variants of all tables of both versions of the paper.

    Args:
        base: The pipeline that xDeepFM variants differ from. Those of DLRM have half of its first
            hidden layer before a second one of the full size, as in the papers' 128-256-1.
        l2_scale: Factor of the papers' L2 weights.
    """
    replace = dataclasses.replace
    pipelines = {name: replace(base, architecture=name) for name in ARCHITECTURES}
    # The first pipeline of a pair that the papers have is the one that is better there.
    published = {
        Pair("architecture", *((b, a) if (b, a) in PUBLISHED_ARCHITECTURES else (a, b))): ""
        for a, b in itertools.combinations(ARCHITECTURES, 2)
    }
    published |= {Pair("architecture", *ab): text for ab, text in PUBLISHED_ARCHITECTURES.items()}

    def add(kind: str, name: str, text: str, **changes: Any) -> None:
        """Adds a pair of xDeepFM and a variant of it."""
        pipelines[name] = replace(pipelines["xdeepfm"], **changes)
        published[Pair(kind, "xdeepfm", name)] = text

    add("features", "without_dense", "81.8 → 88.8, 96.7 → 100.0", without="dense")
    add("features", "without_sparse", "78.6 → 85.9, 87.6 → 95.7", without="sparse")
    smaller = tuple(units // 2 for units in base.hidden_units)
    add("size", "smaller", "69.6 → 73.6, 80.1 → 86.1", hidden_units=smaller)
    pipelines["normalized"] = replace(pipelines["xdeepfm"], batch_normalization=True)
    published[Pair("batch_normalization", "normalized", "xdeepfm")] = "80.2 → 89.7"
    add("dropout", "dropout_0.7", "95.0 → 99.3", dropout=0.7)
    add("dropout", "dropout_0.1", "78.3 → illegible", dropout=0.1)
    pipelines["no_l2"] = replace(pipelines["xdeepfm"], l2=NO_L2)
    for weight, text in zip(L2_WEIGHTS, PUBLISHED_L2, strict=True):
        scaled = float(f"{weight * l2_scale:.3g}")
        pipelines[f"l2_{scaled:g}"] = replace(pipelines["xdeepfm"], l2=scaled)
        published[Pair("l2", "no_l2", f"l2_{scaled:g}")] = text
    return Study(pipelines, published | _dlrm_pairs(base, pipelines))


def _dlrm_pairs(base: Pipeline, pipelines: dict[str, Pipeline]) -> dict[Pair, str]:
    """Adds the variants of DLRM to `pipelines`, and returns their pairs."""
    width, size = base.hidden_units[0], base.embedding_dim
    dlrm = dataclasses.replace(base, architecture="dlrm", hidden_units=(width // 2, width))

    def add(name: str, **changes: Any) -> str:
        pipelines[name] = dataclasses.replace(dlrm, **changes)
        return name

    # 14, 16 and 18 in the paper.
    step = max(1, size // 8)
    sizes = (size - step, size, size + step)
    embeddings = [add(f"dlrm_embedding_{n}", embedding_dim=n) for n in sizes]
    published = {
        Pair("embedding", embeddings[0], embeddings[1]): "55.4 → 60.3",
        Pair("embedding", embeddings[0], embeddings[2]): "61.9 → 70.4",
        Pair("embedding", embeddings[1], embeddings[2]): "61.8 → 65.8",
    }
    # 128, 256 and 512 in the paper.
    small, *larger = (
        add(f"dlrm_batch_{n}", batch_size=n) for n in (base.batch_size // k for k in (8, 4, 2))
    )
    for batch, text in zip(larger, ("84.5 → 88.0", "89.0 → 95.5"), strict=True):
        published[Pair("batch", batch, small)] = text
    # 128, 256, 512 and 1024 in the paper, before a second layer of 256.
    narrow, *wider = (
        add(f"dlrm_{n}_{width}", hidden_units=(n, width))
        for n in (width * k // 2 for k in (1, 2, 4, 8))
    )
    for wide, text in zip(wider, ("57.4 → 60.2", "60.5 → 63.4", "58.6 → 61.4"), strict=True):
        published[Pair("width", narrow, wide)] = text
    return published


def main() -> None:
    """Trains the runs that are missing in the ledger, then prints the pairs."""
    arguments = parse_arguments()
    base = Pipeline(
        embedding_dim=arguments.embedding_dim,
        hidden_units=tuple(arguments.hidden_units),
        batch_size=arguments.batch_size,
    )
    rows = read_rows(arguments.data, arguments.held_out, mixing=arguments.mixing)
    if arguments.rows is not None:
        rows = rows._replace(
            train=rows.train[-arguments.rows :], train_labels=rows.train_labels[-arguments.rows :]
        )
    print(
        f"{arguments.data.name}: {len(rows.train):,} rows to train on, {len(rows.held_out):,} held "
        f"out, {rows.train_labels.mean():.1%} positive"
    )
    setting = {
        "data": arguments.data.name,
        "mixing": arguments.mixing,
        "num_train": len(rows.train),
        "num_held_out": len(rows.held_out),
        "base": as_json(base),
        "l2_scale": arguments.l2_scale,
    }
    study = make_study(base, arguments.l2_scale).with_kinds(arguments.kinds)
    name = f"{arguments.data.name}_mixing_{arguments.mixing:g}"
    ledger = Ledger(arguments.output / "clicks" / name)
    train_study(study, rows, ledger, range(arguments.seeds), setting)
    print_table(pair_rows(ledger, list(study.published), plain=PLAIN, calibrated=CALIBRATED))


def parse_arguments() -> argparse.Namespace:
    """The command-line arguments."""
    data = Path(os.environ.get("KERAS_CALIBRATION_DATA", ROOT.parent / "shared" / "data"))
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--data", type=Path, default=data / "nycflights13_337k", help="folder")
    add("--kinds", nargs="+", help="kinds of pairs (default: all)")
    add("--seeds", type=int, default=60, help="of each pipeline (default: %(default)s)")
    add("--rows", type=int, help="at most the last so many training rows (default: all)")
    add("--held-out", type=int, default=60_000, help="rows (default: %(default)s)")
    add("--mixing", type=float, default=1.0, help="1: shuffled before the split, 0: own order")
    add("--embedding-dim", type=int, default=8, help="(default: %(default)s)")
    add("--hidden-units", type=int, nargs="+", default=[64, 32], help="(default: 64 32)")
    add("--batch-size", type=int, default=1024, help="(default: %(default)s)")
    add("--l2-scale", type=float, default=200.0, help="of the L2 weights (default: %(default)s)")
    add("--output", type=Path, default=Path("output"), help="folder for the ledger")
    return parser.parse_args()


def train_study(
    study: Study, rows: Rows, ledger: Ledger, seeds: Sequence[int], setting: Mapping[str, Any]
) -> None:
    """Trains the missing runs, one pipeline after another.

    Args:
        study: The pipelines.
        rows: The rows.
        ledger: Where runs are recorded; the seconds of each training are in `seconds.csv` there.
        seeds: Seeds of every pipeline.
        setting: What all pipelines have in common, for their records.

    Raises:
        SystemExit: The ledger has runs of another setting.
    """
    if any(run["configuration"]["setting"] != setting for run in ledger.runs()):
        raise SystemExit(
            f"The runs in {ledger.path} are of other rows or sizes. Choose another --output."
        )
    if set(ARCHITECTURES) <= set(study.pipelines) and not ledger.runs(REGRESSION):
        print("A logistic regression, to compare the architectures with")
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
                partial(build_model, pipeline, rows),
                (rows.train[:, kept], rows.train_labels),
                ledger=ledger,
                pipeline=name,
                seeds=seeds,
                batch_size=pipeline.batch_size,
                validation_data=held_out,
                configuration={"setting": setting, **as_json(pipeline)},
                num_rows=len(rows.held_out),
                callbacks=partial(block_losses, ledger, name, held_out),
            )
        finally:  # also what an interrupted training has finished
            if num_new := len(ledger.runs(name, status="finished")) - num_ended:
                with (ledger.path / SECONDS).open("a") as file:
                    file.write(f"{name},{num_new},{time.monotonic() - started:.1f}\n")


def block_losses(ledger: Ledger, name: str, held_out: tuple[Any, Any], seed: int) -> list[Any]:
    """The callback of a run that records its losses by block of the held-out rows."""
    return [BlockLosses(ledger.path / BLOCK_FILE, name, seed, *held_out, METRICS)]


def as_json(pipeline: Pipeline) -> dict[str, Any]:
    """The fields of a pipeline as a ledger returns them, with lists in place of tuples."""
    return dict(json.loads(json.dumps(dataclasses.asdict(pipeline))))


def kept_columns(rows: Rows, without: str | None) -> list[int]:
    """Positions of the columns that a model gets.

    Args:
        rows: The rows.
        without: `"dense"` for no columns of the first half of the numeric ones, `"sparse"` for
            none of the categorical column with the fewest ids; `None` for all columns.
    """
    num_categorical = len(rows.columns) - rows.num_numeric
    removed: set[int] = set()
    if without == "dense":
        removed = set(range(num_categorical, num_categorical + (rows.num_numeric + 1) // 2))
    elif without == "sparse":
        removed = {int(np.argmin(rows.num_ids[:num_categorical]))}
    return [column for column in range(len(rows.columns)) if column not in removed]


def build_model(pipeline: Pipeline, rows: Rows) -> keras.Model:
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
            *(click_metric(name, arguments) for name, arguments in METRICS.items()),
            LogitAUC(from_logits=True, name="auc"),
        ],
        jit_compile=True,
    )
    return model


def click_metric(name: str, arguments: dict[str, Any] | None) -> keras.metrics.Metric:
    """The metric of a name in `METRICS`."""
    name = name.removeprefix("val_")
    if arguments is None:
        return LogLoss(from_logits=True, name=name)
    return CalibratedLogLoss(from_logits=True, name=name, **arguments)


def title(ledger: Ledger) -> str:
    """What the runs of a ledger were trained on."""
    setting = ledger.runs(status="finished")[0]["configuration"]["setting"]
    return f"Clicks, {setting['data']}, {split_of(setting)}"


def is_split_as_published(ledger: Ledger) -> bool:
    """Whether the rows were shuffled before the split, as in the papers."""
    setting = ledger.runs(status="finished")[0]["configuration"]["setting"]
    return bool(setting["mixing"] == 1)


def split_of(setting: Mapping[str, Any]) -> str:
    """How the rows of a ledger were split, in words."""
    mixing = setting["mixing"]
    return {0: "in their own order", 1: "shuffled"}.get(mixing, f"mixed by {mixing:g}")


def rows_of(ledger: Ledger, decided_by: str = "plain") -> list[PairRow]:
    """The rows of all pairs in a ledger of this study; see `pair_rows`."""
    pairs = list(published_of(ledger))
    return pair_rows(ledger, pairs, plain=PLAIN, calibrated=CALIBRATED, decided_by=decided_by)


def published_of(ledger: Ledger) -> dict[Pair, str]:
    """All pairs of the study with the sizes of a ledger, and what the papers report on them."""
    runs = ledger.runs(status="finished")
    if not runs:
        raise ValueError(f"The ledger {ledger.path} has no finished runs. Run clicks.py first.")
    setting = runs[0]["configuration"]["setting"]
    return make_study(base_of(setting), setting["l2_scale"]).published


def base_of(setting: Mapping[str, Any]) -> Pipeline:
    """The base pipeline that a ledger's runs have in their records."""
    return Pipeline(**{**setting["base"], "hidden_units": tuple(setting["base"]["hidden_units"])})


def markdown(ledger: Ledger) -> str:
    """The section of a ledger's runs for a page of results.

    Args:
        ledger: The runs of this study, of any kinds of pairs.

    Returns:
        Markdown: the rows and sizes, the accuracies beside the published ones, and the mean and
        standard deviation of each loss.

    Raises:
        ValueError: No pair has two common finished seeds.
    """
    rows = rows_of(ledger)
    if not rows:
        raise ValueError(f"No pair in {ledger.path} has two common seeds. Train more seeds.")
    setting = ledger.runs(status="finished")[0]["configuration"]["setting"]
    base = base_of(setting)
    counts = {row.num_seeds for row in rows}
    seeds = f"{min(counts)} to {max(counts)}" if len(counts) > 1 else f"{min(counts)}"
    return "\n\n".join(
        [
            f"`{setting['data']}`, {split_of(setting)}; {setting['num_train']:,} rows to "
            f"train on for one epoch, {setting['num_held_out']:,} held out. Embeddings of "
            f"{base.embedding_dim}, hidden layers of {base.hidden_units}, batches of "
            f"{base.batch_size}; {len(rows)} pairs, {seeds} seeds. {_seconds(ledger)}",
            DIFFERENCES,
            markdown_accuracies(rows, published_of(ledger)),
            markdown_losses(rows),
            auc_table(ledger, list(ARCHITECTURES)),
        ]
    ).strip()


def _seconds(ledger: Ledger) -> str:
    """A sentence on how long the runs took."""
    with (ledger.path / SECONDS).open() as file:
        entries = [(int(count), float(seconds)) for _, count, seconds in csv.reader(file)]
    num_runs, total = (sum(column) for column in zip(*entries, strict=True))
    return f"{num_runs} runs took {total:.0f} s, {total / num_runs:.1f} s each."


if __name__ == "__main__":
    main()
