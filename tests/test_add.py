"""The page for those who add something: its templates run, and its lists of places are right."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from scipy.special import expit

from test_docs import run_page  # noqa: F401 - a fixture

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "add.md").read_text("utf-8")
# Title → the example of its list.
EXAMPLES = {
    "A calibrator": "BetaCalibration",
    "A head with a field": "FieldILPS",
    "A metric": "NormalizedEntropy",
    "A format": "export_onnx",
}
# Pages that only use a name, and results: nobody has to touch them for a new one.
USERS = ("docs/add.md", "docs/guides/", "docs/coming_from/", "docs/field_solver.md", "docs/conf.py")
USERS += ("examples/", "savedmodels/", "benchmarks/", "tests/")
# Modules of which the example is only a part.
PARTS = {"export_onnx": {"src/keras_calibration/export/onnx/graph.py"}}


def places(title):
    """The files in the list of a part, and the tests that ask for them."""
    section = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)[1]
    table = section[section.index("| place |") :]
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| `")]
    files = [name for row in rows for name in re.findall(r"`([\w/.]+)`", row[0])]
    return files, [name for row in rows for name in re.findall(r"`(test_\w+)`", row[2])]


def files_with(name):
    """The files of the repository that have a word."""
    files = [
        path
        for folder in ("src", "docs", "benchmarks", "examples", "savedmodels", "tests")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".md", ".rst") and "generated" not in path.parts
    ]
    word = re.compile(rf"\b{name}\b")
    return {
        path.relative_to(ROOT).as_posix()
        for path in (*files, *ROOT.glob("*.md"))
        if word.search(path.read_text("utf-8"))
    }


@pytest.mark.parametrize(("title", "example"), EXAMPLES.items())
def test_the_list_of_places_is_that_of_the_repository(title, example):
    listed, tests = places(title)
    present = files_with(example)
    assert len(listed) == len(set(listed)) > 6
    assert set(listed) - present == set()
    needed = {file for file in present if not file.startswith(USERS)}
    assert needed - PARTS.get(example, set()) - set(listed) == set()
    named = " ".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    assert tests
    assert [name for name in tests if f"def {name}(" not in named] == []


@pytest.mark.tensorflow
@pytest.mark.slow
def test_the_templates_keep_what_they_promise(run_page, tmp_path):  # noqa: F811
    names = run_page("add.md")
    assert float(names["metric"].result()) == pytest.approx(0.1875)
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 1.5, 4000)
    site = rng.integers(0, 5, 4000)
    labels = rng.random(4000) < expit(
        logits + 0.3 - 0.6 * np.maximum(logits, 0) + 0.4 * (site == 2)
    )
    # Where the derivatives of the log loss by c, a and b are those of the prior.
    head = names["TwoSlopes"]()
    head.fit(logits, labels)
    slopes = np.exp([float(head._log_slope_below), float(head._log_slope_above)])
    residuals = labels - expit(np.asarray(head(logits), np.float64))
    columns = [np.ones(4000), np.minimum(logits, 0), np.maximum(logits, 0)]
    expected = [0, *(0.01 * (slopes - 1))]
    np.testing.assert_allclose(columns @ residuals, expected, atol=0.02)
    np.testing.assert_allclose(slopes, [1, 0.4], atol=0.15)
    lower, upper = head.interval(np.array([2.0]))
    assert lower < expit(0.3 + 2 * 0.4) < upper
    by_site = names["SiteOffsets"](5)
    by_site.fit(logits, labels, {"site": site})
    predicted = expit(np.asarray(by_site(logits[:, None], {"site": site}), np.float64))
    assert predicted.sum() == pytest.approx(labels.sum(), rel=1e-5)
    line = json.loads((names["folder"] / "ctr.json").read_text())
    assert line["scale"] == pytest.approx(names["model"].head.scale)
    with pytest.raises(ValueError, match="which exists"):
        names["export_json"](names["model"], names["folder"] / "ctr.json", names["x"])
    write = names["JsonLine"].write
    names["JsonLine"].write = lambda form, path: path.write_text('{"scale": 1.0, "bias": 0.0}')
    with pytest.raises(RuntimeError, match="'calibrate/probability' of the JSON file"):
        names["export_json"](names["model"], tmp_path / "new" / "ctr.json", names["x"])
    names["JsonLine"].write = write
    assert not (tmp_path / "new").exists()
