"""Pairs of pipelines in a ledger: which is better, and how often does a single run show it?

`pair_rows` computes a row for each pair, as in the tables of Fan et al., *Calibration-then-
Calculation* (arXiv 2401.16692); `markdown_accuracies`, `markdown_losses` and `print_table` show
them.
"""

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from keras_calibration.seeds import Ledger
from keras_calibration.statistics import Estimate, independent_seed_accuracy, mean_difference

sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parent)]
from seed_bootstrap import accuracies, bootstrap_draws, pairwise_wins

from markdown_table import markdown_table

PLAIN = "plain"
# With fewer seeds, a bootstrap has too few different samples for an interval.
MIN_BOOTSTRAP = 5


class Pair(NamedTuple):
    """Two pipelines of one table.

    Args:
        kind: Name of the table, for example "dropout".
        first: Name of a pipeline in the ledger.
        second: Name of the other pipeline.
    """

    kind: str
    first: str
    second: str


class MetricOfPair(NamedTuple):
    """A metric of both pipelines, over the common seeds.

    Args:
        better_mean: Mean of the better pipeline.
        better_std: Sample standard deviation of the better pipeline.
        worse_mean: Mean of the worse pipeline.
        worse_std: Sample standard deviation of the worse pipeline.
        accuracy: How often the metric is lower for the better pipeline, one run of each.
        gain: `accuracy` minus that of the plain loss; 0 for the plain loss itself.
    """

    better_mean: float
    better_std: float
    worse_mean: float
    worse_std: float
    accuracy: Estimate
    gain: Estimate


@dataclasses.dataclass(frozen=True)
class PairRow:
    """What the runs of two pipelines show.

    Args:
        pair: The pair.
        num_seeds: Number of seeds that both pipelines have finished.
        better: The pipeline with the lower mean plain loss.
        worse: The other one.
        difference: Mean plain loss of `worse` minus that of `better`, with a p-value.
        metrics: `"plain"` and each name of a calibrated loss → the metric of both pipelines.
    """

    pair: Pair
    num_seeds: int
    better: str
    worse: str
    difference: Estimate
    metrics: Mapping[str, MetricOfPair]


def pair_rows(
    ledger: Ledger, pairs: Sequence[Pair], *, plain: str, calibrated: Mapping[str, str]
) -> list[PairRow]:
    """Which pipeline of each pair is better, and how accurate each metric is.

    The better pipeline has the lower mean plain loss. The accuracy of a metric is how often it
    agrees, given one run of each pipeline (eq. 8). Runs of the same seed share the order of their
    rows, so they are not compared: that leaves m (m − 1) of the m² pairs of runs.

    Args:
        ledger: The runs.
        pairs: The pairs; those with fewer than two common finished seeds are left out.
        plain: Name of the plain loss in the ledger, for example `"val_log_loss"`.
        calibrated: Name to show → name in the ledger, for each calibrated loss.

    Returns:
        A row for each pair, in the given order. The intervals of the gains are from a bootstrap
        over the seeds, and [−1, 1] with fewer than five of them.

    Raises:
        ValueError: A run lacks one of the metrics, or a name to show is "plain".
    """
    if PLAIN in calibrated:
        raise ValueError(
            f"Argument `calibrated` must not contain {PLAIN!r}. Received: "
            f"calibrated={dict(calibrated)}. Choose another name for this loss."
        )
    names = {PLAIN: plain, **calibrated}
    values = _values_by_seed(ledger, {name for pair in pairs for name in pair[1:]}, names)
    rows = []
    for pair in pairs:
        first, second = values.get(pair.first, {}), values.get(pair.second, {})
        common = sorted(first.keys() & second.keys())
        if len(common) >= 2:
            first_runs = np.array([first[seed] for seed in common])
            second_runs = np.array([second[seed] for seed in common])
            rows.append(_pair_row(pair, first_runs, second_runs, list(names)))
    return rows


def markdown_accuracies(
    rows: Sequence[PairRow], published: Mapping[Pair, str] | None = None
) -> str:
    """The accuracies of all metrics as a Markdown table, in percent.

    Args:
        rows: Result of `pair_rows`, at least one.
        published: Pair → text for a last column, for example the accuracies in a paper.
    """
    header, lines = _accuracy_cells(rows)
    if published is not None:
        header.append("published")
        for line, row in zip(lines, rows, strict=True):
            line.append(published.get(row.pair, ""))
    return markdown_table(header, lines)


def markdown_losses(rows: Sequence[PairRow]) -> str:
    """Mean and standard deviation over the seeds as a Markdown table, a line for each pipeline.

    A pipeline that is in several pairs of a kind has one line. The standard deviation of each
    calibrated loss is divided by that of the plain loss in the columns "std ratio".

    Args:
        rows: Result of `pair_rows`, at least one.
    """
    names = list(rows[0].metrics)
    header = ["kind", "pipeline", *(f"{name}: mean ± std" for name in names)]
    header += [f"{name}: std ratio" for name in names[1:]]
    lines: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for is_better, pipeline in ((True, row.better), (False, row.worse)):
            figures = [
                (metric.better_mean, metric.better_std)
                if is_better
                else (metric.worse_mean, metric.worse_std)
                for metric in (row.metrics[name] for name in names)
            ]
            plain_std = figures[0][1]
            cells = [f"{mean:.5g} ± {std:.2g}" for mean, std in figures]
            cells += [f"{std / plain_std:.2f}" if plain_std else "–" for _, std in figures[1:]]
            lines.setdefault((row.pair.kind, pipeline), [row.pair.kind, pipeline, *cells])
    return markdown_table(header, list(lines.values()))


def print_table(rows: Sequence[PairRow]) -> None:
    """Prints the accuracies of all metrics in aligned columns."""
    if not rows:
        print("No pair has two common finished seeds: train more seeds.")
        return
    header, lines = _accuracy_cells(rows)
    widths = [max(map(len, column)) for column in zip(header, *lines, strict=True)]
    for line in (header, *lines):
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print("  ".join(cells).rstrip())


def _values_by_seed(
    ledger: Ledger, pipelines: set[str], names: Mapping[str, str]
) -> dict[str, dict[int, list[float]]]:
    """Pipeline → seed → the metrics of its latest finished run, at the epoch that it kept."""
    values: dict[str, dict[int, list[float]]] = {}
    for run in ledger.runs(status="finished"):
        if run["pipeline"] not in pipelines:
            continue
        if missing := set(names.values()) - set(run["metrics"]):
            raise ValueError(
                f"The runs of {run['pipeline']!r} must have the metrics {sorted(names.values())}. "
                f"Received: a run without {sorted(missing)}, with {sorted(run['metrics'])}."
            )
        kept = run["kept_epoch"]
        position = -1 if kept is None else run["epochs"].index(kept)
        values.setdefault(run["pipeline"], {})[run["seed"]] = [
            run["metrics"][name][position] for name in names.values()
        ]
    return values


def _pair_row(
    pair: Pair, first: NDArray[np.float64], second: NDArray[np.float64], names: Sequence[str]
) -> PairRow:
    """The row of a pair, given values `(num_seeds, num_metrics)` with the plain loss first."""
    pipelines = [(pair.first, first), (pair.second, second)]
    (better, low), (worse, high) = sorted(pipelines, key=lambda entry: entry[1][:, 0].mean())
    draws = bootstrap_draws(len(low))
    shares = [accuracies(pairwise_wins(low[:, k], high[:, k]), draws) for k in range(len(names))]
    return PairRow(
        pair=pair,
        num_seeds=len(low),
        better=better,
        worse=worse,
        difference=mean_difference(low[:, 0], high[:, 0], paired=True),
        metrics={
            name: MetricOfPair(
                better_mean=float(low[:, k].mean()),
                better_std=float(low[:, k].std(ddof=1)),
                worse_mean=float(high[:, k].mean()),
                worse_std=float(high[:, k].std(ddof=1)),
                accuracy=independent_seed_accuracy(low[:, k], high[:, k]),
                gain=_gain(shares[k] - shares[0], len(low)),
            )
            for k, name in enumerate(names)
        },
    )


def _gain(differences: NDArray[np.float64], num_seeds: int) -> Estimate:
    """The first difference, and the 95 % interval of the others."""
    low, high = (-1.0, 1.0)
    if num_seeds >= MIN_BOOTSTRAP:
        low, high = np.quantile(differences[1:], [0.025, 0.975])
    return Estimate(float(differences[0]), float(low), float(high))


def _accuracy_cells(rows: Sequence[PairRow]) -> tuple[list[str], list[list[str]]]:
    """Header and lines of the table of accuracies."""
    names = list(rows[0].metrics)
    header = ["kind", "better", "worse", "seeds", "p", *(f"{name}, %" for name in names)]
    header += [f"{name} minus plain" for name in names[1:]]
    lines = []
    for row in rows:
        p_value = row.difference.p_value
        lines.append([row.pair.kind, row.better, row.worse, str(row.num_seeds)])
        lines[-1].append("–" if p_value is None else f"{p_value:.1g}")
        lines[-1] += [_percent(row.metrics[name].accuracy) for name in names]
        lines[-1] += [_percent(row.metrics[name].gain, "+") for name in names[1:]]
    return header, lines


def _percent(estimate: Estimate, sign: str = "") -> str:
    value, low, high = (100 * figure for figure in estimate[:3])
    return f"{value:{sign}.1f} [{low:{sign}.1f}, {high:{sign}.1f}]"
