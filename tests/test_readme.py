"""Programs of the README and of the page on calibration run as they stand, on fewer rows."""

import re
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_calibration

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
CALIBRATION = ROOT / "docs" / "topics" / "calibration.md"


@pytest.mark.tensorflow
def test_the_first_program(tmp_path, monkeypatch, capsys):
    program = re.search(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)[1]
    assert "100_000" in program
    monkeypatch.chdir(tmp_path)
    # Smaller batches too: a base model that learnt nothing makes `calibrate` warn that its logits
    # do not rank, rightly. The README itself seeds nothing.
    program = program.replace("100_000", "10_000").replace("batch_size=256", "batch_size=16")
    keras.utils.set_random_seed(0)
    names = {}
    exec(compile(program, str(README), "exec"), names)
    report = names["model"].report
    assert report.after.log_loss < report.before.log_loss - 0.005
    assert report.chosen == "field_bias"
    assert "Chosen: field_bias" in capsys.readouterr().out
    assert (tmp_path / "savedmodels" / "ctr" / "1" / "saved_model.pb").is_file()


@pytest.mark.tensorflow
def test_the_program_of_several_outputs():
    programs = re.findall(r"```python\n(.*?)```", CALIBRATION.read_text("utf-8"), re.DOTALL)
    (program,) = (each for each in programs if 'calibrated_output="buy"' in each)
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
        "labels": {"click": outcomes[:, 0], "buy": outcomes[:, 1]},
    }
    exec(compile(program, str(CALIBRATION), "exec"), names)
    received = names["predictions"]
    assert received.keys() == outputs.keys()
    assert received["click"].mean() == pytest.approx(outcomes[:, 0].mean(), abs=0.01)
    assert received["buy"].mean() == pytest.approx(outcomes[:, 1].mean(), abs=0.01)
    np.testing.assert_array_equal(received["id"], scores)
