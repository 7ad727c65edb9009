"""T1 of HYPOTHESES.md on the page of results: rows in the order of time, rolling calibration."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from block_losses import read_block_losses
from click_auc import REGRESSION
from clicks import PLAIN, ROLLING
from pairs import bias_of
from primary_clicks import PLANS, Plan, folder_name
from primary_page import mean_area
from primary_verdicts import Fold, decide
from share_page import all_pairs

from keras_calibration.seeds import Ledger
from keras_calibration.statistics import Estimate
from markdown_table import markdown_table
from verdicts import Comparison, bootstrap_gain, interval_text

TEXT = """
### T1: what does rolling calibration do in the order of time?

Estimates, no verdict. The bias of a period corrects the next period. The gain is that of the
rolling calibrated loss over the log loss, in points, with the 95 % interval of a two-way bootstrap.
The other half of the seeds decides which network is better: by the log loss in one column, by the
rolling loss in the other. In brackets: the pairs that count. *Mean shift* is that of the rolling
loss from the log loss.
"""


class TimeRuns(NamedTuple):
    """The runs of a table in the order of time.

    Args:
        table: Data folder.
        losses: Their losses; the calibrated one is the rolling one.
        seeds: Their seeds.
        num_tested: Number of networks with a higher mean AUC than a logistic regression.
    """

    table: str
    losses: Fold
    seeds: tuple[int, ...]
    num_tested: int


def read_runs(folder: Path, plan: Plan = PLANS["time"]) -> list[TimeRuns]:
    """The runs of all tables that are complete."""
    tables = []
    for table in plan.tables:
        path = folder / folder_name(plan, table, 0, 0)
        if not path.is_dir():
            continue
        blocks = read_block_losses(path)
        seeds = sorted({seed for _, seed in blocks})
        if len(seeds) < plan.num_seeds or len(blocks) < len(plan.pipelines) * len(seeds):
            continue
        plain, rolling = (
            np.array([[blocks[name, seed][key] for seed in seeds] for name in plan.pipelines])
            for key in (PLAIN, ROLLING)
        )
        ledger = Ledger(path)
        regression = mean_area(ledger, REGRESSION)
        num_tested = sum(mean_area(ledger, name) > regression for name in plan.pipelines)
        tables.append(TimeRuns(table, Fold(plain, rolling), tuple(seeds), num_tested))
    return tables


def time_gain(
    runs: TimeRuns, decided_by_rolling: bool, plan: Plan = PLANS["time"]
) -> tuple[Estimate | None, int]:
    """The gain over the pairs of a table; even seeds decide for odd ones, and the other way round.

    Args:
        runs: The runs.
        decided_by_rolling: Whether the rolling loss decides which pipeline is better, in place of
            the log loss.
        plan: The pipelines and their pairs.

    Returns:
        The gain, and the number of pairs that count.
    """
    plain, rolling = runs.losses
    deciding = Fold(rolling, plain) if decided_by_rolling else runs.losses
    is_even = np.array(runs.seeds) % 2 == 0
    names = list(plan.pipelines)
    comparisons: list[Comparison] = []
    num_pairs = 0
    for pair in all_pairs(plan):
        places = names.index(pair.first), names.index(pair.second)
        halves = []
        for judged in (is_even, ~is_even):
            other_half = Fold(*(losses[:, ~judged] for losses in deciding))
            if (decided := decide([other_half], *places)) is not None:
                halves.append((*decided, np.flatnonzero(judged).tolist()))
        num_pairs += bool(halves)
        comparisons += [Comparison(*half, weight=1 / len(halves)) for half in halves]
    gain = bootstrap_gain(plain, rolling, comparisons) if comparisons else None
    return gain, num_pairs


def markdown(tables: Sequence[TimeRuns], plan: Plan = PLANS["time"]) -> str:
    """The gains of all tables; nothing without runs."""
    if not tables:
        return ""
    lines = []
    for runs in tables:
        plain, rolling = (losses.mean(axis=-1) for losses in runs.losses)
        shares = [bias_of([a], [b]) for a, b in zip(plain, rolling, strict=True)]
        ratios = np.log(rolling.std(axis=1, ddof=1) / plain.std(axis=1, ddof=1))
        line = [runs.table, f"{runs.num_tested} of {len(plan.pipelines)}"]
        line += [f"{100 * np.mean(shares):.0f}", f"{np.exp(ratios.mean()):.2f}"]
        line.append(f"{100 * (rolling.mean() / plain.mean() - 1):+.2f}")
        for by_rolling in (False, True):
            gain, num_pairs = time_gain(runs, by_rolling, plan)
            line.append(f"{interval_text(gain, 100)} ({num_pairs} of {len(all_pairs(plan))})")
        lines.append(line)
    head = ["table", "above the regression", "bias share, %", "ratio of stds", "mean shift, %"]
    head += ["gain, by log loss", "gain, by rolling loss"]
    return f"{TEXT.strip()}\n\n{markdown_table(head, lines)}"
