"""The pages in docs/ and CONTRIBUTING.md speak of what is there."""

import re
from pathlib import Path

import keras
import numpy as np
import pandas as pd
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


def programs_of(page):
    """The Python programs of a page in docs/, in their order."""
    text = (ROOT / "docs" / page).read_text("utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


@pytest.mark.tensorflow
def test_the_programs_of_the_page_on_sampling(tmp_path, monkeypatch, capsys):
    """They run in their order, and what each makes is right among all rows."""
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    rows = 2000
    score = generator.normal(size=rows).astype("float32")
    sites = generator.integers(0, 3, rows)
    y = generator.random(rows) < 1 / (1 + np.exp(2 - score))
    inputs = {
        "score": keras.Input((), name="score"),
        "kept_rate": keras.Input((), name="kept_rate"),
        "site_id": keras.Input((), dtype="int64", name="site_id"),
    }
    # The best model of rows of which a tenth of the negatives was kept.
    sampled = keras.layers.Activation("sigmoid")(inputs["score"] - 2 - float(np.log(0.1)))
    x = {"score": score, "kept_rate": np.full(rows, 0.1, "float32"), "site_id": sites}
    names = {
        "np": np,
        "base": keras.Model(inputs, sampled),
        "development_x": x,
        "development_y": y.astype("float32"),
    }
    programs = programs_of("sampling.md")
    kept = y | (generator.random(rows) < 0.1)
    of_sample = {name: column[kept] for name, column in x.items()}, y[kept].astype("float32")
    names["test_x"], names["test_y"] = of_sample
    assert len(programs) == 6
    for program in programs:
        if "development_y == 1" in program:
            names["development_x"], names["development_y"] = of_sample
        exec(compile(program, "sampling.md", "exec"), names)
        received = names["model"].predict(x, verbose=0)[:, 0]
        assert received.mean() == pytest.approx(y.mean(), rel=0.15)
    assert (tmp_path / "served" / "1" / "saved_model.pb").is_file()
    p = 1 / (1 + np.exp(2 - score))
    loss = -np.mean(np.where(y, np.log(p), np.log1p(-p)))
    assert names["figures"]["log_loss"] == pytest.approx(loss, rel=0.15)
    assert names["figures"]["calibration_ratio"] == pytest.approx(1, rel=0.15)
    assert names["figures"]["site_id_field_ece"] < 0.03
    shown = capsys.readouterr().out
    assert re.search(r"Multicalibration error .* p-value (1|0\.[1-9])", shown), shown


@pytest.mark.tensorflow
def test_the_programs_of_the_page_on_scores(tmp_path, monkeypatch, capsys):
    """Gradient boosting that does not know the site is corrected by site."""
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)

    def rows(number):
        frame = pd.DataFrame(
            {
                "age": generator.normal(size=number),
                "price": generator.normal(size=number),
                "site": generator.choice(["news", "games", "mail"], number),
                "hour": generator.integers(0, 24, number),
            }
        )
        logits = frame["age"] - 1 + frame["site"].map({"news": 1.0, "games": 0.0, "mail": -1.0})
        return frame, (generator.random(number) < 1 / (1 + np.exp(-logits))).astype(int)

    train, train_clicks = rows(1000)
    development, development_clicks = rows(2000)
    names = {
        **{"train": train, "train_clicks": train_clicks, "numbers": ["age", "price"]},
        **{"development": development, "development_clicks": development_clicks},
    }
    programs = programs_of("scores.md")
    assert len(programs) == 5
    for program in programs:
        program = program.replace('version="next"', 'version="next", verify="same_process"')
        exec(compile(program, "scores.md", "exec"), names)
    report = names["model"].report
    assert report.chosen.startswith("field")
    assert report.after.log_loss < report.before.log_loss - 0.03
    by_site = pd.Series(names["probabilities"] - development_clicks).groupby(development["site"])
    assert by_site.mean().abs().max() < 0.01
    assert (tmp_path / "calibration" / "1" / "saved_model.pb").is_file()
    assert names["calibrator"].predict_proba(train[["age", "price"]]).shape == (1000, 2)
    assert "Chosen: field" in capsys.readouterr().out
