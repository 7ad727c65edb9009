"""The first program of the README runs as it stands, on fewer rows."""

import re
from pathlib import Path

import keras
import pytest

README = Path(__file__).parents[1] / "README.md"


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
