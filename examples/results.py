"""The page of results of both papers, made from the ledgers of the studies.

    ./dev run python examples/results.py                        from output/ to examples/RESULTS.md
    ./dev run python examples/results.py --from output other    several folders of ledgers

The ledgers are written by `field_aware_calibration/tables.py` and by `clicks.py`, `stocks.py` and
`images.py` of `calibrated_metric`, each with its `--output`. The page starts with what the runs say
about each claim of the papers, by one rule for all of them; the tables follow.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
sys.path += [
    str(ROOT / "examples" / room) for room in ("field_aware_calibration", "calibrated_metric")
]
import clicks  # noqa: E402
import images  # noqa: E402
import stocks  # noqa: E402
import tables  # noqa: E402
import tables_markdown  # noqa: E402
from pairs import PairRow  # noqa: E402
from tables_markdown import BASE, COLUMNS, Group, gather  # noqa: E402

from keras_calibration.seeds import Ledger  # noqa: E402
from keras_calibration.statistics import Estimate, mean_difference  # noqa: E402
from markdown_table import markdown_table  # noqa: E402

PICTURE = "results.png"
FIELD_AWARE = "field_aware_calibration"
# Where each study keeps its ledgers below its `--output`.
STUDIES: dict[str, ModuleType] = {"*/clicks": clicks, "stocks/*": stocks, "images/*": images}
# A pair counts where the mean losses of all its seeds tell which pipeline is better, and where a
# single run does not tell it anyway.
MAX_P_VALUE, MAX_ACCURACY = 0.05, 0.985
# Pairs of fewer seeds say too little of single runs.
MIN_SEEDS = 10

TITLE = """
# Results

Both papers, re-run on public data by `results.py` from the ledgers of the studies
([tables of *Field-aware Calibration*](field_aware_calibration/README.md), [pairs of
*Calibration-then-Calculation*](calibrated_metric/README.md)). The original data (Avazu, Criteo and
Lending Club in full, Porto Seguro, Tencent, minute bars of US stocks) are not at hand: the figures
show whether a claim holds on other data and at a smaller size, not whether a published number is
right. Every script takes a data folder, so the originals can be put in their place.
"""
CLAIMS = f"""
## What *Field-aware Calibration* claims

A claim is *reproduced* if it holds on at least 80 % of the data sets, by the mean over the seeds,
and *partly* on at least half of them. "Beyond seed noise": the 95 % interval of the difference,
seed by seed, leaves out 0; it does not cover the choice of the test rows. The left part of the
picture shows the log loss of each row against that of {BASE}, on a scale that is linear up to 1 %.
"""
QUESTIONS = """
The methods of this package, and two that came after the paper and are said to beat it:
"""
KINDS = f"""
## What *Calibration-then-Calculation* claims

A calibrated loss tells the better of two pipelines more often than the plain loss, given one run
of each. Pairs of fewer than {MIN_SEEDS} seeds are left out. A pair counts if its mean losses over
all seeds differ with p < {MAX_P_VALUE}, so that the better pipeline is known, and if the plain loss
is less than {MAX_ACCURACY:.1%} accurate, so that there is something to gain. The accuracies are
means over these pairs. *Reproduced*: the papers' metric is more accurate on average, for at least
one pair beyond noise (bootstrap over the seeds, 95 %), and for none less accurate beyond noise.
*Partly*: on average alone. The right part of the picture has a dot for each pair that counts; above
the line, the calibrated loss is more accurate.
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


class Study(NamedTuple):
    """The runs of one study of pairs.

    Args:
        title: What was trained on what.
        module: The study's script.
        ledger: Its runs.
        rows: Its pairs of enough seeds.
    """

    title: str
    module: ModuleType
    ledger: Ledger
    rows: list[PairRow]


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
QUESTIONS_ASKED = (
    Claim("calibrate", "Model-1", "log_loss"),
    Claim("calibrate", "Platt scaling", "log_loss"),
    Claim("calibrate", "Neural Calibration", "log_loss"),
    Claim("UMC", "Neural Calibration", "log_loss"),
    Claim("SBCR", "Neural Calibration", "log_loss"),
    Claim("UMC", "calibrate", "log_loss"),
    Claim("SBCR", "calibrate", "log_loss"),
    Claim("UMC", "UMC without its loss", "log_loss"),
)


def main() -> None:
    """Writes the page and its pictures."""
    arguments = parse_arguments()
    groups, studies = find_groups(arguments.folders), find_studies(arguments.folders)
    if not groups and not studies:
        raise SystemExit(
            f"No runs in {[str(folder) for folder in arguments.folders]}: run the studies first, "
            "and pass the folders that were their --output."
        )
    arguments.page.write_text(make_page(groups, studies), encoding="utf-8")
    draw(groups, studies, arguments.page.with_name(PICTURE))
    print(f"Wrote {arguments.page} and {PICTURE} beside it.")


def parse_arguments() -> argparse.Namespace:
    """The command-line arguments."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--from",
        dest="folders",
        type=Path,
        nargs="+",
        default=[Path("output")],
        help="folders given to the studies as --output (default: output)",
    )
    parser.add_argument(
        "--page", type=Path, default=ROOT / "examples" / "RESULTS.md", help="(default: %(default)s)"
    )
    return parser.parse_args()


def find_groups(folders: Sequence[Path]) -> list[Group]:
    """The runs of `tables.py`, by data set and settings."""
    ledgers = [
        Ledger(folder / FIELD_AWARE) for folder in folders if (folder / FIELD_AWARE).is_dir()
    ]
    return [group for ledger in ledgers for group in gather(ledger, list(tables.METHODS))]


def find_studies(folders: Sequence[Path]) -> list[Study]:
    """The other studies that have runs, in the order of `STUDIES`."""
    found = []
    for pattern, module in STUDIES.items():
        for folder in (match for root in folders for match in sorted(root.glob(pattern))):
            ledger = Ledger(folder)
            if rows := module.rows_of(ledger):
                enough = [row for row in rows if row.num_seeds >= MIN_SEEDS]
                found.append(Study(module.title(ledger), module, ledger, enough))
    return found


def make_page(groups: Sequence[Group], studies: Sequence[Study]) -> str:
    """The page as Markdown.

    Args:
        groups: Result of `find_groups`.
        studies: Result of `find_studies`.
    """
    parts = [TITLE, f"![Both papers at a glance]({PICTURE})"]
    if groups:
        parts += [CLAIMS, claims_table(PAPER_CLAIMS, groups, with_verdict=True)]
        parts += [QUESTIONS, claims_table(QUESTIONS_ASKED, groups, with_verdict=False)]
    if studies:
        parts += [KINDS, kinds_table(studies)]
    if groups:
        parts += ["## The tables of *Field-aware Calibration*", tables_markdown.page(groups)]
    if studies:
        parts.append("## The tables of *Calibration-then-Calculation*")
    for study in studies:
        parts += [f"### {study.title}", study.module.markdown(study.ledger)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def claims_table(claims: Sequence[Claim], groups: Sequence[Group], with_verdict: bool) -> str:
    """On how many data sets each claim holds, as Markdown."""
    head = ["row", "is better than", "in", "by the mean", "beyond seed noise", "worse beyond it"]
    lines = []
    for claim in claims:
        differences = [found for group in groups if (found := difference(claim, group)) is not None]
        if not differences:
            continue
        number = len(differences)
        better = sum(found.value > 0 for found in differences)
        line = [claim.winner, claim.loser, COLUMNS[claim.metric].title.removesuffix(", %")]
        line += [f"{better} of {number}", str(sum(found.low > 0 for found in differences))]
        line.append(str(sum(found.high < 0 for found in differences)))
        if with_verdict:
            line += [claim.source, verdict(better / number)]
        lines.append(line)
    return markdown_table([*head, *(["source", "verdict"] if with_verdict else [])], lines)


def difference(claim: Claim, group: Group) -> Estimate | None:
    """By how much the winner is better, over the common seeds; `None` without two of them."""
    seeds = group.seeds(claim.winner, claim.loser)
    if len(seeds) < 2:
        return None
    winner, loser = (
        group.values(name, claim.metric, seeds) for name in (claim.winner, claim.loser)
    )
    first, second = (loser, winner) if claim.metric == "auc" else (winner, loser)
    return mean_difference(first, second, paired=True)


def verdict(share: float) -> str:
    """What the share of data sets on which a claim holds amounts to."""
    return "reproduced" if share >= 0.8 else "partly" if share >= 0.5 else "not reproduced"


def kinds_table(studies: Sequence[Study]) -> str:
    """For each kind of pairs, whether the papers' metric is more accurate, as Markdown."""
    lines = []
    for study in studies:
        for kind in dict.fromkeys(row.pair.kind for row in study.rows):
            rows = [row for row in study.rows if row.pair.kind == kind]
            counted = [row for row in rows if counts(row)]
            line = [study.title, kind, f"{len(counted)} of {len(rows)}"]
            for number in (0, 1, 2):
                line.append(mean_percent([accuracy(row, number) for row in counted]))
            lines.append([*line, kind_verdict(counted)])
    head = ["study", "kind", "pairs that count", "plain loss, %", "papers' metric, %", "ours, %"]
    return markdown_table([*head, "verdict"], lines)


def counts(row: PairRow) -> bool:
    """Whether the better pipeline is known, and a single plain loss does not always show it."""
    known = row.difference.p_value is not None and row.difference.p_value < MAX_P_VALUE
    return known and accuracy(row, 0) < MAX_ACCURACY


def accuracy(row: PairRow, number: int) -> float:
    """Accuracy of the plain loss (0), of the papers' metric (1) or of ours (2)."""
    return list(row.metrics.values())[number].accuracy.value


def kind_verdict(rows: Sequence[PairRow]) -> str:
    """Whether the papers' metric is more accurate than the plain loss."""
    gains = [list(row.metrics.values())[1].gain for row in rows]
    if not gains:
        return "open"
    mean = sum(gain.value for gain in gains) / len(gains)
    if mean <= 0:
        return "not reproduced"
    if any(gain.low > 0 for gain in gains) and not any(gain.high < 0 for gain in gains):
        return "reproduced"
    return "partly"


def mean_percent(values: Sequence[float]) -> str:
    """The mean in percent, or a dash."""
    return f"{100 * sum(values) / len(values):.1f}" if values else "–"


def draw(groups: Sequence[Group], studies: Sequence[Study], path: Path) -> None:
    """Draws both papers' results side by side.

    Args:
        groups: Result of `find_groups`.
        studies: Result of `find_studies`.
        path: File of the picture.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 5), layout="constrained")
    names = [name for name in tables.METHODS if any(name in group.runs for group in groups)][1:]
    for place, name in enumerate(names):
        found = [
            group.mean(name, "log_loss", [BASE]) / group.mean(BASE, "log_loss", [name]) - 1
            for group in groups
            if group.seeds(name, BASE)
        ]
        percents = [100 * value for value in found]
        left.plot(percents, [place] * len(found), "o", color="C0", ms=5, alpha=0.5)
    left.set_yticks(range(len(names)), names, fontsize=8)
    left.invert_yaxis()
    left.axvline(0, color="0.7", lw=1)
    left.set_xscale("symlog", linthresh=1)
    ticks = [tick for size in (0.5, 1, 2, 5, 10, 20) for tick in (-size, size)]
    low, high = left.get_xlim()
    left.set_xticks([tick for tick in (0, *ticks) if low <= tick <= high])
    left.xaxis.set_major_formatter("{x:g}")
    left.minorticks_off()
    left.set_xlabel(f"log loss against {BASE}, % (a dot: a data set)")
    for study in studies:
        counted = [row for row in study.rows if counts(row)]
        plain, calibrated = ([100 * accuracy(row, k) for row in counted] for k in (0, 1))
        if counted:
            right.plot(plain, calibrated, "o", ms=5, alpha=0.7, label=study.title)
    right.axline((50, 50), slope=1, color="0.7", lw=1)
    right.set_xlabel("accuracy of the plain loss, % (a dot: a pair)")
    right.set_ylabel("accuracy of the papers' metric, %")
    if right.get_legend_handles_labels()[0]:
        right.legend(fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    main()
