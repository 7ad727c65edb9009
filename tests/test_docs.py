"""The pages in docs/ and CONTRIBUTING.md speak of what is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = ["docs/architecture.md", "CONTRIBUTING.md"]


def test_the_architecture_page_lists_every_room():
    text = (ROOT / PAGES[0]).read_text("utf-8")
    rooms = {path.parent.name for path in (ROOT / "src" / "keras_calibration").glob("*/*.py")}
    assert len(rooms) > 10
    assert {room for room in rooms if f"`{room}`" not in text} == set()


@pytest.mark.parametrize("page", PAGES)
def test_files_that_a_page_names_are_there(page):
    text = (ROOT / page).read_text("utf-8")
    named = set(re.findall(r"`([\w/]+\.(?:py|md))`", text)) | set(
        re.findall(r"\]\(([^:)]+)\)", text)
    )
    present = {
        path.relative_to(ROOT).as_posix()
        for folder in ("src", "tests", "docs", "examples", "benchmarks", "savedmodels")
        for path in (ROOT / folder).rglob("*.*")
    } | {path.name for path in ROOT.iterdir()}
    assert named
    missing = {
        name for name in named if not any(f"/{each}".endswith(f"/{name}") for each in present)
    }
    assert missing == set()
