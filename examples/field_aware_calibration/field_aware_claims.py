"""What the tables of `field_aware_calibration` say about the claims of the paper."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from tables_markdown import BASE, COLUMNS, PLATT, Group

from keras_calibration.statistics import Estimate
from markdown_table import markdown_table
from verdicts import Effect, hartung_knapp, interval_text

# Of a 95 % interval.
Z = 1.96
TEXT = """
Estimates without verdicts, over 13 small tables. *Better*: on how many tables the mean over the
seeds is better. *Beyond noise*: on how many the 95 % interval of a two-way bootstrap over seeds and
test rows leaves out 0. *Mean gain*: in percent of the loser's value (for the AUC in points), with
the 90 % interval of Hartung and Knapp. *Neural Calibration* and *ILPS* have the paper's schedule,
one epoch, which is 63 to 75 steps here. On movielens, whose rows drift, nearly every method that is
fitted to later rows loses. Observation 5, that field errors move more than the log loss, shows in
the gains of the first lines. Histogram binning has 20 bins of equal numbers of rows; the paper says
"predefined partitions".
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


PAPER, TO_THE_END = "Neural Calibration", "Neural Calibration to the end"
# With the paper's schedule; the sections are those that say so.
PAPER_CLAIMS = (
    *(
        Claim(PAPER, other, metric, "5.4")
        for other in (BASE, "Model-2", PLATT, "Isotonic regression")
        for metric in ("log_loss", "brier", "field_ece", "field_rce", "auc")
    ),
    Claim("Model-2", BASE, "auc", "observation 1"),
    Claim("Model-2", BASE, "field_ece", "observation 1: not better"),
    Claim("Model-2", PLATT, "log_loss", "observation 2"),
    Claim("Model-2", PLATT, "field_rce", "observation 2: not better"),
    Claim(PLATT, "Model-2", "field_rce", "observation 3"),
    Claim(PLATT, "Model-2", "auc", "observation 3: not better"),
    Claim(PLATT, BASE, "field_rce", "observation 4: not better"),
    Claim("Isotonic regression", BASE, "field_rce", "observation 4: not better"),
    Claim("ILPS", PLATT, "field_rce", "5.5"),
)
# The same, trained until held-out rows stop it.
TO_THE_END_CLAIMS = (
    *(Claim(TO_THE_END, other, "log_loss", "5.4") for other in (BASE, PLATT, PAPER)),
    Claim(TO_THE_END, BASE, "auc", "5.4"),
    Claim("ILPS to the end", PLATT, "field_rce", "5.5"),
    Claim("ILPS to the end", "Histogram binning", "field_rce", "5.5"),
    Claim(TO_THE_END, "ILPS to the end", "field_rce", "5.6"),
    Claim(BASE, "Base on development", "auc", "5.6"),
    Claim(f"{TO_THE_END}, z only", BASE, "field_rce", "5.7"),
    Claim(TO_THE_END, f"{TO_THE_END}, z only", "auc", "5.7"),
    Claim(f"{TO_THE_END}, inverted", "ILPS to the end, inverted", "field_rce", "5.8"),
    Claim(f"{TO_THE_END}, inverted", "Base on development", "auc", "5.8"),
)
QUESTIONS = (
    *(
        Claim(row, other, "log_loss")
        for row in ("Our NeuralCalibration", "calibrate", "UMC", "SBCR")
        for other in (BASE, PLATT, PAPER, TO_THE_END)
    ),
    Claim("UMC", "calibrate", "log_loss"),
    Claim("SBCR", "calibrate", "log_loss"),
)


def claims_table(claims: Sequence[Claim], groups: Sequence[Group]) -> str:
    """On how many data sets each claim holds, and its mean gain, as Markdown."""
    head = ["row", "is better than", "in", "better", "beyond noise", "worse beyond noise"]
    lines = []
    for claim in claims:
        pairs = [(group, gain) for group in groups if (gain := difference(claim, group))]
        if not pairs:
            continue
        gains = [gain for _, gain in pairs]
        wins = sum(gain.value > 0 for gain in gains)
        line: list[Any] = [claim.winner, claim.loser, COLUMNS[claim.metric].title]
        line[-1] = line[-1].removesuffix(", %")
        line += [f"{wins} of {len(gains)}", str(sum(gain.low > 0 for gain in gains))]
        line.append(str(sum(gain.high < 0 for gain in gains)))
        lines.append([*line, interval_text(mean_gain(claim, pairs), 100, 2), claim.source])
    return markdown_table([*head, "mean gain, %", "source"], lines)


def mean_gain(claim: Claim, pairs: Sequence[tuple[Group, Estimate]]) -> Effect | None:
    """The mean relative gain over data sets; None without two data sets of known error."""
    scaled = [(gain, scale_of(claim, group)) for group, gain in pairs if gain.high > gain.low]
    if len(scaled) < 2:
        return None
    values = [gain.value / scale for gain, scale in scaled]
    return hartung_knapp(values, [error_of(gain) / scale for gain, scale in scaled])


def error_of(estimate: Estimate) -> float:
    """A standard error, from a 95 % interval."""
    return (estimate.high - estimate.low) / (2 * Z)


def difference(claim: Claim, group: Group) -> Estimate | None:
    """By how much the winner is better, over the common seeds; `None` without two of them."""
    names = (claim.winner, claim.loser) if claim.metric != "auc" else (claim.loser, claim.winner)
    return group.difference(*names, claim.metric)


def scale_of(claim: Claim, group: Group) -> float:
    """The unit of a gain: the loser's mean, or 1 for the AUC."""
    if claim.metric == "auc":
        return 1.0
    return group.mean(claim.loser, claim.metric, [claim.winner])
