"""F1 and F2 of HYPOTHESES.md on the page of results: Neural Calibration and the field errors."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[1])]
import development_rows
from tables_markdown import BASE, COLUMNS, FLOOR, FLOOR_METRICS, PUBLISHED, Group

from markdown_table import markdown_table
from two_way_bootstrap import two_way_interval
from verdicts import Effect, hartung_knapp, in_order, joint_verdict, sign_test, verdict

ROW = "Neural Calibration, one epoch"
# Of a 95 % interval.
Z = 1.96
TEXT = f"""
F1: {ROW.removesuffix(", one epoch")} with the paper's schedule, one epoch on the development rows,
has a lower field error than {BASE}. Log ratios of the errors less the noise floor, which a
perfectly calibrated model would have on as many rows; mean over the data sets, by Hartung and
Knapp, as a ratio with its 90 % interval. The sign test has no part in the verdict. Both errors
must pass. The runs are those of the tables below, whose direction was known before the hypothesis
was written down.
"""


class Ratio(NamedTuple):
    """A log ratio of two errors above the noise floor, and its standard error."""

    value: float
    error: float


def log_ratio(group: Group, metric: str) -> Ratio | None:
    """Log of the error of Neural Calibration over that of Model-1, less the floor.

    The error is that of the linearised log ratio, over seeds and blocks of test rows.

    Returns:
        `None` if the rows have no two common seeds, or an error does not exceed the floor.
    """
    seeds = group.seeds(ROW, BASE, FLOOR)
    if len(seeds) < 2 or group.difference(BASE, ROW, metric) is None:
        return None
    floor = float(group.values(FLOOR, metric, seeds).mean())
    excess = {name: float(group.values(name, metric, seeds).mean()) - floor for name in (ROW, BASE)}
    if min(excess.values()) <= 0:
        return None
    parts = [group.pseudo_values(name, metric, seeds) / excess[name] for name in (BASE, ROW)]
    interval = two_way_interval(*parts)
    value = float(np.log(excess[ROW] / excess[BASE]))
    return Ratio(value, (interval.high - interval.low) / (2 * Z))


def published_log_ratio(metric: str) -> float:
    """The mean log ratio in tables 1 to 5 of the paper."""
    tables = json.loads(PUBLISHED.read_text(encoding="utf-8"))["tables"]
    rows = [tables[str(number)]["rows"] for number in range(1, 6)]
    return float(
        np.mean(
            [
                np.log(each["Neural Calibration"][metric] / each["Base (Model-1)"][metric])
                for each in rows
            ]
        )
    )


def markdown(groups: Sequence[Group], by_rows: Mapping[str, Sequence[Group]] | None = None) -> str:
    """The verdicts on F1 and F2, and the figures behind them.

    Args:
        groups: The runs of `tables.py`.
        by_rows: Those of `development_rows.py`, result of its `groups_of`.
    """
    lines: list[list[str]] = []
    cells: dict[str, list[str]] = {}
    verdicts = []
    for metric in FLOOR_METRICS:
        found = {each.settings["data"]: log_ratio(each, metric) for each in groups}
        known = [ratio for ratio in found.values() if ratio is not None]
        published = published_log_ratio(metric)
        title = COLUMNS[metric].title.removesuffix(", %")
        for name, ratio in found.items():
            text = "at the floor" if ratio is None else f"{np.exp(ratio.value):.2f}"
            cells.setdefault(name, []).append(text)
        result = None
        if len(known) > 1:
            result = hartung_knapp([-each.value for each in known], [each.error for each in known])
        wins = sum(each.value < 0 for each in known)
        verdicts.append(verdict(result, -published / 2))
        lines.append([f"F1: ratio of {title} below 1", f"{np.exp(published):.2f}", _ratio(result)])
        lines[-1] += ["–" if result is None else f"{result.p_value:.2g}"]
        lines[-1] += [f"{wins} of {len(known)}", f"{sign_test(wins, len(known) - wins):.2g}"]
        lines[-1].append(verdicts[-1])
    by_rows = by_rows or {}
    falling = development_rows.mean_slope(by_rows)
    in_turn = in_order([joint_verdict(verdicts), verdict(falling)])
    lines.append(["F1: both", *[""] * 5, in_turn[0]])
    lines.append(["F2: slope of the log ratio of losses on log(rows) below 0, %", ""])
    lines[-1] += [development_rows.slope_text(falling)]
    lines[-1] += ["–" if falling is None else f"{falling.p_value:.2g}", *[""] * 2, in_turn[1]]
    head = ["hypothesis", "published", "here", "p", "lower on", "p, sign (two-sided)", "verdict"]
    errors = [COLUMNS[metric].title.removesuffix(", %") for metric in FLOOR_METRICS]
    table = [[name, *found] for name, found in cells.items()]
    parts = [TEXT.strip(), markdown_table(head, lines), markdown_table(["data", *errors], table)]
    return "\n\n".join([*parts, development_rows.markdown(by_rows)]).strip()


def _ratio(found: Effect | None) -> str:
    """A ratio with its 90 % interval, from the effect minus its logarithm."""
    if found is None:
        return "–"
    value, high, low = (float(np.exp(-each)) for each in found[:3])
    return f"{value:.2f} [{low:.2f}, {high:.2f}]"
