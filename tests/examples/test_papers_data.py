"""The papers' data in full: what is found, how it is laid out, and the commands."""

import json
import sys

import papers_data
from data_folder import read_data_folder


def test_files_are_found_and_read_as_data_folders(tmp_path, monkeypatch, capsys):
    stored = papers_data.read()["data"]["criteo"]
    names = stored["meta"]["read_csv"]["names"]
    (tmp_path / "criteo").mkdir()
    rows = ["\t".join([str(k % 2), *(f"{k % 3}" for _ in names[1:])]) for k in range(40)]
    (tmp_path / "criteo" / "train.txt").write_text("\n".join(rows))
    output = tmp_path / "output"
    arguments = ["papers_data.py", str(tmp_path), "--output", str(output), "--rows", "30"]
    monkeypatch.setattr(sys, "argv", [*arguments, "--only", "avazu", "criteo_dlrm"])
    papers_data.main()
    printed = capsys.readouterr().out
    assert "avazu: Pan et al., table 3\n  not found: expected" in printed
    assert "clicks.py --data" in printed
    assert "--held-out 4 " in printed
    table = read_data_folder(output / "data" / "criteo_dlrm")
    assert len(table.labels) == 30
    assert len(table.numeric) == 13


def test_every_run_has_its_data_and_a_line_on_the_page():
    stored = papers_data.read()
    lines = papers_data.markdown().splitlines()
    assert len(lines) == 2 + len(stored["runs"])
    for run in stored["runs"]:
        meta = stored["data"][run["data"]].get("meta", {"fields": []})
        columns = [*meta.get("numeric", []), *meta.get("categorical", [])]
        assert set(meta["fields"]) <= set(columns), json.dumps(run)
        assert (papers_data.EXAMPLES / run["program"]).is_file()
