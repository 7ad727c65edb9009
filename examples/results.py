"""The page of results of both papers, made from the runs of the studies.

    ./dev run python examples/results.py                        from examples/ledgers
    ./dev run python examples/results.py --from output other    from folders of ledgers of your own

The archives in `examples/ledgers` hold the runs behind the page in the repository: page and
pictures are rebuilt from them alone. They are written by `ledger_archive.py` from the ledgers of
`field_aware_calibration/tables.py` and of `clicks.py` and `stocks.py` in `calibrated_metric`, each
with its `--output`.
"""

import argparse
import json
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
import full_tables  # noqa: E402
import lending_club  # noqa: E402
import pair_claims  # noqa: E402
import primary_field_aware  # noqa: E402
import primary_page  # noqa: E402
import share_page  # noqa: E402
import stocks  # noqa: E402
import synthetic  # noqa: E402
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
from pairs import Pair, PairRow  # noqa: E402
from tables_markdown import Group, gather  # noqa: E402

import ledger_archive  # noqa: E402
from keras_calibration.seeds import Ledger  # noqa: E402

ARCHIVES = ROOT / "examples" / "ledgers"
PICTURE, FIGURE_1 = "distance.png", "figure_1.png"
# The pair of the paper's figure 1.
BATCH_NORMALIZATION = Pair("batch_normalization", "normalized", "xdeepfm")
FIELD_AWARE, LENDING_CLUB = "field_aware_calibration", "lending_club"
SYNTHETIC = ROOT / "examples" / "calibrated_metric" / "synthetic.json"
CHANGED = ROOT / "examples" / "changed_verdicts.md"
# Where each study keeps its ledgers below its `--output`.
STUDIES: dict[str, ModuleType] = {"clicks/*": clicks, "stocks/*": stocks}

TITLE = """
# Results

Both papers, re-run on public data: [tables of *Field-aware
Calibration*](field_aware_calibration/README.md), [pairs of
*Calibration-then-Calculation*](calibrated_metric/README.md). The original data (Avazu, Criteo and
Lending Club in full, Porto Seguro, Tencent, minute bars of US stocks) are not at hand: the figures
show whether a claim holds on other data and at a smaller size, not whether a published number is
right. Every script takes a data folder, so the originals can be put in their place.
"""
HYPOTHESES = "## Primary hypotheses"
SOURCES = """
## The runs behind this page

Every run is a record in `examples/ledgers`; `./dev run python examples/results.py` makes this page
and its pictures from them, and nothing else.
"""
CLAIMS = "## Comparisons of *Field-aware Calibration*"
TO_THE_END = """
The same with another schedule, which is ours: a curve is trained to its optimum, and a network
until a held-out tenth of the development rows stops it.
"""
OURS = """
The methods of this package, and two that came after the paper and are said to beat it:
"""
KINDS = "## Kinds of pairs of *Calibration-then-Calculation*"
LENDING_CLUB_TITLE = "## Lending Club, with and without columns known only afterwards"
SYNTHETIC_TEXT = """
## The synthetic experiments, and the law behind them

A run of B.1 estimates d slopes and a mean from n rows. Calibration removes the noise of the mean,
one of d + 1 parameters, so the ratio of standard deviations over the seeds is close to
√(d / (d + 1)); the derivation is in the [README](calibrated_metric/README.md). The third table
shows what gain in accuracy a ratio brings, and which ratio the published gains would need; the last
one measures the ratio, and the papers' Theorem 4 and Corollary 5.
"""
FIGURE_1_TEXT = """
The paper's figure 1, with and without batch normalization: the losses of all runs.
"""
NOT_RUN = """
## Not run, and why

- **Images** (section 5.4 of one version): its claims come from the over-confidence of 200 epochs on
  all of CIFAR-10 with ResNet-18 to ResNet-152 and DenseNet-121, which is beyond a machine
  without a GPU. A few epochs on small images do not test them, so they are *not tested*;
  `images.py` has the flags for the papers' sizes.
- **Stocks** (section 5.5 and tables 7 and 20 to 23): minute bars are not at hand. The pairs are run
  on daily bars, which is another question: estimates without a verdict. Left out there: 5 and 6
  layers, hidden sizes 112 and 144 and 7 epochs.
- **Avazu and Criteo** in full: both tables have 10,000 rows here. Batch normalization in batches of
  8 is not among the primary runs, since it has a lower AUC there than the same network without.
- **Porto Seguro and Tencent** (tables 4 and 5 of Pan et al.): not at hand.
- Of the tables at hand, `tmall_repeat_261k` has a single column that may be used, so that a base
  model and a field would be the same, and `employment_ma_278k` is another model's scores by year.
"""
AXIS = "## When does calibrating the metric help?"


def main() -> None:
    """Writes the page and its pictures."""
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
        parts = [TITLE, *primary_parts(groups, folders, arguments.page.with_name(PICTURE))]
        parts += page_parts(groups, studies)
        parts += other_parts(folders)
        parts += [*source_parts(archives), *table_parts(groups, studies)]
        page = "\n\n".join(part.strip() for part in parts) + "\n"
        arguments.page.write_text(page, encoding="utf-8")
        if figure_1 := figure_1_of(studies):
            pair_claims.draw_figure_1(*figure_1, arguments.page.with_name(FIGURE_1))
    print(f"Wrote {arguments.page} and its pictures beside it.")


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
    found = []
    for pattern, module in STUDIES.items():
        for folder in (match for root in folders for match in sorted(root.glob(pattern))):
            ledger = Ledger(folder)
            if rows := module.rows_of(ledger):
                published = module.published_of(ledger)
                by_calibrated = module.rows_of(ledger, list(module.CALIBRATED)[-1])
                as_published = module.is_split_as_published(ledger)
                kinds = (rows, by_calibrated, published, as_published)
                found.append(Study(module.title(ledger), module, ledger, *kinds))
    return found


def figure_1_of(studies: Sequence[Study]) -> tuple[Study, PairRow] | None:
    """The first study that has the pair of the paper's figure 1, and its row."""
    found = (
        (study, row) for study in studies for row in study.rows if row.pair == BATCH_NORMALIZATION
    )
    return next(found, None)


def primary_parts(groups: Sequence[Group], folders: Sequence[Path], picture: Path) -> list[str]:
    """The hypotheses that have verdicts, as Markdown.

    Args:
        groups: Result of `find_groups`.
        folders: Folders that may have the runs of `primary_clicks.py`.
        picture: File of the gains against the distance of pipelines, which is drawn.
    """
    found, by_papers = (
        primary_page.results_of([folder / "primary" for folder in folders], name)
        for name in (primary_page.OURS, primary_page.PAPERS)
    )
    points = [point for folder in folders for point in share_page.read_points(folder / "share")]
    in_time = [runs for folder in folders for runs in time_page.read_runs(folder / "time")]
    parts = [
        HYPOTHESES,
        primary_page.markdown(found, by_papers),
        share_page.markdown(points, before=primary_page.verdicts_of(found)),
        *(share_page.markdown_again(folder) for folder in folders if (folder / "share").is_dir()),
    ]
    if pairs := distance_page.groups_of(found, folders):
        distance_page.draw(pairs, picture)
        parts += [distance_page.TEXT, f"![Gain against distance]({picture.name})"]
        parts.append(distance_page.markdown(pairs))
    if in_time:
        parts.append(time_page.markdown(in_time))
    if groups:
        by_rows = {
            name: runs
            for folder in folders
            for name, runs in development_rows.groups_of(
                Ledger(folder / development_rows.FOLDER)
            ).items()
        }
        parts.append(primary_field_aware.markdown(groups, by_rows))
    parts += [
        primary_field_aware.markdown_again(Ledger(folder / full_tables.FOLDER))
        for folder in folders
        if (folder / full_tables.FOLDER).is_dir()
    ]
    return parts


def page_parts(groups: Sequence[Group], studies: Sequence[Study]) -> list[str]:
    """The estimates without verdicts, as Markdown.

    Args:
        groups: Result of `find_groups`.
        studies: Result of `find_studies`.
    """
    parts = []
    if groups:
        parts += [CLAIMS, field_aware_claims.TEXT, claims_table(PAPER_CLAIMS, groups)]
        parts += [TO_THE_END, claims_table(TO_THE_END_CLAIMS, groups)]
        parts += [OURS, claims_table(QUESTIONS, groups)]
    if studies:
        parts += [KINDS, pair_claims.TEXT]
        parts.append(pair_claims.kinds_table(pair_claims.kind_lines(studies)))
        if figure_1_of(studies):
            parts += [FIGURE_1_TEXT, f"![Batch normalization]({FIGURE_1})"]
        parts += [AXIS, pair_claims.AXIS_TEXT, pair_claims.axis_table(studies)]
    return parts


def other_parts(folders: Sequence[Path]) -> list[str]:
    """The studies that have no tables of their own: Lending Club, and the synthetic one."""
    parts = []
    for folder in (folder / LENDING_CLUB for folder in folders):
        if folder.is_dir():
            parts += [LENDING_CLUB_TITLE, lending_club.section(Ledger(folder))]
    stored = json.loads(SYNTHETIC.read_text(encoding="utf-8"))
    changed = CHANGED.read_text(encoding="utf-8")
    parts += [SYNTHETIC_TEXT, synthetic.section(stored)]
    return [*parts, changed, NOT_RUN]


def source_parts(archives: Sequence[ledger_archive.Archive]) -> list[str]:
    """What made the runs of the archives, if there are any."""
    if not archives:
        return []
    return [SOURCES, ledger_archive.about_table([archive.about for archive in archives])]


def table_parts(groups: Sequence[Group], studies: Sequence[Study]) -> list[str]:
    """The end of the page: the tables of all studies.

    Args:
        groups: Result of `find_groups`.
        studies: Result of `find_studies`.
    """
    parts = []
    if groups:
        parts += ["## The tables of *Field-aware Calibration*", tables_markdown.page(groups)]
    if studies:
        parts.append("## The tables of *Calibration-then-Calculation*")
    for study in studies:
        parts += [f"### {study.title}", study.module.markdown(study.ledger)]
    return parts


if __name__ == "__main__":
    main()
