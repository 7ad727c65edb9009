"""The first program of the README runs as it stands, on fewer rows."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"


@pytest.mark.tensorflow
def test_the_first_program(tmp_path, monkeypatch, capsys):
    program = re.search(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)[1]
    assert "100_000" in program
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(program.replace("100_000", "10_000"), str(README), "exec"), names)
    report = names["model"].report
    assert report.after.log_loss < report.before.log_loss - 0.005
    assert report.chosen == "field_bias"
    assert "Chosen: field_bias" in capsys.readouterr().out
    assert (tmp_path / "savedmodels" / "ctr" / "1" / "saved_model.pb").is_file()
