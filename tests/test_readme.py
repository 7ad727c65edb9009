"""Programs of the README and of the page on calibration run as they stand, on fewer rows."""

import re
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_calibration
from served import outputs_of

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
CALIBRATION = ROOT / "docs" / "topics" / "calibration.md"


NAMES = ("CalibratedLogLoss", "SeedVariance", "NeuralCalibration", "ILPS", "export_savedmodel")


@pytest.fixture(scope="module")
def first_program(tmp_path_factory):
    """Runs the first program of the README, in a folder of its own; returns what it defines."""
    first, _ = _programs()
    assert all(name in first for name in NAMES)
    assert "100_000" in first
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("readme"))
        # Smaller batches too: where a model learnt nothing, fits warn that its logits do not rank.
        first = first.replace("100_000", "5_000").replace("batch_size=256", "batch_size=16")
        names = {}
        exec(compile(first, str(README), "exec"), names)
        yield names


def _programs():
    """The two parts of the program of the README."""
    return re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)


@pytest.mark.tensorflow
def test_the_first_program(first_program):
    model, (x, labels) = first_program["model"], first_program["test"]
    expected = model.predict(x, verbose=0)
    assert expected.mean() == pytest.approx(labels.mean(), abs=0.03)
    served = outputs_of("output/ctr/1", x)["probability"]
    np.testing.assert_allclose(served, expected, atol=1e-6)
    # The first seed has no statistics: its progress line says nothing about seeds.
    assert not [name for name in model.history.history if name.startswith("seed/")]


@pytest.mark.slow
@pytest.mark.tensorflow
def test_the_program_word_for_word_and_twice(tmp_path, monkeypatch):
    """On all its rows, with nothing replaced: it prints about what the README shows, again too."""
    monkeypatch.chdir(tmp_path)
    program = "\n".join(_programs())
    for version in ("2", "4"):
        names = {}
        exec(compile(program, str(README), "exec"), names)
        x, labels = names["test"]
        expected = names["model"].predict(x, verbose=0)
        assert expected.mean() == pytest.approx(labels.mean(), rel=0.05)
        assert Path("output/ctr", version, "saved_model.pb").is_file()
    served = outputs_of("output/ctr/1", x)["probability"]
    np.testing.assert_allclose(served, expected, atol=1e-6)
    shown = dict(re.findall(r"^[ *] (\w+) +(0\.\d{5}) ", README.read_text("utf-8"), re.MULTILINE))
    report = names["calibrated"].report
    assert report.after.log_loss < report.before.log_loss - 0.005
    assert report.weights.get("identity", 0) < 0.5
    assert report.present is None
    losses = {score.name: score.log_loss for score in report.scores}
    assert losses.keys() == shown.keys()
    for name, loss in losses.items():
        assert loss == pytest.approx(float(shown[name]), abs=0.002)


@pytest.mark.slow
@pytest.mark.tensorflow
def test_a_refresh_of_the_first_program(first_program):
    model, (x, labels) = first_program["model"], first_program["test"]
    logits, features = keras_calibration.base_logits(model, x), {"site_id": x["site_id"]}
    path = keras_calibration.refresh_savedmodel(
        "output/ctr/1", *(logits, labels, features), from_logits=True
    )
    served = outputs_of(path, x)["probability"]
    assert served.mean() == pytest.approx(labels.mean(), rel=1e-4)


@pytest.mark.slow
@pytest.mark.tensorflow
def test_the_program_of_several_outputs():
    programs = re.findall(r"```python\n(.*?)```", CALIBRATION.read_text("utf-8"), re.DOTALL)
    (program,) = (text for text in programs if '{"buy": buys' in text)
    generator = np.random.default_rng(0)
    scores = generator.normal(size=(2000, 2)).astype("float32")
    outcomes = generator.random((2000, 2)) < 1 / (1 + np.exp(1 - scores))
    inputs = {"scores": keras.Input((2,), name="scores")}
    click, buy = (keras.ops.sigmoid(inputs["scores"][:, column]) for column in range(2))
    outputs = {"click": click, "buy": buy, "id": inputs["scores"]}
    names = {
        "kc": keras_calibration,
        "base": keras.Model(inputs, outputs),
        "x": {"scores": scores},
        "clicks": outcomes[:, 0],
        "buys": outcomes[:, 1],
    }
    exec(compile(program, str(CALIBRATION), "exec"), names)
    received = names["predictions"]
    assert received.keys() == outputs.keys()
    assert received["click"].mean() == pytest.approx(outcomes[:, 0].mean(), abs=0.01)
    assert received["buy"].mean() == pytest.approx(outcomes[:, 1].mean(), abs=0.01)
    np.testing.assert_array_equal(received["id"], scores)
