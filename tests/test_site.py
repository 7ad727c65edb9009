"""The site lists every public name, and the links of all pages of the repository lead somewhere."""

import re
from pathlib import Path

import pytest

from test_public_names import ROOMS, TOP

ROOT = Path(__file__).parents[1]
FOLDERS = ["docs", "benchmarks", "examples", "savedmodels"]
PAGES = [
    *ROOT.glob("*.md"),
    *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md")),
]


def test_the_reference_lists_every_public_name_once():
    listed = [
        name.rpartition(".")[2]
        for page in (ROOT / "docs" / "reference").glob("*.rst")
        for name in re.findall(r"^   ~keras_calibration\.([\w.]+)$", page.read_text("utf-8"), re.M)
    ]
    # `statistics.metric_accuracy` is `seeds.metric_accuracy` too.
    public = {name for names in [TOP, *ROOMS.values()] for name in names.split()}
    public -= {"__version__", *ROOMS}
    assert len(listed) == len(set(listed)) + 1
    assert set(listed) == public | {"NeuralCalibrator"}


def slugs_of(page):
    """The anchors of a page's headings, as MyST and the hosts of repositories make them."""
    text = re.sub(r"^(```+|:::+).*?^\1$", "", page.read_text("utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", each.lower()).strip().replace(" ", "-") for each in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    broken = []
    for link in re.findall(r"\]\((?![a-z]+:)([\w./#-]+)\)", page.read_text("utf-8")):
        target, _, anchor = link.partition("#")
        path = (page.parent / target).resolve() if target else page
        if not path.exists() or (anchor and anchor not in slugs_of(path)):
            broken.append(link)
    assert broken == []
