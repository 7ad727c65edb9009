"""What the page on serving says of a refresh, of its record and of a `.keras` file."""

import dataclasses
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_calibration as kc
from keras_calibration.export.head_file import HEAD_FILE, SavedHead
from keras_calibration.export.savedmodel.files import EXTRA
from keras_calibration.layers.fit_summary import FitSummary

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "topics" / "serving.md").read_text("utf-8")


def section(title):
    return re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)[1]


def first_cells(table):
    """The names in code in the first column of a table."""
    cells = re.findall(r"^\| (`[^|]+) \|", table, re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]


@pytest.fixture(scope="module")
def refreshed(tmp_path_factory):
    """A shipped model after the program of the page, and what the program defines."""
    folder = tmp_path_factory.mktemp("refreshed")
    shutil.copytree(ROOT / "savedmodels" / "click_log", folder / "savedmodels" / "ctr")
    rng = np.random.default_rng(0)
    logit = rng.normal(-1, 0.35, 400)
    head_file = folder / "savedmodels" / "ctr" / "1" / EXTRA / HEAD_FILE
    known = SavedHead.read(head_file)
    features = {name: rng.integers(0, 5, 400) for name in known.inputs if name != "logit"}
    names = {
        "kc": kc,
        "json": json,
        "logit": logit,
        "labels": rng.random(400) < 0.6 / (1 + np.exp(-logit)),
        "features": features,
    }
    (program,) = re.findall(r"```python\n(.*?)```", section("What a refresh reports"), re.DOTALL)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        exec(compile(program, "serving.md", "exec"), names)
        names["new"] = dataclasses.replace(names["new"], path=names["new"].path.resolve())
    return names


def test_every_figure_of_a_refresh_is_explained():
    figures, entries = section("What a refresh reports").split("The new version keeps them")
    assert first_cells(figures) == [*dict.fromkeys(first_cells(figures))]
    assert set(first_cells(figures)) == FitSummary(1, 0.5, 0.4, 1, True).to_dict().keys()
    assert {"fit", "logits", "refreshed_from"} <= set(first_cells(entries))


def test_a_refresh_keeps_what_the_page_says(refreshed):
    _, entries = section("What a refresh reports").split("The new version keeps them")
    provenance = refreshed["provenance"]
    assert set(first_cells(entries)) <= provenance.keys()
    summary = refreshed["new"].summary
    assert provenance["refreshed_from"]["version"] == "1"
    assert provenance["refreshed_from"].keys() >= {"version", "exported_at", "fit", "logits"}
    told = {name: value for name, value in summary.to_dict().items() if name != "logits"}
    for name, value in told.items():
        is_missing = isinstance(value, float) and np.isnan(value)
        received = provenance["fit"].get(name)
        assert received == (None if is_missing else list(value) if name == "epochs" else value)
    assert summary.log_loss_after == pytest.approx(summary.log_loss_before + summary.change)
    assert refreshed["new"].path.name == "2"


def test_a_keras_file_needs_the_import(tmp_path):
    inputs = {"x": keras.Input((1,), name="x"), "site": keras.Input((), dtype="int32", name="site")}
    base = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(inputs["x"]))
    model = kc.models.CalibratedModel(base, kc.layers.FieldBias({"site": 3}))
    rows = {"x": np.linspace(-1, 1, 90, dtype="float32"), "site": np.arange(90) % 3}
    kc.fit_head(model, rows, np.arange(90) % 4 == 0, verbose=0)
    model.save(tmp_path / "ctr.keras")
    (program,) = re.findall(r"```python\n(.*?)```", section("Save and load in Python"), re.DOTALL)
    program += "print(type(model).__name__, model.head.fit_summary.num_rows, model.report)\n"
    without = "".join(
        line for line in program.splitlines(keepends=True) if "keras_calibration" not in line
    )
    assert without != program

    def run(text):
        command = [sys.executable, "-c", text]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    with_import = run(program)
    assert with_import.stdout == "CalibratedModel 90 None\n"
    error = run(without).stderr.splitlines()
    assert any(line.startswith("TypeError") for line in error)
    assert any("Could not locate class" in line for line in error)
