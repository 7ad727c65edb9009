"""The site lists every public name, and the links of all pages of the repository lead somewhere."""

import re
from pathlib import Path

import pytest

from test_public_names import RESULTS, ROOMS, TOP

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
        for name in re.findall(
            r"^   ~(?:keras_calibration|calibration_records)\.([\w.]+)$",
            page.read_text("utf-8"),
            re.M,
        )
    ]
    public = {name for names in [TOP, *ROOMS.values()] for name in names.split()}
    public -= {"__version__", *ROOMS}
    assert len(listed) == len(set(listed))
    assert set(listed) == public | {"NeuralCalibrator", *RESULTS.split()}
    pictures = {path.stem for path in (ROOT / "docs" / "reference" / "pictures").glob("*.py")}
    assert {"FieldBias", "ILPS", "calibrate"} <= pictures <= set(listed)


def slugs_of(page):
    """The anchors of a page's headings, as MyST and the hosts of repositories make them."""
    text = re.sub(r"^(```+|:::+).*?^\1$", "", page.read_text("utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    broken = []
    for link in re.findall(r"\]\((?![a-z]+:)([\w./#-]+)\)", page.read_text("utf-8")):
        target, _, anchor = link.partition("#")
        path = (page.parent / target).resolve() if target else page
        if not path.exists() or (anchor and anchor not in slugs_of(path)):
            broken.append(link)
    assert broken == []


QUESTIONS = {
    "Are the probabilities of my model right?": "guides/1_scores",
    "How do I put it into my Keras model?": "guides/2_head",
    "Which sites are off?": "guides/3_segments",
    "My model is a LightGBM.": "guides/scores",
    "I down-sampled the negatives.": "guides/sampling",
    "My rows are claims per year.": "guides/exposure",
    "A customer has ten rows.": "guides/groups",
    "My labels come late.": "not_here",
    "Is +0.1 % real, or luck of the seed?": "guides/4_compare",
    "How do I ship it?": "guides/5_ship",
    "How do I serve it?": "guides/serve",
    "Last month's calibration is off this month.": "guides/drift",
    "How do I notice that it is off?": "guides/monitor",
    "My log has a billion rows.": "guides/scale",
    "My model has five classes.": "guides/classes",
    "I predict a number.": "guides/regression",
    "I know CalibratedClassifierCV.": "coming_from/scikit_learn",
    "How sure is one probability?": "guides/calibrate",
    "What does `calibrate` take?": "reference/generated/keras_calibration.calibrate",
    "What is ILPS?": "glossary",
}


def pages_linked_from(page):
    """The pages that a page of the site links to: by links, and by names, which are links too."""
    path = ROOT / "docs" / page
    path = next(p for p in (path.with_suffix(".md"), path.with_suffix(".rst")) if p.exists())
    text = path.read_text("utf-8")
    if included := re.match(r"```\{include\} (\S+)\n", text):
        path = (path.parent / included[1]).resolve()
        text = path.read_text("utf-8")
    targets = {
        (path.parent / link).resolve() for link in re.findall(r"\]\(([\w./-]+)\.(?:md|rst)\b", text)
    }
    docs = ROOT / "docs"
    pages = {t.relative_to(docs).as_posix() for t in targets if t.is_relative_to(docs)}
    return pages | {
        f"reference/generated/keras_calibration.{name}" for name in re.findall(r"`(\w+)`", text)
    }


def test_two_clicks_lead_from_the_front_page_to_an_answer():
    first = pages_linked_from("index")
    second = set().union(
        *(pages_linked_from(page) for page in first if "generated" not in page and "/" in page)
    )
    missing = {question: page for question, page in QUESTIONS.items() if page not in first | second}
    assert missing == {}
    guides = {
        page.relative_to(ROOT / "docs").with_suffix("").as_posix()
        for folder in ("guides", "coming_from")
        for page in (ROOT / "docs" / folder).glob("*.md")
        if page.stem != "index"
    }
    assert guides <= first | second
