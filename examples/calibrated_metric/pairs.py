"""Pairs of pipelines in a ledger: which is better, and how often does a single run show it?

`pair_rows` computes a row for each pair, as in the tables of Fan et al., *Calibration-then-
Calculation* (arXiv 2401.16692); `markdown_accuracies` and `markdown_losses` show them.

A metric is judged on seeds that did not decide which pipeline is better: the runs of even seeds
decide for those of odd seeds, and the other way round. Otherwise the plain loss, whose mean
decides, would be judged by itself.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from block_losses import read_block_losses
from numpy.typing import NDArray

from keras_calibration.seeds import Ledger
from keras_calibration.statistics import (
    Estimate,
    bias_share,
    independent_seed_accuracy,
    mean_difference,
)
from markdown_table import markdown_table
from verdicts import Comparison, bootstrap_gain, interval_text

PLAIN = "plain"
# Half of the seeds decide a pair if the mean plain losses differ, and if single runs do not show
# this nearly always.
MAX_P_VALUE, MAX_ACCURACY = 0.05, 0.985
# Runs that a metric is judged on, of each pipeline.
MIN_JUDGED = 3

Array = NDArray[np.float64]


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


class Judged(NamedTuple):
    """Runs on which the metrics are judged.

    Args:
        better: Pipeline that is better by the mean plain loss of other seeds than these.
        worse: The other pipeline.
        seeds: Seeds of the runs.
    """

    better: str
    worse: str
    seeds: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class PairRow:
    """What the runs of two pipelines show.

    Args:
        pair: The pair.
        better: The pipeline with the lower mean plain loss over all seeds.
        worse: The other one.
        difference: Mean plain loss of `worse` minus that of `better`, with a p-value.
        accuracies: `"plain"` and each name of a calibrated loss → how often it is lower for the
            better pipeline, one run of each; NaN for a pair that does not count.
        judged: The runs on which the metrics are judged, for each half of the seeds that the other
            half decides; empty for a pair that does not count.
        runs: Pipeline → seed → its losses by block of held-out rows, shape `(metrics, blocks)`.
    """

    pair: Pair
    better: str
    worse: str
    difference: Estimate
    accuracies: Mapping[str, float]
    judged: tuple[Judged, ...]
    runs: Mapping[str, Mapping[int, Array]]

    @property
    def num_seeds(self) -> int:
        """Number of seeds that both pipelines have finished."""
        return len(self.runs[self.better])

    def losses(self, pipeline: str, metric: int = 0) -> Array:
        """A loss of all runs of a pipeline, in the order of their seeds."""
        return np.array([values[metric].mean() for values in self.runs[pipeline].values()])


def pair_rows(
    ledger: Ledger,
    pairs: Sequence[Pair],
    *,
    plain: str,
    calibrated: Mapping[str, str],
) -> list[PairRow]:
    """Which pipeline of each pair is better, and how accurate each metric is.

    The better pipeline has the lower mean plain loss, and is known if the means differ with p <
    0.05. (In the papers, it is the one with P(R(A) < R(B)) > ½, Definition 1;
    `primary_verdicts.py` decides so.) The accuracy of a metric is how often it agrees, given one
    run of each pipeline (eq. 8), on seeds that did not decide. Runs of the same seed share the
    order of their rows, so they are not compared: that leaves m (m − 1) of the m² pairs of runs. A
    half of the seeds decides if the better pipeline is known from it, and if in it the plain loss
    is less than 98.5 % accurate: otherwise there is nothing to gain. A pair counts if at least one
    half decides.

    Args:
        ledger: The runs, with the losses by block beside it (`block_losses`), or without them.
        pairs: The pairs; those with fewer than two common finished seeds are left out.
        plain: Name of the plain loss in the ledger, for example `"val_log_loss"`.
        calibrated: Name to show → name in the ledger, for each calibrated loss.

    Returns:
        A row for each pair, in the given order.

    Raises:
        ValueError: A run lacks one of the metrics, or a name to show is "plain".
    """
    if PLAIN in calibrated:
        raise ValueError(
            f"Argument `calibrated` must not contain {PLAIN!r}. Received: "
            f"calibrated={dict(calibrated)}. Choose another name for this loss."
        )
    names = {PLAIN: plain, **calibrated}
    values = values_by_seed(ledger, {name for pair in pairs for name in pair[1:]}, names)
    rows = []
    for pair in pairs:
        first, second = values.get(pair.first, {}), values.get(pair.second, {})
        common = sorted(first.keys() & second.keys())
        if len(common) >= 2:
            runs = {
                pair.first: {seed: first[seed] for seed in common},
                pair.second: {seed: second[seed] for seed in common},
            }
            rows.append(_pair_row(pair, runs, list(names)))
    return rows


def gain(rows: Sequence[PairRow], metric: str) -> Estimate | None:
    """How much more accurate a metric is than the plain loss, as a mean over pairs that count."""
    counted = [row for row in rows if row.judged]
    runs = {name: by_seed for row in counted for name, by_seed in row.runs.items()}
    if not counted:
        return None
    names = sorted(runs)
    seeds = sorted(set.intersection(*(set(by_seed) for by_seed in runs.values())))
    places = {seed: place for place, seed in enumerate(seeds)}
    comparisons = [
        Comparison(
            names.index(half.better),
            names.index(half.worse),
            [places[seed] for seed in half.seeds if seed in places],
            1 / len(row.judged),
        )
        for row in counted
        for half in row.judged
    ]
    number = list(counted[0].accuracies).index(metric)
    losses = np.array([[runs[name][seed] for seed in seeds] for name in names])
    return bootstrap_gain(losses[:, :, 0], losses[:, :, number], comparisons)


def section(text: str, rows: Sequence[PairRow], published: Mapping[Pair, str]) -> str:
    """A study on the page of tables: its text, the pairs that count, the losses of all."""
    counted = [row for row in rows if row.judged]
    return "\n\n".join([text, markdown_accuracies(counted, published), markdown_losses(rows)])


def markdown_accuracies(
    rows: Sequence[PairRow], published: Mapping[Pair, str] | None = None
) -> str:
    """The accuracies of all metrics as a Markdown table, in percent."""
    if not rows:
        return "No pair counts: train more seeds."
    names = list(rows[0].accuracies)
    header = ["kind", "better", "worse", "seeds", "p", *(f"{name}, %" for name in names)]
    header += [f"{name} minus plain" for name in names[1:]]
    lines = []
    for row in rows:
        p_value = row.difference.p_value
        lines.append([row.pair.kind, row.better, row.worse, str(row.num_seeds)])
        lines[-1].append("–" if p_value is None else f"{p_value:.1g}")
        shares = row.accuracies.values()
        lines[-1] += ["–" if math.isnan(share) else f"{100 * share:.1f}" for share in shares]
        lines[-1] += [interval_text(gain([row], name), 100) for name in names[1:]]
        if published is not None:
            text = published.get(row.pair, "")
            is_same = row.better == row.pair.first or not text
            lines[-1].append(text if is_same else "other way round")
    return markdown_table([*header, *(["published"] if published is not None else [])], lines)


def markdown_losses(rows: Sequence[PairRow]) -> str:
    """Mean and standard deviation over the seeds as a Markdown table, a line for each pipeline.

    The standard deviation of each calibrated loss is divided by that of the plain loss in the
    columns "std ratio". The bias share is that of the last calibrated loss.
    """
    names = list(rows[0].accuracies)
    header = ["pipeline", *(f"{name}: mean ± std" for name in names)]
    header += [f"{name}: std ratio" for name in names[1:]]
    header.append("bias share, %")
    lines: dict[str, list[str]] = {}
    for row in rows:
        for pipeline in (row.better, row.worse):
            losses = [row.losses(pipeline, k) for k in range(len(names))]
            stds = [values.std(ddof=1) for values in losses]
            cells = [f"{v.mean():.5g} ± {std:.2g}" for v, std in zip(losses, stds, strict=True)]
            cells += [f"{std / stds[0]:.2f}" if stds[0] else "–" for std in stds[1:]]
            share = f"{100 * bias_of([losses[0]], [losses[-1]]):.0f}" if stds[0] else "–"
            lines.setdefault(pipeline, [pipeline, *cells, share])
    return markdown_table(header, list(lines.values()))


def bias_of(plain: Sequence[Array], calibrated: Sequence[Array]) -> float:
    """The share of bias in the seed variance, NaN with fewer than three seeds."""
    if min(map(len, plain)) < MIN_JUDGED:
        return math.nan
    return bias_share(plain, calibrated).value


def values_by_seed(
    ledger: Ledger, pipelines: set[str], names: Mapping[str, str]
) -> dict[str, dict[int, Array]]:
    """Pipeline → seed → the metrics of its latest finished run, at the epoch that it kept.

    Each metric has its values by block of held-out rows, or two blocks of the same value.
    """
    by_block = read_block_losses(ledger.path)
    values: dict[str, dict[int, Array]] = {}
    for run in ledger.runs(status="finished"):
        if run["pipeline"] not in pipelines:
            continue
        if missing := set(names.values()) - set(run["metrics"]):
            raise ValueError(
                f"The runs of {run['pipeline']!r} must have the metrics {sorted(names.values())}. "
                f"Received: a run without {sorted(missing)}, with {sorted(run['metrics'])}."
            )
        kept = run["kept_epoch"]
        position = run["epochs"].index(kept) if isinstance(kept, int) else -1
        blocks = by_block.get((run["pipeline"], run["seed"]), {})
        if by_block and not blocks:
            continue  # interrupted between the record and the side file
        values.setdefault(run["pipeline"], {})[run["seed"]] = np.array(
            [blocks.get(name, [run["metrics"][name][position]] * 2) for name in names.values()]
        )
    return values


def _pair_row(pair: Pair, runs: Mapping[str, Mapping[int, Array]], names: Sequence[str]) -> PairRow:
    """The row of a pair, given values `(num_metrics, num_blocks)` with the plain loss first."""
    losses = {
        name: np.array([values.mean(axis=1) for values in by_seed.values()])
        for name, by_seed in runs.items()
    }
    better, worse = sorted(runs, key=lambda name: float(losses[name][:, 0].mean()))
    low, high = losses[better], losses[worse]
    seeds = np.array(list(runs[better]))
    judged = [
        Judged(*decided, tuple(seeds[seeds % 2 == parity].tolist()))
        for parity in (0, 1)
        if (decided := _decide(losses, pair, seeds % 2 != parity))
        and np.count_nonzero(seeds % 2 == parity) >= MIN_JUDGED
    ]
    accuracies = {name: _accuracy(losses, seeds, judged, k) for k, name in enumerate(names)}
    difference = mean_difference(low[:, 0], high[:, 0], paired=True)
    return PairRow(pair, better, worse, difference, accuracies, tuple(judged), runs)


def _decide(
    losses: Mapping[str, Array], pair: Pair, deciding: NDArray[np.bool_]
) -> tuple[str, str] | None:
    """The better and the worse pipeline by the plain loss on some of the seeds, if they decide."""
    means = {name: losses[name][deciding, 0] for name in (pair.first, pair.second)}
    if np.count_nonzero(deciding) < MIN_JUDGED:
        return None
    better, worse = sorted(means, key=lambda name: float(means[name].mean()))
    p_value = mean_difference(means[better], means[worse], paired=True).p_value
    is_significant = p_value is not None and p_value < MAX_P_VALUE
    accuracy = independent_seed_accuracy(means[better], means[worse]).value
    return (better, worse) if is_significant and accuracy < MAX_ACCURACY else None


def _accuracy(
    losses: Mapping[str, Array], seeds: NDArray[np.int64], judged: Sequence[Judged], metric: int
) -> float:
    """The accuracy of a metric, a mean over the halves that are judged; NaN without them."""
    accuracies = []
    for half in judged:
        chosen = np.isin(seeds, half.seeds)
        better, worse = (losses[name][chosen, metric] for name in (half.better, half.worse))
        accuracies.append(independent_seed_accuracy(better, worse).value)
    return sum(accuracies) / len(accuracies) if accuracies else math.nan
