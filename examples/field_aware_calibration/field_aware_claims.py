"""What the tables of `field_aware_calibration` say about the claims of the paper."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tables_markdown import BASE, COLUMNS, Group

from keras_calibration.statistics import Estimate

sys.path.append(str(Path(__file__).parents[1]))
from markdown_table import markdown_table
from verdicts import holm, sign_test, verdict, wilcoxon

TEXT = f"""
A line of the table is a claim over the data sets: on how many the mean over the seeds is better; on
how many it is better, and worse, beyond the noise of seeds and of test rows (the 95 % interval of a
two-way bootstrap leaves out 0); and two p-values over the data sets, of a sign test and of
Wilcoxon's test of the gains relative to the loser's value. The verdict follows the sign test,
adjusted by Holm's method for the claims of the table: the gains are far from symmetric, as
Wilcoxon's test assumes (on movielens, whose rows drift, nearly all that is fitted to later rows
loses, and much). *Reproduced*: better, p ≤ 5 %; *not reproduced*: worse, p ≤ 5 %; *undecided*:
neither. The left part of the picture shows the log loss
of each row against that of {BASE}, on a scale that is linear up to 1 %.
"""


class Claim(NamedTuple):
    """One row of the tables is said to have a better value in a column than another.

    Args:
        winner: Row that is said to be better.
        loser: The other row.
        metric: Column; lower is better, but for the AUC.
        source: Where in the paper.
    """

    winner: str
    loser: str
    metric: str
    source: str = ""


PAPER_CLAIMS = (
    Claim("Neural Calibration", "Model-1", "log_loss", "tables 1–5"),
    Claim("Neural Calibration", "Model-2", "log_loss", "tables 1–5"),
    Claim("Neural Calibration", "Platt scaling", "log_loss", "tables 1–5"),
    Claim("Neural Calibration", "Isotonic regression", "log_loss", "tables 1–5"),
    Claim("Neural Calibration", "Platt scaling", "field_rce", "tables 1–5"),
    Claim("Neural Calibration", "Model-1", "auc", "tables 1–5"),
    Claim("ILPS", "Platt scaling", "field_rce", "table 6"),
    Claim("Neural Calibration", "ILPS", "field_rce", "table 6"),
    Claim("Neural Calibration", "Neural Calibration, z only", "auc", "table 6"),
    Claim("Neural Calibration, inverted", "Base on development", "auc", "table 6"),
)
ONE_EPOCH_CLAIMS = (
    Claim("Neural Calibration, one epoch", "Model-1", "log_loss", "tables 1–5"),
    Claim("Neural Calibration, one epoch", "Platt scaling", "log_loss", "tables 1–5"),
    Claim("Neural Calibration, one epoch", "Platt scaling", "field_rce", "tables 1–5"),
    Claim("ILPS, one epoch", "Platt scaling", "field_rce", "table 6"),
)
QUESTIONS = (
    Claim("calibrate", "Model-1", "log_loss"),
    Claim("calibrate", "Platt scaling", "log_loss"),
    Claim("calibrate", "Neural Calibration", "log_loss"),
    Claim("UMC", "Neural Calibration", "log_loss"),
    Claim("SBCR", "Neural Calibration", "log_loss"),
    Claim("UMC", "calibrate", "log_loss"),
    Claim("SBCR", "calibrate", "log_loss"),
)


def claims_table(claims: Sequence[Claim], groups: Sequence[Group]) -> str:
    """On how many data sets each claim holds, its tests and its verdict, as Markdown.

    Args:
        claims: The claims, which are adjusted together.
        groups: The runs of all data sets.
    """
    head = ["row", "is better than", "in", "better", "beyond noise", "worse beyond noise"]
    head += ["p, sign", "p, Wilcoxon", "adjusted", "source", "verdict"]
    lines, p_values, directions = [], [], []
    for claim in claims:
        pairs = [(each, gain) for each in groups if (gain := difference(claim, each)) is not None]
        if not pairs:
            continue
        gains = [gain for _, gain in pairs]
        wins = sum(gain.value > 0 for gain in gains)
        relative = [gain.value / scale_of(claim, each) for each, gain in pairs]
        losses = sum(gain.value < 0 for gain in gains)
        p_values.append(sign_test(wins, losses))
        directions.append(wins - losses)
        line: list[Any] = [claim.winner, claim.loser, COLUMNS[claim.metric].title]
        line[-1] = line[-1].removesuffix(", %")
        line += [f"{wins} of {len(gains)}", str(sum(gain.low > 0 for gain in gains))]
        line.append(str(sum(gain.high < 0 for gain in gains)))
        lines.append([*line, f"{p_values[-1]:.2g}", f"{wilcoxon(relative):.2g}"])
        lines[-1] += ["", claim.source, ""]
    for line, p_value, direction in zip(lines, holm(p_values), directions, strict=True):
        line[8], line[10] = f"{p_value:.2g}", verdict(p_value, direction)
    return markdown_table(head, lines)


def difference(claim: Claim, group: Group) -> Estimate | None:
    """By how much the winner is better, over the common seeds; `None` without two of them."""
    names = (claim.winner, claim.loser) if claim.metric != "auc" else (claim.loser, claim.winner)
    return group.difference(*names, claim.metric)


def scale_of(claim: Claim, group: Group) -> float:
    """The unit of a gain: the loser's mean, or 1 for the AUC."""
    if claim.metric == "auc":
        return 1.0
    return group.mean(claim.loser, claim.metric, [claim.winner])
