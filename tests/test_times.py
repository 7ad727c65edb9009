"""Times and durations have a unit: from 2.5 on, NumPy deprecates those that have none."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ["src", "tests", "examples", "benchmarks", "docs", "tools", "savedmodels"]
WITHOUT_UNIT = re.compile(
    r"datetime64\(\s*.NaT.\s*\)|timedelta64\([^,()]*\)|[\"'](?:[mM]8|datetime64|timedelta64)[\"']"
)


@pytest.mark.parametrize("kind", ["datetime", "timedelta"])
def test_what_has_no_unit_is_found(kind):
    code = f"""np.{kind}64('NaT'), x.astype("{kind}64")"""
    assert len(WITHOUT_UNIT.findall(code)) == 2
    code = f"""np.{kind}64('NaT', 's'), x.astype("{kind}64[s]")"""
    assert not WITHOUT_UNIT.search(code)


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_time_has_a_unit(folder):
    files = [path for suffix in ("py", "md") for path in (ROOT / folder).rglob(f"*.{suffix}")]
    matches = {path.name: WITHOUT_UNIT.findall(path.read_text("utf-8")) for path in files}
    assert matches
    assert {name: texts for name, texts in matches.items() if texts} == {}
