"""The pages of results of both papers, made from the runs of the studies.

    ./dev run python examples/results.py                        from examples/ledgers
    ./dev run python examples/results.py --from output other    from folders of ledgers of your own

The archives in `examples/ledgers` hold the runs behind the page in the repository: pages and
picture are rebuilt from them alone. They are written by `ledger_archive.py` from the ledgers of
`field_aware_calibration/tables.py` and of `clicks.py` and `stocks.py` in `calibrated_metric`, each
with its `--output`.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]
sys.path += [
    str(ROOT / "examples" / room) for room in ("field_aware_calibration", "calibrated_metric")
]
import clicks  # noqa: E402
import development_rows  # noqa: E402
import distance_page  # noqa: E402
import field_aware_claims  # noqa: E402
import full_page  # noqa: E402
import full_tables  # noqa: E402
import lending_club  # noqa: E402
import pair_claims  # noqa: E402
import primary_field_aware  # noqa: E402
import primary_page  # noqa: E402
import share_page  # noqa: E402
import stocks  # noqa: E402
import tables  # noqa: E402
import tables_markdown  # noqa: E402
import time_page  # noqa: E402
from field_aware_claims import (  # noqa: E402
    PAPER_CLAIMS,
    QUESTIONS,
    TO_THE_END_CLAIMS,
    claims_table,
)
from pair_claims import Study  # noqa: E402
from tables_markdown import Group, gather  # noqa: E402

import ledger_archive  # noqa: E402
import papers_data  # noqa: E402
from keras_calibration.seeds import Ledger  # noqa: E402
from markdown_table import table_of  # noqa: E402

ARCHIVES = ROOT / "examples" / "ledgers"
TABLES, PICTURE = "TABLES.md", "distance.png"
FIELD_AWARE, LENDING_CLUB = "field_aware_calibration", "lending_club"
# Parts of the pages that no program computes.
HELPS, NOT_RUN = (ROOT / "examples" / f"{name}.md" for name in ("when_it_helps", "not_run"))
# Where each study keeps its ledgers below its `--output`.
STUDIES: dict[str, ModuleType] = {"clicks/*": clicks, "stocks/*": stocks}

TITLE = """
# Results

We ran both papers again on public data, with the programs for [*Field-aware
Calibration*](field_aware_calibration/README.md) and
[*Calibration-then-Calculation*](calibrated_metric/README.md). The papers' own data in full are not
here. So this page tells whether a claim holds on other data and at a smaller size, not whether a
published number is right. [Another page](TABLES.md) has the tables of every data set.

## Verdicts
"""
RULES = """
Every hypothesis was [registered](HYPOTHESES.md) before its runs; only F1 had its runs already. The
tables of A2, D2, F4 to F6 and S2, and six of F1′'s nine, had been seen in other runs. A gain above
0, a ratio below 1, and a falling loss ratio speak for the claim. Intervals are 90 %. Lines marked
"ours" are no claims of the papers.

| verdict | meaning |
| --- | --- |
| reproduced | one-sided p ≤ 5 %, and every hypothesis that it depends on was reproduced |
| not reproduced | otherwise, if the interval lies below half of the published effect |
| undecided | neither |
| not tested | the networks have a lower held-out AUC than a logistic regression on the same rows |

In the first plan (V1, A1, D1, E1; F1, F2), a hypothesis depends on those before it. In the second
(A2; F1′, F3, S1) and the third (D2, E2; F4, F5, F6, S2), each stands alone. T1 has estimates only.
"""
HYPOTHESES = "## Primary hypotheses"
# Paper → hypothesis → what it is about, in the order of the first table of the page.
VERDICTS = {
    "*Calibration-then-Calculation* (Fan et al.)": {
        "V1": "runs differ less: ratio of standard deviations",
        "A1": "a single run shows the better pipeline more often: points, three tables of clicks",
        "A2": "the same on nine other tables, pipelines further apart on average",
        "D1": "ours: the gain rises with the bias share, points from 0 to 1",
        "D2": "ours: D1 on new runs, without batch normalization",
        "E1": "ours: no gain and no harm below a share of 0.1, points",
        "E2": "ours: E1 on new runs, without batch normalization",
    },
    "*Field-aware Calibration* (Pan et al.)": {
        "F1": "Neural Calibration lowers field errors: ratio to Model-1, 13 small tables",
        "F1′": "the same on nine tables in full, less the floor",
        "F3": "and below Platt scaling's: ratio",
        "F4": "ILPS alone is below Platt scaling in Field-RCE: ratio (5.5)",
        "F5": "AUC above Platt scaling's: points (5.4)",
        "F6": "AUC comparable with Model-2's: points (5.4)",
        "S2": "robust where data shift: Field-RCE in the order of time, ratio to Platt's (5.8)",
        "S1": "ours, against 5.8: its log loss suffers in the order of time, %",
        "F2": "ours: more development rows favour it over Platt scaling, slope in %",
    },
}
SOURCES = """
## The runs behind this page

Every run is a record in `examples/ledgers`. `./dev run python examples/results.py` makes this page,
the tables and the picture from these records alone. *Commits*: the newest ones when the first and
the last run were recorded.
"""
CLAIMS = "## Comparisons of *Field-aware Calibration*"
TO_THE_END = """
The same with our schedule: a curve is trained to its optimum, and a held-out tenth of the
development rows stops a network.
"""
OURS = """
The methods of this package, and two later ones that are said to beat the paper's:
"""
KINDS = "## Kinds of pairs of *Calibration-then-Calculation*"
LENDING_CLUB_TITLE = "## Lending Club, with and without columns known only afterwards"
SYNTHETIC_TEXT = """
## The synthetic experiments

Calibration removes the noise of one of d + 1 parameters, so the ratio of standard deviations over
the seeds is close to √(d / (d + 1)). The [derivation, and the measured ratios, gains, Theorem 4 and
Corollary 5](calibrated_metric/README.md), are on the page of that study.
"""
TABLES_TITLE = """
# Tables of every data set

The figures behind the [results](RESULTS.md), made by the same program from the same runs.
"""


def main() -> None:
    """Writes both pages and the picture."""
    arguments = parse_arguments()
    with tempfile.TemporaryDirectory() as temporary:
        folders, archives = arguments.folders, []
        if folders is None:
            folders = [Path(temporary)]
            archives = ledger_archive.unpack_all(ARCHIVES, folders[0])
        groups, studies = find_groups(folders), find_studies(folders)
        if not groups and not studies:
            raise SystemExit(
                f"No runs in {[str(folder) for folder in folders]}: run the studies first, "
                "and pass the folders that were their --output."
            )
        main_page, tables_page = [TITLE], [TABLES_TITLE]
        primary_parts(groups, folders, arguments.page.with_name(PICTURE), main_page, tables_page)
        page_parts(groups, studies, main_page)
        main_page += other_parts(folders, archives)
        table_parts(groups, studies, tables_page)
        for parts, file in (
            (main_page, arguments.page),
            (tables_page, arguments.page.with_name(TABLES)),
        ):
            text = "\n\n".join(part.strip() for part in parts) + "\n"
            file.write_text(text, encoding="utf-8")
    print(f"Wrote {arguments.page}, {TABLES} and {PICTURE}.")


def parse_arguments() -> argparse.Namespace:
    """The command-line arguments."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--from",
        dest="folders",
        type=Path,
        nargs="+",
        help="folders given to the studies as --output (default: the archives in the repository)",
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
    studies = []
    for pattern, module in STUDIES.items():
        for folder in (match for root in folders for match in sorted(root.glob(pattern))):
            ledger = Ledger(folder)
            if rows := module.rows_of(ledger):
                published = module.published_of(ledger)
                studies.append(Study(module.title(ledger), module, ledger, rows, published))
    return studies


def primary_parts(
    groups: Sequence[Group],
    folders: Sequence[Path],
    picture: Path,
    page: list[str],
    tables_page: list[str],
) -> None:
    """Adds the hypotheses to the pages: the table of verdicts, then a part for each.

    Args:
        groups: Result of `find_groups`.
        folders: Folders that may have the runs of `primary_clicks.py`.
        picture: File of the gains against the distance of pipelines, which is drawn.
        page: Parts of the page of results.
        tables_page: Parts of the page of tables.
    """
    ours, by_papers = (
        primary_page.results_of([folder / "primary" for folder in folders], name)
        for name in (primary_page.OURS, primary_page.PAPERS)
    )
    points = [point for folder in folders for point in share_page.read_points(folder / "share")]
    in_time = [runs for folder in folders for runs in time_page.read_runs(folder / "time")]
    verdicts: list[dict[str, str]] = []
    parts = []

    def add(text: str, lines: list[dict[str, str]]) -> None:
        """Adds lines to the verdicts, and a part with their table."""
        verdicts.extend(line for line in lines if line["hypothesis"])
        parts.extend([text, table_of(lines)])

    if ours:
        add(primary_page.markdown(ours, by_papers), primary_page.hypotheses(ours, by_papers))
        tables_page += primary_page.details(ours, by_papers)
    if points:
        before = primary_page.verdicts_of(ours)
        add(share_page.D1_E1_TEXT, share_page.hypotheses_d1_e1(points, before=before))
        tables_page += share_page.details(points)
    for folder in (path for path in folders if (path / "share").is_dir()):
        lines, details = share_page.hypotheses_a2(folder)
        add(share_page.A2_TEXT, lines)
        tables_page += details
        add(share_page.D2_E2_TEXT, share_page.hypotheses_d2_e2(folder))
    if pairs := distance_page.groups_of(ours, folders):
        distance_page.draw(pairs, picture)
        parts += [distance_page.TEXT, f"![Gain against distance]({picture.name})"]
        parts += [distance_page.markdown(pairs), distance_page.NORMALIZATION_TEXT]
        parts.append(distance_page.normalization_table(pairs))
    if in_time:
        parts.append(time_page.markdown(in_time))
    if groups:
        ledgers = [Ledger(folder / development_rows.FOLDER) for folder in folders]
        by_rows = dict(
            item for ledger in ledgers for item in development_rows.groups_of(ledger).items()
        )
        lines, by_table = primary_field_aware.hypotheses(groups, by_rows)
        add(primary_field_aware.TEXT, lines)
        parts.append(development_rows.markdown(by_rows))
        tables_page += ["## F1, by table", "Ratios of the errors less the floor.", by_table]
    for folder in (path for path in folders if (path / full_tables.FOLDER).is_dir()):
        ledger = Ledger(folder / full_tables.FOLDER)
        add(primary_field_aware.IN_FULL_TEXT, primary_field_aware.hypotheses_in_full(ledger))
        parts.append(primary_field_aware.measures(ledger))
        again = Ledger(folder / full_tables.AGAIN)
        add(full_page.TEXT, full_page.hypotheses(again))
        parts += [text] if (text := full_page.columns(again)) else []
        tables_page += ["## F1′ and F3, by table", primary_field_aware.by_table(ledger)]
    page += [verdict_table(verdicts), RULES, HYPOTHESES, *parts]


def verdict_table(lines: Sequence[dict[str, str]]) -> str:
    """A line for each hypothesis, by paper; the last of its own lines has the verdict."""
    rows = []
    for paper, claims in VERDICTS.items():
        rows.append({"claim": f"**{paper}**"})
        for name, claim in claims.items():
            if own := [line for line in lines if line["hypothesis"] == name]:
                row = {"hypothesis": name, "claim": claim}
                for column in ("published", "here"):
                    cells = dict.fromkeys(line.get(column, "") for line in own)
                    row[column] = "; ".join(cell for cell in cells if cell)
                rows.append(row | {"verdict": own[-1]["verdict"]})
    head = ("hypothesis", "claim", "published", "here", "verdict")
    return table_of([{name: row.get(name, "") for name in head} for row in rows])


def page_parts(groups: Sequence[Group], studies: Sequence[Study], page: list[str]) -> None:
    """Adds the estimates without verdicts."""
    if studies:
        page.append(HELPS.read_text(encoding="utf-8"))
        lines = pair_claims.kind_lines(studies)
        page += [KINDS, pair_claims.TEXT, pair_claims.kinds_table(pair_claims.totals(lines))]
    if groups:
        page += [CLAIMS, field_aware_claims.TEXT, claims_table(PAPER_CLAIMS, groups)]
        page += [TO_THE_END, claims_table(TO_THE_END_CLAIMS, groups)]
        page += [OURS, claims_table(QUESTIONS, groups)]


def other_parts(folders: Sequence[Path], archives: Sequence[ledger_archive.Archive]) -> list[str]:
    """Lending Club, the synthetic study, what was not run, and what made the runs."""
    parts = []
    for folder in (folder / LENDING_CLUB for folder in folders):
        if folder.is_dir():
            parts += [LENDING_CLUB_TITLE, lending_club.section(Ledger(folder))]
    parts += [SYNTHETIC_TEXT, NOT_RUN.read_text(encoding="utf-8")]
    parts += [papers_data.TEXT, papers_data.markdown()]
    if archives:
        abouts = [archive.about for archive in archives]
        parts += [SOURCES, ledger_archive.about_studies(abouts)]
    return parts


def table_parts(groups: Sequence[Group], studies: Sequence[Study], tables_page: list[str]) -> None:
    """Adds the tables of all studies."""
    if groups:
        tables_page += ["## The tables of *Field-aware Calibration*", tables_markdown.page(groups)]
    if studies:
        kinds = pair_claims.kinds_table(pair_claims.kind_lines(studies))
        tables_page += [pair_claims.KINDS_TEXT, kinds]
        tables_page += ["## The tables of *Calibration-then-Calculation*", clicks.DIFFERENCES]
    for study in studies:
        tables_page += [f"### {study.title}", study.module.markdown(study.ledger)]


if __name__ == "__main__":
    main()
