"""How often do single runs detect the better of two pipelines, and by which metric?

    ./dev run python examples/calibrated_metric/study.py            in full
    ./dev run python examples/calibrated_metric/study.py --quick    a few minutes, wide intervals

Similar pipelines (they differ in embedding size, hidden units, dropout, learning rate, or lack a
column) are trained for one epoch with many seeds on a real table, and every run is recorded in a
ledger. The better of two pipelines is the one with the lower mean log loss over all its seeds. The
accuracy of a metric is how often it agrees, given one run of each pipeline (arXiv 2401.16692, eq.
8).

A seed determines the order of the rows, the same for all pipelines, and the initialisation: also
the same for all, as far as the shapes of their weights agree, or with `--shared order` a different
one for each pipeline. Runs of different seeds share nothing.

The data are read from $KERAS_CALIBRATION_DATA, or else from ../shared/data.
"""

import argparse
import dataclasses
import itertools
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import keras
import numpy as np
from numpy.typing import NDArray

from keras_calibration.callbacks import SeedVariance
from keras_calibration.metrics import CalibratedLogLoss, LogLoss
from keras_calibration.seeds import Ledger, set_seeds
from keras_calibration.statistics import (
    independent_seed_accuracy,
    mean_difference,
    same_seed_accuracy,
)

ROOT = Path(__file__).parents[2]
sys.path += [str(ROOT / "examples"), str(Path(__file__).parent)]
from id_table import Rows, read_rows  # noqa: E402
from seed_bootstrap import accuracies, bootstrap_draws, pairwise_wins  # noqa: E402
from start_anew import set_dropout_seed, start_anew  # noqa: E402

# The pairs used: the better pipeline is known, and not so clear that every metric detects it.
MAX_P_VALUE, MAX_ACCURACY = 0.01, 0.985
PAPERS = "val_papers_calibrated_log_loss"
METRICS = {
    "log loss": "val_log_loss",
    "papers' calibrated log loss": PAPERS,
    "ours, cross-fitted": "val_calibrated_log_loss",
}


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """A model and how it is trained.

    Args:
        embedding_dim: Embedding size of every column.
        hidden_units: Units of the layers after the embeddings.
        dropout: Dropout rate after each hidden layer.
        learning_rate: Learning rate of Adam.
        batch_size: Rows of a batch.
        without: Column that the model does not use.
    """

    embedding_dim: int = 8
    hidden_units: tuple[int, ...] = (64, 32)
    dropout: float = 0.0
    learning_rate: float = 2e-3
    batch_size: int = 512
    without: str | None = None


# The rows of a worker process.
WORKER_ROWS: list[Rows] = []


def main() -> None:
    """Trains the runs that are missing in the ledger, then prints the report."""
    arguments = parse_arguments()
    rows = read_rows(arguments.data, arguments.held_out)
    pipelines = choose_pipelines(rows, arguments)
    num_seeds = arguments.seeds or (6 if arguments.quick else 30)
    seeds = range(arguments.first_seed, arguments.first_seed + num_seeds)
    ledger = Ledger(arguments.output / arguments.data.name / f"runs_shared_{arguments.shared}")
    print(
        f"{arguments.data.name}: {len(rows.train):,} rows to train on, {len(rows.held_out):,} held "
        f"out, {rows.train_labels.mean():.1%} positive; {len(pipelines)} pipelines × {num_seeds} "
        "seeds"
    )
    started = time.monotonic()
    num_trained = train_all(arguments, ledger, pipelines, seeds)
    print(f"Trained {num_trained} runs in {time.monotonic() - started:.0f} s; {ledger.path}")
    report(gather(ledger, list(pipelines), seeds), arguments.shared)


def parse_arguments() -> argparse.Namespace:
    """The command-line arguments."""
    data = Path(os.environ.get("KERAS_CALIBRATION_DATA", ROOT.parent / "shared" / "data"))
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, default=data / "nycflights13_337k", help="folder")
    parser.add_argument("--quick", action="store_true", help="4 pipelines, 6 seeds")
    parser.add_argument("--pipelines", nargs="+", help="some of them (default: all 8)")
    parser.add_argument("--seeds", type=int, help="of each pipeline (default: 30)")
    parser.add_argument("--first-seed", type=int, default=0, help="the next are those after it")
    parser.add_argument("--held-out", type=int, default=60_000, help="rows (default: %(default)s)")
    parser.add_argument(
        "--shared",
        choices=("seed", "order"),
        default="seed",
        help="what runs of one seed have in common (default: %(default)s)",
    )
    parser.add_argument("--workers", type=int, default=2, help="processes (default: 2)")
    parser.add_argument("--output", type=Path, default=Path("output"), help="folder for the ledger")
    return parser.parse_args()


def choose_pipelines(rows: Rows, arguments: argparse.Namespace) -> dict[str, Pipeline]:
    """The variants, by name."""
    # The column with the fewest ids is the least informative.
    smallest = rows.columns[int(np.argmin(rows.num_ids))]
    pipelines = {
        "base": Pipeline(),
        "embedding_4": Pipeline(embedding_dim=4),
        "dropout": Pipeline(dropout=0.1),
        "step_0.003": Pipeline(learning_rate=3e-3),
        "embedding_16": Pipeline(embedding_dim=16),
        "wide": Pipeline(hidden_units=(96, 48)),
        "one_layer": Pipeline(hidden_units=(64,)),
        f"without_{smallest}": Pipeline(without=smallest),
    }
    names = arguments.pipelines or list(pipelines)[: 4 if arguments.quick else None]
    if unknown := set(names) - set(pipelines):
        raise SystemExit(f"No pipelines {sorted(unknown)}: expected some of {list(pipelines)}.")
    return {name: pipelines[name] for name in names}


def build_model(pipeline: Pipeline, rows: Rows) -> keras.Model:
    """One embedding table for all columns, and a perceptron that returns logits."""
    kept = [c for c, name in enumerate(rows.columns) if name != pipeline.without]
    offsets = np.cumsum([0, *rows.num_ids])
    inputs = keras.Input((len(rows.columns),), dtype="int32")
    ids = keras.ops.take(inputs, kept, axis=1) + offsets[kept].astype("int32")
    hidden = keras.layers.Embedding(int(offsets[-1]), pipeline.embedding_dim)(ids)
    hidden = keras.layers.Flatten()(hidden)
    for units in pipeline.hidden_units:
        hidden = keras.layers.Dense(units, activation="relu")(hidden)
        if pipeline.dropout:
            hidden = keras.layers.Dropout(pipeline.dropout)(hidden)
    return keras.Model(inputs, keras.layers.Dense(1)(hidden))


def train_all(
    arguments: argparse.Namespace,
    ledger: Ledger,
    pipelines: dict[str, Pipeline],
    seeds: Sequence[int],
) -> int:
    """Trains the missing runs, several at a time, with one progress bar."""
    done = {(run["pipeline"], run["seed"]) for run in ledger.runs(status="finished")}
    tasks = []
    for name, pipeline in pipelines.items():
        lacking = [seed for seed in seeds if (name, seed) not in done]
        # The seeds of a task share one compiled model.
        tasks += [
            (name, pipeline, lacking[first : first + 5]) for first in range(0, len(lacking), 5)
        ]
    num_runs = sum(len(seeds) for *_, seeds in tasks)
    if not num_runs:
        return 0
    bar = keras.utils.Progbar(num_runs, unit_name="run")
    with ProcessPoolExecutor(
        arguments.workers,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=start_worker,
        initargs=(arguments.data, arguments.held_out),
    ) as pool:
        futures = [pool.submit(train_seeds, ledger.path, arguments.shared, *task) for task in tasks]
        for future in as_completed(futures):
            bar.add(future.result())
    return num_runs


def start_worker(folder: Path, num_held_out: int) -> None:
    """Reads the rows, once for each process."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    WORKER_ROWS.append(read_rows(folder, num_held_out))


def train_seeds(
    ledger: Path, shared: str, name: str, pipeline: Pipeline, seeds: Sequence[int]
) -> int:
    """Trains one pipeline with several seeds, each from its own initial weights."""
    (rows,) = WORKER_ROWS
    model = build_model(pipeline, rows)
    model.compile(
        optimizer=keras.optimizers.Adam(pipeline.learning_rate),
        loss=keras.losses.BinaryCrossentropy(from_logits=True),
        metrics=[
            LogLoss(from_logits=True),
            CalibratedLogLoss(from_logits=True),
            CalibratedLogLoss(
                bias_fraction=0.1, from_logits=True, name=PAPERS.removeprefix("val_")
            ),
        ],
    )
    # If only the order is shared, each pipeline has its own initialisations.
    first = sum(name.encode()) * 1000 if shared == "order" else 0
    for seed in seeds:
        roles = set_seeds(initialization=first + seed, order=seed)
        start_anew(model)
        if pipeline.dropout:
            roles |= set_dropout_seed(model, first + seed)
        order = np.random.default_rng(seed).permutation(len(rows.train))
        record = SeedVariance(
            ledger,
            pipeline=name,
            seed=seed,
            configuration=dataclasses.asdict(pipeline),
            seeds=roles,
            num_rows=len(rows.held_out),
            verbose=0,
        )
        model.fit(
            rows.train[order],
            rows.train_labels[order],
            batch_size=pipeline.batch_size,
            shuffle=False,
            validation_data=(rows.held_out, rows.held_out_labels),
            validation_batch_size=8192,
            verbose=0,
            callbacks=[record],
        )
    return len(seeds)


def gather(
    ledger: Ledger, pipelines: Sequence[str], seeds: Sequence[int]
) -> dict[str, dict[str, NDArray[np.float64]]]:
    """The metrics of each pipeline, in the order of the seeds."""
    runs = {(run["pipeline"], run["seed"]): run["metrics"] for run in ledger.runs()}
    return {
        pipeline: {
            metric: np.array([runs[pipeline, seed][metric][-1] for seed in seeds])
            for metric in METRICS.values()
        }
        for pipeline in pipelines
    }


def report(values: dict[str, dict[str, NDArray[np.float64]]], shared: str) -> None:
    """Prints the pipelines, the pairs whose better pipeline is known, and the detection rates."""
    print(f"\n{'':<20}{'log loss':>20}{'calibrated':>20}")
    shown = ("val_log_loss", "val_calibrated_log_loss")
    for name, metrics in values.items():
        cells = (f"{metrics[k].mean():.5f} ± {metrics[k].std(ddof=1):.5f}" for k in shown)
        print(f"{name:<20}" + "".join(f"{cell:>20}" for cell in cells))
    pairs = known_pairs(values)
    if not pairs:
        print("\nFor no pair is the better pipeline known: train more seeds.")
        return
    print_pairs(values, pairs, shared)
    print_accuracies(values, pairs, shared)


def known_pairs(values: dict[str, dict[str, NDArray[np.float64]]]) -> list[tuple[str, str]]:
    """The pairs (better, worse) whose better pipeline is known and not trivial to detect."""
    pairs = []
    for a, b in itertools.combinations(values, 2):
        losses_a, losses_b = (values[name]["val_log_loss"] for name in (a, b))
        difference = mean_difference(losses_a, losses_b, paired=True)
        better, worse = (a, b) if difference.value > 0 else (b, a)
        found = independent_seed_accuracy(
            values[better]["val_log_loss"], values[worse]["val_log_loss"]
        )
        known = difference.p_value is not None and difference.p_value < MAX_P_VALUE
        if known and found.value < MAX_ACCURACY:
            pairs.append((better, worse))
    return pairs


def print_pairs(
    values: dict[str, dict[str, NDArray[np.float64]]],
    pairs: Sequence[tuple[str, str]],
    shared: str,
) -> None:
    """Prints each pair with its detection rates; Newcombe's intervals, mid-p for shared seeds."""
    shown = {
        "log loss": ("val_log_loss", independent_seed_accuracy),
        "papers'": (PAPERS, independent_seed_accuracy),
        "ours": ("val_calibrated_log_loss", independent_seed_accuracy),
        f"ours, same {shared}": ("val_calibrated_log_loss", same_seed_accuracy),
    }
    print(f"\n{'better, worse':<30}" + "".join(f"{name:>20}" for name in shown))
    for better, worse in pairs:
        cells = ""
        for metric, accuracy in shown.values():
            found = accuracy(values[better][metric], values[worse][metric])
            cells += f"{f'{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]':>20}"
        print(f"{f'{better}, {worse}':<30}{cells}")


def print_accuracies(
    values: dict[str, dict[str, NDArray[np.float64]]],
    pairs: Sequence[tuple[str, str]],
    shared: str,
) -> None:
    """Prints the mean detection rates over the pairs, with a bootstrap over the seeds."""
    names = [(label, metric, same) for same in (False, True) for label, metric in METRICS.items()]
    wins = {metric: pair_wins(values, pairs, metric) for metric in METRICS.values()}
    num_seeds = len(next(iter(wins.values()))[0])
    draws = bootstrap_draws(num_seeds)
    papers = 100 * accuracies(wins[PAPERS], draws)
    print(f"\nMean over {len(pairs)} pairs, with 95 % intervals from a bootstrap over the seeds")
    print(f"{'single-run detection by':<32}{shared:<13}{'rate, %':>20}{'minus the papers’':>24}")
    for label, metric, same in names:
        shares = 100 * accuracies(wins[metric], draws, same)
        gains = shares - papers
        print(
            f"{label:<32}{'shared' if same else 'independent':<13}{spread(shares):>20}"
            f"{'' if metric == PAPERS and not same else spread(gains, '+'):>24}"
        )


def pair_wins(
    values: dict[str, dict[str, NDArray[np.float64]]], pairs: Sequence[tuple[str, str]], metric: str
) -> NDArray[np.float64]:
    """Mean over the pairs of their `pairwise_wins`, `(num_seeds, num_seeds)`."""
    pair_seeds = [
        pairwise_wins(values[better][metric], values[worse][metric]) for better, worse in pairs
    ]
    return np.mean(pair_seeds, axis=0)


def spread(values: NDArray[np.float64], sign: str = "") -> str:
    """The first value, and the 95 % interval of the others."""
    low, high = np.quantile(values[1:], [0.025, 0.975])
    return f"{values[0]:{sign}.1f} [{low:{sign}.1f}, {high:{sign}.1f}]"


if __name__ == "__main__":
    main()
