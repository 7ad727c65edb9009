"""D1 and E1, A2, and D2 and E2 of HYPOTHESES.md: does the gain rise with the bias share?"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from click_study import Pipeline
from numpy.typing import NDArray
from pairs import Pair, bias_of
from primary_clicks import PLANS, Plan, folder_name, study_of
from primary_page import OURS, PAPERS, complete_fold
from primary_verdicts import Fold, PairGain, decide, draw, pair_gains

from keras_calibration.seeds import Ledger
from keras_calibration.statistics import independent_seed_accuracy
from markdown_table import markdown_table, table_of
from verdicts import (
    NOT_RUN,
    NOT_TESTED,
    Effect,
    equivalence_power,
    equivalence_verdict,
    estimate_line,
    in_order,
    interval_text,
    mean_over_tables,
    p_text,
    power_text,
    relevant_gain,
    student_effect,
    verdict,
)

# In points: the slope (share from 0 to 1) that matters, and the bound on gains at small shares.
RELEVANT_SLOPE, MARGIN = 3.0, 2.0
SMALL_SHARE = 0.1
# The pipeline that is no part of D2 and E2, but an estimate of its own.
NORMALIZED = "normalized"
# For A2: the least share of runs that the better pipeline wins in the other folds.
MIN_SHARE = 0.55
D1_E1_TEXT = """
### D1 and E1: does the gain rise with the share of bias in the seeds' noise?

A point is a table, batch size and fold ([all points](TABLES.md#d1-and-e1)). Its share is the mean
bias share of the pipelines in the other fold. Its gain is the mean over the pairs that the other
fold decides. Errors are those of a jackknife over the tables. The test of D1 passes, but D1 comes
after A1, so it is undecided. *Power*: of D1 for the smallest slope that would matter, 3 points; of
E1 for a gain of 0.
"""
POINTS_TEXT = """
## D1 and E1

A line for each table and batch size, with both folds. *Hold-out*: the gain by the papers' own
metric.
"""
A2_TEXT = """
### A2: A1 where pipelines are further apart, on average

New runs on the nine tables of D1, in 750 steps of 32 rows, are judged by the rule of A1, with
Student's t over the tables. The prediction was +6 [4, 8]. The runs of D1 were known when A2 was
registered, so they give estimates only ([by table](TABLES.md#a2)). The published +6.1 is the mean
of the 14 values that the pairs of A1 have, as registered. A2's own pairs have 8 of them, whose mean
is +5.4.

*Hold-out*: by the papers' own metric. *Without BN*: without the pair of xDeepFM and xDeepFM with
batch normalization; *BN alone*: this pair. They were told apart after the runs. In batches of 512,
which are 47 steps, this pair alone makes the mean negative: there its level differs.

A single run is right in 64 % of the cases on average here, and in 56 % in A1. But most of the 66
pairs are near: see the next section.
"""
D2_E2_TEXT = """
### D2 and E2: D1 and E1 again, on new runs and without batch normalization

In D1, the pair with batch normalization alone turned the mean gain in batches of 512. So the nine
other pairs decide here, on folds 2 to 4 of the same tables, in batches of 128 and 512. Errors are
those of a jackknife over the tables. Lines without a name are estimates.
"""


class Point(NamedTuple):
    """The runs of a condition that hold out one fold.

    Args:
        table: Data folder.
        batch_size: Rows of a batch.
        share: Mean bias share of the pipelines in the other folds.
        gain: Mean gain in accuracy over the pairs that count, in points; NaN without pairs.
        num_pairs: Number of pairs that count.
        by_papers: The gain by the papers' hold-out loss.
    """

    table: str
    batch_size: int
    share: float
    gain: float
    num_pairs: int
    by_papers: float = math.nan


def read_points(
    folder: Path, plan: Plan = PLANS["share"], pairs: Sequence[Pair] | None = None
) -> list[Point]:
    """The points of all conditions whose folds are complete, see `points_of`."""
    points = []
    for table in plan.tables:
        for batch_size in filter(None, plan.batch_sizes):
            by_loss = [
                points_of(table, batch_size, folds, plan, pairs)
                for calibrated in (OURS, PAPERS)
                if (folds := _complete_folds(folder, plan, table, batch_size, calibrated))
            ]
            for ours, papers in zip(*by_loss, strict=True):
                points.append(ours._replace(by_papers=papers.gain))
    return points


def _complete_folds(
    folder: Path, plan: Plan, table: str, batch_size: int, calibrated: str = OURS
) -> list[Fold]:
    """All folds of a condition; an empty list if one is not complete."""
    paths = [folder / folder_name(plan, table, fold, batch_size) for fold in plan.folds]
    ledgers = [Ledger(path) for path in paths if path.is_dir()]
    candidates = [complete_fold(ledger, plan, calibrated) for ledger in ledgers]
    folds = [fold for fold in candidates if fold is not None]
    return folds if len(folds) == plan.num_folds else []


def points_of(
    table: str,
    batch_size: int,
    folds: Sequence[Fold],
    plan: Plan = PLANS["share"],
    pairs: Sequence[Pair] | None = None,
) -> list[Point]:
    """A point for each fold; the other folds decide which pipelines are better, and give the share.

    Args:
        table: Data folder.
        batch_size: Rows of a batch.
        folds: All folds of the condition.
        plan: Its plan.
        pairs: The pairs, whose pipelines give the share (default: all of the plan).
    """
    pairs, names = all_pairs(plan) if pairs is None else pairs, list(plan.pipelines)
    used = [k for k, name in enumerate(names) if any(name in pair[1:] for pair in pairs)]
    points = []
    for number, judged in enumerate(folds):
        deciding = [fold for place, fold in enumerate(folds) if place != number]
        losses = [(fold.plain.mean(axis=-1), fold.calibrated.mean(axis=-1)) for fold in deciding]
        shares = [
            bias_of([plain[k]], [calibrated[k]]) for plain, calibrated in losses for k in used
        ]
        gains = []
        for pair in pairs:
            decided = decide(deciding, names.index(pair.first), names.index(pair.second))
            if decided is not None:
                before, after = (_accuracy(values, *decided) for values in judged)
                gains.append(100 * (after - before))
        gain = float(np.mean(gains)) if gains else math.nan
        points.append(Point(table, batch_size, float(np.mean(shares)), gain, len(gains)))
    return points


def all_pairs(plan: Plan) -> list[Pair]:
    """The pairs of a plan."""
    return list(study_of(plan, Pipeline()).published)


def _accuracy(losses: NDArray[np.float64], better: int, worse: int) -> float:
    """The share of pairs of runs with different seeds that the better pipeline wins."""
    values = losses.mean(axis=-1)
    return independent_seed_accuracy(values[better], values[worse]).value


def slope(points: Sequence[Point]) -> float:
    """The slope of the gain on the share, by ordinary least squares; NaN if it is undefined."""
    shares = np.array([point.share for point in points])
    if len(points) < 2 or np.ptp(shares) == 0:
        return math.nan
    return float(np.polyfit(shares, [point.gain for point in points], 1)[0])


def mean_gain(points: Sequence[Point]) -> float:
    """The mean gain; NaN without points."""
    return float(np.mean([point.gain for point in points])) if points else math.nan


def _below_share(points: Sequence[Point]) -> list[Point]:
    """The points with next to no bias."""
    return [point for point in points if point.share < SMALL_SHARE]


def by_tables(
    points: Sequence[Point], statistic: Callable[[Sequence[Point]], float]
) -> Effect | None:
    """A statistic with the error of a jackknife over tables: var = (T − 1)/T Σ (θ₋ₜ − mean)²."""
    counted = [point for point in points if not math.isnan(point.gain)]
    tables = sorted({point.table for point in counted})
    if len(tables) < 3:
        return None
    without = np.array(
        [statistic([point for point in counted if point.table != table]) for table in tables]
    )
    variance = (len(tables) - 1) * float(without.var())
    estimate = student_effect(statistic(counted), math.sqrt(variance), len(tables) - 1)
    return None if math.isnan(estimate.low) else estimate


def hypotheses_d1_e1(
    points: Sequence[Point], plan: Plan = PLANS["share"], before: Sequence[str] = ()
) -> list[dict[str, str]]:
    """D1 and E1 with their verdicts, if all conditions are complete.

    Args:
        points: The points.
        plan: Their plan.
        before: Verdicts of the hypotheses that come before D1.
    """
    lines, texts = _two_lines(("D1", "E1"), points, plan)
    for line, text in zip(lines, in_order([*before, *texts])[len(before) :], strict=True):
        line["verdict"] = NOT_RUN if NOT_RUN in texts else text
    return lines


def _two_lines(
    names: tuple[str, str], points: Sequence[Point], plan: Plan
) -> tuple[list[dict[str, str]], list[str]]:
    """Lines for the slope, and for the gain at small shares, and what their tests say."""
    is_complete = len(points) == plan.num_folds * len(plan.tables) * len(plan.batch_sizes)
    rising = by_tables(points, slope)
    small = by_tables(_below_share(points), mean_gain)
    texts = [NOT_RUN] * 2
    if is_complete:
        texts[0] = verdict(rising, RELEVANT_SLOPE)
        texts[1] = NOT_TESTED if small is None else equivalence_verdict(small, MARGIN)
    power = "–" if small is None else f"{100 * equivalence_power(small, MARGIN):.0f} %"
    lines = [
        {
            "claim": "The gain rises with the bias share: points from a share of 0 to 1",
            "here": interval_text(rising),
            "p": p_text(rising),
            "power": power_text(rising, RELEVANT_SLOPE),
        },
        {
            "claim": f"No gain, no harm below a share of 0.1: within ± {MARGIN:g} points",
            "here": interval_text(small),
            "power": power,
        },
    ]
    named = zip(names, lines, texts, strict=True)
    return [{"hypothesis": name, **line, "verdict": text} for name, line, text in named], texts


def details(points: Sequence[Point]) -> list[str]:
    """All points of D1."""
    conditions: dict[tuple[str, int], list[Point]] = {}
    for point in points:
        conditions.setdefault((point.table, point.batch_size), []).append(point)
    rows = []
    for (table, size), folds in conditions.items():
        cells = [[f"{100 * p.share:.0f}" for p in folds], [str(p.num_pairs) for p in folds]]
        for gains in ([p.gain for p in folds], [p.by_papers for p in folds]):
            cells.append(["–" if math.isnan(gain) else f"{gain:+.1f}" for gain in gains])
        rows.append([table, str(size), *map("; ".join, cells)])
    head = ["table", "batch", "bias share, %", "pairs that count", "gain, points", "hold-out"]
    return [POINTS_TEXT, markdown_table(head, rows)]


def table_pairs(
    folder: Path,
    plan: Plan,
    batch_size: int = 32,
    min_share: float = MIN_SHARE,
    calibrated: str = OURS,
) -> dict[str, list[PairGain]]:
    """Table → the pairs that the other folds decide, as in A1 and A2; no table without pairs."""
    by_table = {}
    for table in plan.tables:
        if not (folds := _complete_folds(folder, plan, table, batch_size, calibrated)):
            continue
        drawn = draw(folds, num_draws=0)
        gains = pair_gains(list(plan.pipelines), folds, drawn, all_pairs(plan), min_share)
        if gains:
            by_table[table] = gains
    return by_table


def hypotheses_a2(folder: Path) -> tuple[list[dict[str, str]], list[str]]:
    """A2 with its verdict, if its runs are complete, and the same gain in the runs of D1.

    Args:
        folder: Folder with the ledgers of the plans, each below its name.

    Returns:
        Lines of the table of hypotheses, and the gains of all tables as Markdown.
    """
    # As registered: the published gain of A1.
    published = 200 * relevant_gain(study_of(PLANS["primary"], Pipeline()).published.values())
    conditions = [("A2", "A1 on nine other tables, batches of 32", "second", 32)]
    conditions.append(("", "The same on five further tables", "further", 32))
    for size in filter(None, PLANS["share"].batch_sizes):
        conditions.append(("", f"The same in the runs of D1, batches of {size}", "share", size))
    lines: list[dict[str, str]] = []
    by_table: dict[str, dict[str, str]] = {}
    for name, claim, plan_name, size in conditions:
        plan = PLANS[plan_name]
        gains = _table_gains(folder / plan_name, plan, size)
        by_papers = _table_gains(folder / plan_name, plan, size, PAPERS)
        others, alone = (
            _table_gains(folder / plan_name, plan, size, normalized=normalized)
            for normalized in (False, True)
        )
        mean = mean_over_tables(list(gains.values()))
        text = verdict(mean, published / 2) if name else "estimate"
        if len(gains) < len(plan.tables) and plan_name != "share":
            text = NOT_RUN
        line = {"hypothesis": name, "claim": claim, "published": f"{published:+.1f}"}
        line |= {"here": interval_text(mean), "p": p_text(mean)}
        line |= {"above 0 on": f"{sum(gain > 0 for gain in gains.values())} of {len(gains)}"}
        line |= {"hold-out": interval_text(mean_over_tables(list(by_papers.values())))}
        line |= {"without BN": interval_text(mean_over_tables(list(others.values())))}
        line |= {"BN alone": interval_text(mean_over_tables(list(alone.values())))}
        line |= {"bias share, %": _mean_share(folder / plan_name, plan, size)}
        lines.append(line | {"power": power_text(mean, published), "verdict": text})
        for table, gain in gains.items():
            title = f"{name or plan_name}, batches of {size}"
            by_table.setdefault(table, {"table": table})[title] = f"{gain:+.1f}"
    return lines, ["## A2", "Gains in points.", table_of(list(by_table.values()))]


def _table_gains(
    folder: Path,
    plan: Plan,
    batch_size: int,
    calibrated: str = OURS,
    normalized: bool | None = None,
) -> dict[str, float]:
    """Table → mean gain of its pairs in points; of those with batch normalization or without."""
    by_table = table_pairs(folder, plan, batch_size, calibrated=calibrated)
    gains = {
        table: [pair.gains[0] for pair in pairs if normalized in (None, NORMALIZED in pair.pair)]
        for table, pairs in by_table.items()
    }
    return {table: 100 * float(np.mean(values)) for table, values in gains.items() if values}


def _mean_share(folder: Path, plan: Plan, batch_size: int) -> str:
    """The mean bias share in percent, of all pipelines, folds and tables."""
    shares = [
        bias_of([plain], [calibrated])
        for table in plan.tables
        for fold in _complete_folds(folder, plan, table, batch_size)
        for plain, calibrated in zip(*(losses.mean(axis=-1) for losses in fold), strict=True)
    ]
    return f"{100 * float(np.mean(shares)):.0f}" if shares else "–"


def hypotheses_d2_e2(folder: Path) -> list[dict[str, str]]:
    """D2 and E2 with their verdicts, if their runs are complete, and estimates beside them.

    Args:
        folder: Folder with the ledgers of the plans, each below its name.
    """
    plan = PLANS["third"]
    pairs = all_pairs(plan)
    others = [pair for pair in pairs if NORMALIZED not in pair]
    points = read_points(folder / "third", plan, others)
    lines, _ = _two_lines(("D2", "E2"), points, plan)
    if not points:
        return lines
    by_papers = [point._replace(gain=point.by_papers) for point in points]
    alone = read_points(folder / "third", plan, [pair for pair in pairs if NORMALIZED in pair])
    with_a2 = [*points, *read_points(folder / "second", PLANS["second"], others)]
    estimates = [
        ("D2 by the papers' hold-out", by_papers, slope),
        ("E2 by the papers' hold-out", _below_share(by_papers), mean_gain),
        ("D2 with the runs of A2, which were seen before", with_a2, slope),
        ("D2 of the pair with batch normalization", alone, slope),
        ("E2 of the pair with batch normalization", _below_share(alone), mean_gain),
    ]
    for size in plan.batch_sizes:
        of_size, of_pair = ([p for p in some if p.batch_size == size] for some in (points, alone))
        share = 100 * float(np.mean([point.share for point in of_size] or [math.nan]))
        title = f"Gain in batches of {size}"
        estimates.append((f"{title}, nine pairs (share {share:.0f} %)", of_size, mean_gain))
        estimates.append((f"{title}, batch normalization", of_pair, mean_gain))
    for claim, some, statistic in estimates:
        lines.append(estimate_line(claim, by_tables(some, statistic), interval_text))
    return lines
