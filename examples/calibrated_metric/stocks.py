"""How often do single runs of an LSTM on stock prices show the better of two pipelines?

    ./dev run python examples/calibrated_metric/stocks.py                          in full
    ./dev run python examples/calibrated_metric/stocks.py --seeds 3 --stocks 20    a few minutes

Section 5.5 and appendix B.5 of Fan et al., *Towards Accurate Deep Learning Model Selection: a
Calibrated Metric Approach* (a version of arXiv 2401.16692): pipelines that differ in L2 penalty,
hidden size, number of layers, batch size or number of epochs, compared by the quadratic loss and
the calibrated one. An LSTM is trained on the first months, predicts the next ones, and is trained
further on them every `--retrain-every` months. The mean residual of a month's predictions corrects
the predictions of the following month.

The paper predicts 10-minute returns of 25 US stocks from minute bars. These are daily bars, whose
returns nobody can predict, so the default target is the volatility of the next day: the logarithm
of its range, log(log(high / low)). `--target volume` is its log volume, `--target return` its log
return. Inputs and targets are standardised for each stock by the bars before the first test month,
so a loss of 1 is about that of a constant prediction.

The paper's sizes (minute bars apart): `--window 60 --hidden-size 64 --num-layers 2 --batch-size
2000 --epochs 5 --test-months 25 --retrain-every 6 --seeds 10`.

The data are read from $KERAS_CALIBRATION_DATA, or else from ../shared/data.
"""

import argparse
import dataclasses
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from keras_calibration.metrics import CalibratedQuadraticLoss
from keras_calibration.seeds import Ledger, set_seeds

ROOT = Path(__file__).parents[2]
sys.path.append(str(Path(__file__).parent))
from configurations import markdown_configurations  # noqa: E402
from lstm import lstm  # noqa: E402
from pairs import (  # noqa: E402
    Pair,
    PairRow,
    markdown_accuracies,
    markdown_losses,
    pair_rows,
    print_table,
)
from start_anew import start_anew  # noqa: E402
from stock_windows import (  # noqa: E402
    COLUMNS,
    TARGETS,
    Examples,
    make_examples,
    read_bars,
    training_rounds,
)

PLAIN = "quadratic_loss"
CALIBRATED = {
    "rolling calibrated": "calibrated_quadratic_loss",
    "cross-fitted": "cross_fitted_quadratic_loss",
}
# Each pair of the paper that has the same sizes or ratio, with its two accuracies.
PUBLISHED = {
    Pair("L2 penalty", "base", "l2"): "QL 58 to 92, CQL 76 to 96 (five weights)",
    Pair("hidden size", "base", "half_hidden"): "QL 69, CQL 76 (64, 32)",
    Pair("hidden size", "base", "double_hidden"): "QL 91, CQL 94 (64, 128)",
    Pair("layers", "base", "one_more_layer"): "QL 93, CQL 99 (2, 3)",
    Pair("batch size", "base", "double_batch"): "QL 60, CQL 77 (1000, 2000)",
    Pair("epochs", "base", "one_more_epoch"): "QL 70, CQL 75 (4, 5)",
}
PAIRS = tuple(PUBLISHED)


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """An LSTM and how it is trained.

    Args:
        hidden_size: Units of each LSTM layer.
        num_layers: Number of LSTM layers.
        l2: Weight of the L2 penalty.
        batch_size: Rows of a batch.
        epochs: Epochs of the first training and of each later one.
        learning_rate: Learning rate of Adam.
    """

    hidden_size: int = 16
    num_layers: int = 1
    l2: float = 0.0
    batch_size: int = 512
    epochs: int = 1
    learning_rate: float = 5e-3


def main() -> None:
    """Trains the runs that are missing in the ledger, then prints the tables."""
    arguments = parse_arguments()
    base = Pipeline(
        hidden_size=arguments.hidden_size,
        num_layers=arguments.num_layers,
        batch_size=arguments.batch_size,
        epochs=arguments.epochs,
    )
    pipelines = choose_pipelines(base, arguments)
    bars = read_bars(arguments.data, arguments.stocks)
    examples = make_examples(bars, arguments.target, arguments.window, arguments.test_months)
    num_test = int(np.count_nonzero(examples.months >= 0))
    print(
        f"{examples.num_stocks} stocks, {len(examples.targets) - num_test:,} windows to train "
        f"on, {num_test:,} to predict, {examples.test_months[0]} to {examples.test_months[-1]}; "
        f"{len(pipelines)} pipelines × {arguments.seeds} seeds"
    )
    ledger = Ledger(arguments.output / "stocks" / arguments.target)
    settings = {
        "target": arguments.target,
        "stocks": examples.num_stocks,
        "window": arguments.window,
        "test_months": arguments.test_months,
        "retrain_every": arguments.retrain_every,
    }
    train_all(ledger, pipelines, settings, range(arguments.seeds), examples)
    print_table(rows_of(ledger))
    print(f"Runs: {ledger.path}")


def parse_arguments() -> argparse.Namespace:
    """The command-line arguments."""
    data = Path(os.environ.get("KERAS_CALIBRATION_DATA", ROOT.parent / "shared" / "data"))
    base = Pipeline()
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--data", type=Path, default=data / "stocks_ohlcv_100", help="folder with data.csv.xz")
    add("--target", choices=TARGETS, default="range", help="of the next day (default: range)")
    add("--seeds", type=int, default=20, help="of each pipeline (default: %(default)s)")
    add("--pipelines", nargs="+", help="some of them (default: all)")
    add("--stocks", type=int, default=100, help="the first ones (default: %(default)s)")
    add("--window", type=int, default=10, help="days of a window (default: %(default)s)")
    add("--test-months", type=int, default=24, help="the last ones (default: %(default)s)")
    add("--retrain-every", type=int, default=6, help="months (default: %(default)s)")
    add("--hidden-size", type=int, default=base.hidden_size, help="default: %(default)s")
    add("--num-layers", type=int, default=base.num_layers, help="default: %(default)s")
    add("--batch-size", type=int, default=base.batch_size, help="default: %(default)s")
    add("--epochs", type=int, default=base.epochs, help="default: %(default)s")
    add("--output", type=Path, default=Path("output"), help="folder for the ledger")
    return parser.parse_args()


def choose_pipelines(base: Pipeline, arguments: argparse.Namespace) -> dict[str, Pipeline]:
    """The base and its variants, by name."""
    change = dataclasses.replace
    pipelines = {
        "base": base,
        "l2": change(base, l2=1e-3),
        "half_hidden": change(base, hidden_size=base.hidden_size // 2),
        "double_hidden": change(base, hidden_size=base.hidden_size * 2),
        "one_more_layer": change(base, num_layers=base.num_layers + 1),
        "double_batch": change(base, batch_size=base.batch_size * 2),
        "one_more_epoch": change(base, epochs=base.epochs + 1),
    }
    names = arguments.pipelines or list(pipelines)
    if unknown := set(names) - set(pipelines):
        raise SystemExit(f"No pipelines {sorted(unknown)}: expected some of {list(pipelines)}.")
    return {name: pipelines[name] for name in names}


def train_all(
    ledger: Ledger,
    pipelines: dict[str, Pipeline],
    settings: dict[str, Any],
    seeds: range,
    examples: Examples,
) -> None:
    """Trains the missing seeds of all pipelines, with one progress bar."""
    configurations = {
        name: {**dataclasses.asdict(pipeline), **settings} for name, pipeline in pipelines.items()
    }
    missing = {
        name: missing_seeds(ledger, name, configuration, seeds)
        for name, configuration in configurations.items()
    }
    num_runs = sum(map(len, missing.values()))
    print(f"{num_runs} runs to train.")
    bar = keras.utils.Progbar(num_runs, unit_name="run")
    for name, pipeline in pipelines.items():
        if not missing[name]:
            continue
        model = build_model(pipeline, examples)
        for seed in missing[name]:
            record = train_run(model, pipeline, examples, settings["retrain_every"], seed)
            ledger.append({"pipeline": name, "configuration": configurations[name], **record})
            bar.add(1)


def missing_seeds(
    ledger: Ledger, name: str, configuration: dict[str, Any], seeds: range
) -> list[int]:
    """The seeds of a pipeline that are not in the ledger."""
    runs = ledger.runs(name)
    if any(run["configuration"] != configuration for run in runs):
        raise SystemExit(
            f"{ledger.path} has runs of {name!r} with other settings. Pass another --output."
        )
    return sorted(set(seeds) - {run["seed"] for run in runs})


def build_model(pipeline: Pipeline, examples: Examples) -> keras.Model:
    """The compiled LSTM of a pipeline."""
    model = lstm(
        examples.window,
        len(COLUMNS),
        hidden_size=pipeline.hidden_size,
        num_layers=pipeline.num_layers,
        l2=pipeline.l2,
    )
    model.compile(keras.optimizers.Adam(pipeline.learning_rate), loss="mean_squared_error")
    return model


def train_run(
    model: keras.Model, pipeline: Pipeline, examples: Examples, retrain_every: int, seed: int
) -> dict[str, Any]:
    """Trains one seed over all rounds, from new initial weights, and returns its record."""
    started = time.monotonic()
    roles = set_seeds(initialization=seed, order=seed)
    start_anew(model)
    generator = np.random.default_rng(seed)
    predictions = np.full(len(examples.targets), np.nan, np.float32)
    for train, predicted in training_rounds(examples.months, retrain_every):
        for _ in range(pipeline.epochs):
            order = generator.permutation(train)
            model.fit(
                examples.windows(order),
                examples.targets[order],
                batch_size=pipeline.batch_size,
                shuffle=False,
                verbose=0,
            )
        windows = examples.windows(predicted)
        predictions[predicted] = model.predict(windows, batch_size=4096, verbose=0)[:, 0]
    test = examples.months >= 0
    losses = score(examples.targets[test], predictions[test], examples.months[test])
    is_finite = all(map(math.isfinite, losses.values()))
    losses["seconds"] = time.monotonic() - started
    return {
        "seed": seed,
        "seeds": roles,
        "status": "finished" if is_finite else "diverged",
        "num_rows": int(np.count_nonzero(test)),
        "epochs": [0],
        "metrics": {metric: [value] for metric, value in losses.items()},
    }


def score(
    targets: NDArray[np.float32], predictions: NDArray[np.float32], months: NDArray[np.int32]
) -> dict[str, float]:
    """The quadratic loss of all test months, and the calibrated ones.

    In the rolling one, the bias of each month corrects the next one that has rows; the first month
    is not scored. The cross-fitted one corrects each half of the rows by the bias of the other.
    """
    residuals = np.subtract(targets, predictions, dtype=np.float64)
    _, month = np.unique(months, return_inverse=True)
    biases = np.bincount(month, residuals) / np.bincount(month)
    scored = month > 0
    cross_fitted = CalibratedQuadraticLoss()
    cross_fitted.update_state(targets, predictions)
    return {
        "quadratic_loss": float(np.mean(residuals**2)),
        "calibrated_quadratic_loss": float(
            np.mean((residuals[scored] - biases[month[scored] - 1]) ** 2)
        ),
        "cross_fitted_quadratic_loss": float(cross_fitted.result()),
    }


def title(ledger: Ledger) -> str:
    """What the runs of a ledger predict."""
    return f"Stocks, {ledger.path.name} of the next day"


def rows_of(ledger: Ledger) -> list[PairRow]:
    """The rows of all pairs in a ledger of this study."""
    return pair_rows(ledger, PAIRS, plain=PLAIN, calibrated=CALIBRATED)


def markdown(ledger: Ledger) -> str:
    """The section of a ledger's runs for a page of results.

    Args:
        ledger: The runs of this study.

    Returns:
        Markdown: sizes, the accuracies beside the published ones, and the mean and standard
        deviation of each loss.

    Raises:
        ValueError: No pair has two common finished seeds, or the base has none.
    """
    rows = rows_of(ledger)
    if not rows:
        raise ValueError(f"No pair in {ledger.path} has two common seeds. Train more seeds.")
    runs = ledger.runs(status="finished")
    seconds = np.median([run["metrics"]["seconds"][0] for run in runs])
    return "\n\n".join(
        [
            f"{runs[0]['num_rows']:,} days of stocks to predict; a run takes {seconds:.1f} s "
            "(median).",
            markdown_configurations(ledger),
            markdown_accuracies(rows, PUBLISHED),
            markdown_losses(rows),
        ]
    )


if __name__ == "__main__":
    main()
