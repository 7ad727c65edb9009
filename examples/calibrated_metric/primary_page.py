"""V1 and A1 on the page of results: verdicts, and the tables behind them."""

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import primary_verdicts as primary
from click_auc import REGRESSION
from click_study import Losses, Pipeline, published_losses
from clicks import CALIBRATED, PLAIN, base_of
from numpy.typing import NDArray
from pairs import Pair, bias_of, values_by_seed
from primary_clicks import L2_SCALE, PLANS, Plan, study_of
from primary_verdicts import Drawn, Fold, PairGain, effect_of

from keras_calibration.seeds import Ledger
from markdown_table import markdown_table
from verdicts import (
    NOT_RUN,
    Effect,
    in_order,
    interval_text,
    mean_over_tables,
    p_text,
    power_text,
    ratio_text,
    relevant_gain,
    verdict,
)

Array = NDArray[np.float64]

PAPERS, OURS = CALIBRATED["papers'"], CALIBRATED["ours"]
BIAS = f"{OURS}_bias"
points_text = functools.partial(interval_text, scale=100)
TEXT = """
### V1 and A1: do runs vary less, and does a single run show the better pipeline?

Three tables of shuffled clicks. *Here* is about these tables; *tables as a sample* is about tables
like them. *Hold-out* is the papers' own metric, which fits the bias to 10 % of the held-out rows
(20 % on criteo): here these have 34 to 134 positives. *Power* is that for the published effect,
then the effect (a log ratio, or points) for which it is 80 %.

V1 is stronger here than in the papers, because batches are smaller. More seeds would not decide A1.
The pipelines hardly differ on these tables: for most pairs that count, a single run is right in 50
to 55 % of the cases. Where it is right in at least 60 %, as for the pairs of the papers that A1 has
(61.5 to 96.7 %), the gain is 9 points, on five pairs of two tables (computed after the verdict).
The papers have other pairs that are as near: 55.4 to 58.6 % on Criteo, and 5.6 to 51.5 % on
CIFAR-10. A2 asks again on nine other tables.
"""
SUMMARY_TEXT = """
The papers claim an equal mean, with shifts of -0.06 to +0.01 %. *Mean shift* is larger here, since
batches are smaller. On criteo the gain may be 0: -2.2 points [-5.9, 1.5]. Of its pairs, DCN-Mix and
DCN lose: -10.6 [-18.0, -3.2]. The level of DCN varies more between seeds, so its log loss is higher
by about ½ p(1 − p) Var b. Calibration removes this difference, which is noise. (The mean level of
DCN is like that of the others: see [the fitted biases](TABLES.md#v1-and-a1).)
"""
TABLES_TEXT = """
## V1 and A1

Losses over the seeds: their means, their standard deviation within a fifth of held-out rows, and
the ratio of the deviations. In parentheses: the papers' figures, on eight million training rows of
Avazu. *Bias* is what calibration adds to the logits: its mean b̄, and its standard deviation over
the seeds within a fifth. The log loss exceeds the calibrated one by about ½ p(1 − p)(b̄² + Var b).
"""
PUBLISHED_TEXT = """
The papers' figures for batch normalization and for every L2 penalty (tables 12 and 13), on Avazu.
Names have our weights, 200 times the papers'.
"""
PAIRS_TEXT = """
Accuracies over the fifths in which the four other fifths tell which pipeline is better. The papers
have the first pipeline of a pair as the better one.
"""


class TableRuns(NamedTuple):
    """The runs of a table in the folds that are complete.

    Args:
        name: Its data folder.
        folds: Losses of the tested pipelines in each complete fold.
        pipelines: The tested pipelines: those with a higher AUC than the regression.
        areas: Mean AUC of each pipeline that was trained.
        regression: Mean AUC of the regression.
        pairs: Pairs of tested pipelines, and what the papers report.
        biases: Pipeline → the fitted bias of each run, an array for each fold.
    """

    name: str
    folds: list[Fold]
    pipelines: list[str]
    areas: dict[str, float]
    regression: float
    pairs: dict[Pair, str]
    biases: dict[str, list[Array]]


class TableResult(NamedTuple):
    """What the runs of a table say, in each draw of the bootstrap.

    Args:
        runs: The runs.
        ratios: Log of the ratio of standard deviations, `(num_draws + 1, num_pipelines)`.
        shifts: Relative difference of the mean losses, of the same shape.
        gains: The pairs that count.
    """

    runs: TableRuns
    ratios: Array
    shifts: Array
    gains: list[PairGain]


def read_runs(
    folder: Path, plan: Plan = PLANS["primary"], calibrated: str = OURS
) -> list[TableRuns]:
    """The runs below a folder, of all tables with a complete fold."""
    tables = []
    for table in plan.tables:
        ledgers = [Ledger(path) for path in sorted(folder.glob(f"{table}_mixing_1*"))]
        ledgers = [ledger for ledger in ledgers if ledger.runs(status="finished")]
        found = [_complete(ledger, plan, calibrated) for ledger in ledgers]
        if runs := [complete for complete in found if complete]:
            tables.append(_table_runs(table, runs, plan))
    return tables


def _complete(
    ledger: Ledger, plan: Plan, calibrated: str
) -> tuple[Ledger, dict[str, dict[int, Array]]] | None:
    """The losses in a ledger by pipeline and seed, if no seed of a pipeline is missing."""
    names = {PLAIN: PLAIN, calibrated: calibrated}
    values = values_by_seed(ledger, set(plan.pipelines), names)
    # Only a table without numeric columns has no run of `without_dense`.
    missing = set(plan.pipelines) - set(values) - {"without_dense"}
    is_complete = not missing and all(len(by_seed) == plan.num_seeds for by_seed in values.values())
    return (ledger, values) if is_complete else None


def complete_fold(ledger: Ledger, plan: Plan, calibrated: str = OURS) -> Fold | None:
    """The losses in a ledger of all pipelines of a plan, if no run is missing."""
    if (complete := _complete(ledger, plan, calibrated)) is None:
        return None
    return _fold_of(complete[1], plan.pipelines)


def _fold_of(values: Mapping[str, Mapping[int, Array]], pipelines: Sequence[str]) -> Fold:
    """The losses of some pipelines, in the order of their seeds."""
    seeds = sorted(values[pipelines[0]])
    losses = np.array([[values[name][seed] for seed in seeds] for name in pipelines])
    return Fold(losses[:, :, 0], losses[:, :, 1])


def _table_runs(
    table: str, runs: Sequence[tuple[Ledger, Mapping[str, Mapping[int, Array]]]], plan: Plan
) -> TableRuns:
    """The complete folds of a table."""
    trained = [name for name in plan.pipelines if all(name in values for _, values in runs)]
    areas = {
        name: float(np.mean([mean_area(ledger, name) for ledger, _ in runs]))
        for name in (REGRESSION, *trained)
    }
    regression = areas.pop(REGRESSION)
    tested = [name for name in trained if areas[name] > regression]
    folds = [_fold_of(values, tested) for _, values in runs]
    setting = runs[0][0].runs(status="finished")[0]["configuration"]["setting"]
    published = study_of(plan, base_of(setting)).published
    pairs = {p: text for p, text in published.items() if {p.first, p.second} <= set(tested)}
    biases = {
        name: [
            np.array([run["metrics"][BIAS][-1] for run in _runs(ledger, name)])
            for ledger, _ in runs
        ]
        for name in tested
    }
    return TableRuns(table, folds, tested, areas, regression, pairs, biases)


def _runs(ledger: Ledger, pipeline: str) -> list[dict[str, Any]]:
    return ledger.runs(pipeline, status="finished")


def mean_area(ledger: Ledger, pipeline: str) -> float:
    """The mean held-out AUC of the runs of a pipeline."""
    return float(np.mean([run["metrics"]["val_auc"][-1] for run in _runs(ledger, pipeline)]))


def results_of(folders: Sequence[Path], calibrated: str) -> list[TableResult]:
    """What the runs below some folders say by one calibrated loss, see `read_runs`."""
    tables = [runs for folder in folders for runs in read_runs(folder, calibrated=calibrated)]
    return [result_of(runs, seed=number) for number, runs in enumerate(tables)]


def result_of(runs: TableRuns, *, num_draws: int = primary.NUM_DRAWS, seed: int = 0) -> TableResult:
    """What the runs of a table say. The draws of two tables must have different seeds."""
    drawn: list[Drawn] = primary.draw(runs.folds, num_draws=num_draws, seed=seed)
    gains = []
    if len(runs.folds) > 1:
        gains = primary.pair_gains(runs.pipelines, runs.folds, drawn, list(runs.pairs))
    ratios, shifts = primary.log_std_ratios(drawn), primary.mean_shifts(drawn)
    return TableResult(runs, ratios, shifts, gains)


def effects(results: Sequence[TableResult]) -> tuple[Effect | None, Effect | None]:
    """V1, minus the mean log ratio, and A1, the mean gain: means over tables, equal weights."""
    if not results:
        return None, None
    ratio = np.mean([-result.ratios.mean(axis=1) for result in results], axis=0)
    gains = [_mean_gain(result) for result in results if result.gains]
    gain = effect_of(np.mean(gains, axis=0), _degrees(results)) if gains else None
    return effect_of(ratio, _degrees(results)), gain


def _mean_gain(result: TableResult) -> Array:
    """The mean gain over the pairs that count, in each draw."""
    return np.asarray(np.mean([pair.gains for pair in result.gains], axis=0))


def _degrees(results: Sequence[TableResult]) -> int:
    return sum(fold.plain.shape[1] - 1 for fold in results[0].runs.folds)


def published_ratio(pipelines: Sequence[str]) -> float:
    """The mean published log of the ratio of standard deviations, for these pipelines."""
    published = published_losses(L2_SCALE)
    losses = [published[name] for name in pipelines if name in published]
    return float(np.mean([np.log(loss.calibrated_std / loss.plain_std) for loss in losses]))


def verdicts_of(results: Sequence[TableResult], plan: Plan = PLANS["primary"]) -> list[str]:
    """The verdicts on V1 and A1, in this order."""
    is_complete = len(results) == len(plan.tables) and all(
        len(result.runs.folds) == plan.num_folds for result in results
    )
    if not is_complete:
        return [NOT_RUN] * 2
    half_gain = relevant_gain(study_of(plan, Pipeline()).published.values())
    relevant = (-published_ratio(plan.pipelines) / 2, half_gain)
    tested = zip(effects(results), relevant, strict=True)
    return in_order([verdict(effect, half) for effect, half in tested])


def hypotheses(
    results: Sequence[TableResult], by_papers: Sequence[TableResult], plan: Plan = PLANS["primary"]
) -> list[dict[str, str]]:
    """V1 and A1 with their verdicts.

    Args:
        results: The runs, by our calibrated loss, which decides.
        by_papers: The same by the papers' hold-out loss.
        plan: The tables and pipelines.
    """
    gain = 2 * relevant_gain(study_of(plan, Pipeline()).published.values())
    ratio = published_ratio(plan.pipelines)
    both = list(zip(effects(results), _as_sample(results), effects(by_papers), strict=True))
    texts = verdicts_of(results, plan)
    claim = "The calibrated loss varies less between seeds: ratio of standard deviations"
    v1 = {"hypothesis": "V1", "claim": claim, "published": f"{np.exp(ratio):.2f}"}
    v1 |= _cells(*both[0], ratio_text, -ratio)
    claim = "A single run shows the better pipeline more often: gain in accuracy, points"
    a1 = {"hypothesis": "A1", "claim": claim, "published": f"{100 * gain:+.1f}"}
    a1 |= _cells(*both[1], points_text, gain, unit=0.01)
    return [line | {"verdict": text} for line, text in zip((v1, a1), texts, strict=True)]


def _cells(
    effect: Effect | None,
    sampled: Effect | None,
    by_holdout: Effect | None,
    show: Callable[[Effect | None], str],
    size: float,
    unit: float = 1.0,
) -> dict[str, str]:
    """What the runs say, on these tables and on tables like them; power for the published size."""
    return {
        "here": show(effect),
        "p": p_text(effect),
        "tables as a sample": show(sampled),
        "p of the sample": p_text(sampled),
        "hold-out": show(by_holdout),
        "power": power_text(effect, size, unit),
    }


def markdown(results: Sequence[TableResult], by_papers: Sequence[TableResult]) -> str:
    """What V1 and A1 are, and a line for each table."""
    return "\n\n".join([TEXT.strip(), _summary(results, by_papers), SUMMARY_TEXT.strip()])


def details(results: Sequence[TableResult], by_papers: Sequence[TableResult]) -> list[str]:
    """The losses of all pipelines, and the accuracies of all pairs that count."""
    losses, pairs = _losses_table(results), _pairs_table(results, by_papers)
    return [TABLES_TEXT, losses, PUBLISHED_TEXT, _published_table(), PAIRS_TEXT, pairs]


def _published_table() -> str:
    """The papers' losses of batch normalization and of all penalties, and xDeepFM's beside them."""
    lines = []
    for name, losses in published_losses(L2_SCALE).items():
        if name in ("xdeepfm", "normalized") or name.startswith("l2_"):
            shift = 100 * (losses.calibrated_mean / losses.plain_mean - 1)
            lines.append([name, *_with_published(losses, None), f"{shift:+.3f}"])
    head = ["pipeline", "log loss", "calibrated", "std, log loss", "std ratio", "mean shift, %"]
    return markdown_table(head, lines)


def _as_sample(results: Sequence[TableResult]) -> tuple[Effect | None, Effect | None]:
    """V1 and A1 with the spread of the tables as the error."""
    ratios = [-float(result.ratios[0].mean()) for result in results]
    gains = [float(_mean_gain(result)[0]) for result in results if result.gains]
    return mean_over_tables(ratios), mean_over_tables(gains)


def _summary(results: Sequence[TableResult], by_papers: Sequence[TableResult]) -> str:
    """A line for each table."""
    lines = []
    for ours, papers in zip(results, by_papers, strict=True):
        degrees = _degrees([ours])
        line = [ours.runs.name, str(len(ours.runs.folds))]
        line += [f"{len(ours.runs.pipelines)} of {len(ours.runs.areas)}"]
        line += [ratio_text(effect_of(-r.ratios.mean(axis=1), degrees)) for r in (ours, papers)]
        shift = effect_of(ours.shifts.mean(axis=1), degrees)
        line.append(interval_text(shift, 100, 2))
        line.append(f"{len(ours.gains)} of {len(ours.runs.pairs)}")
        for result, accuracy in ((ours, "plain"), (ours, "calibrated"), (papers, "calibrated")):
            values = [getattr(pair, accuracy) for pair in result.gains]
            line.append(f"{100 * np.mean(values):.1f}" if values else "–")
        for result in (ours, papers):
            line.append(points_text(effect_of(_mean_gain(result), degrees) if ours.gains else None))
        lines.append(line)
    head = ["table", "fifths", "pipelines tested", "ratio of stds", "hold-out"]
    head += ["mean shift, %", "pairs that count"]
    head += ["plain, %", "calibrated, %", "hold-out, %", "gain, points", "hold-out"]
    return markdown_table(head, lines)


def _losses_table(results: Sequence[TableResult]) -> str:
    """Means, standard deviations and AUC of each pipeline, with the published figures."""
    published = published_losses(L2_SCALE)
    lines = []
    for result in results:
        regression = ["logistic regression", f"{result.runs.regression:.4f}", *[""] * 6]
        lines.append([result.runs.name, *regression])
        for name, area in result.runs.areas.items():
            line = [result.runs.name, name, f"{area:.4f}"]
            if name not in result.runs.pipelines:
                lines.append([*line, "not tested", *[""] * 5])
                continue
            place = result.runs.pipelines.index(name)
            losses, share = _losses_of(result.runs.folds, place)
            line += [*_with_published(losses, published.get(name)), f"{100 * share:.0f}"]
            biases = result.runs.biases[name]
            spread = np.sqrt(np.mean([of_fold.var(ddof=1) for of_fold in biases]))
            lines.append([*line, f"{np.mean(biases):+.3f} ± {spread:.3f}"])
    head = ["table", "pipeline", "AUC", "log loss", "calibrated", "std, log loss", "std ratio"]
    return markdown_table([*head, "bias share, %", "bias, logits"], lines)


def _losses_of(folds: Sequence[Fold], place: int) -> tuple[Losses, float]:
    """Means and standard deviations of a pipeline, and the share of bias in its seed variance."""
    runs = [[fold[k][place].mean(axis=-1) for fold in folds] for k in (0, 1)]
    means = [float(np.mean(values)) for values in runs]
    stds = [float(np.sqrt(np.mean([v.var(ddof=1) for v in values]))) for values in runs]
    centred = [np.concatenate([v - v.mean() for v in values]) for values in runs]
    return Losses(*means, *stds), bias_of([centred[0]], [centred[1]])


def _with_published(ours: Losses, theirs: Losses | None) -> list[str]:
    """Means of both losses, standard deviation, and ratio; the published ones in parentheses."""
    texts = []
    for losses in (ours, theirs):
        if losses is not None:
            ratio = losses.calibrated_std / losses.plain_std
            figures = (losses.plain_mean, losses.calibrated_mean, losses.plain_std)
            texts.append([*(f"{figure:.5f}" for figure in figures), f"{ratio:.2f}"])
    if len(texts) == 1:
        return texts[0]
    return [f"{our} ({their})" for our, their in zip(*texts, strict=True)]


def _pairs_table(results: Sequence[TableResult], by_papers: Sequence[TableResult]) -> str:
    """The pairs that count."""
    lines = []
    for ours, papers in zip(results, by_papers, strict=True):
        for pair, by_holdout in zip(ours.gains, papers.gains, strict=True):
            better = pair.better
            worse = pair.pair.second if better == pair.pair.first else pair.pair.first
            text = ours.runs.pairs[pair.pair]
            if text and better != pair.pair.first:
                text = "other way round"
            gain = effect_of(pair.gains, _degrees([ours]))
            line = [ours.runs.name, pair.pair.kind, better, worse, str(pair.num_counted)]
            shares = (pair.plain, pair.calibrated, by_holdout.calibrated)
            line += [f"{100 * share:.1f}" for share in shares]
            lines.append([*line, points_text(gain), text])
    head = ["table", "kind", "better", "worse", "fifths", "plain, %", "calibrated, %"]
    head.append("hold-out, %")
    return markdown_table([*head, "gain, points", "published"], lines)
