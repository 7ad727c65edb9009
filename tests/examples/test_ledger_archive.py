"""Ledgers packed into one file, and back: nothing a page needs is lost, nothing private kept."""

import json
import lzma
import math
import platform
import sys
from pathlib import Path

import numpy as np
import pytest

import ledger_archive
import results
from keras_calibration.seeds import Ledger

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
ABOUT = {
    "study": "stocks/range",
    "command": "python stocks.py",
    "commit": "0123456789abcdef",
    "machine": "a processor, 2 cores, 8 GiB",
    "wall_seconds": 90.0,
}


@pytest.fixture
def folder(tmp_path):
    """A ledger with runs of all kinds, and files beside it."""
    ledger = Ledger(tmp_path / "ledger")
    run = {"pipeline": "a", "seed": 0, "status": "finished", "epochs": [0, 1, 2]}
    run |= {"versions": {"keras": "3"}, "num_rows": 7, "initial_weights": "f" * 64}
    run |= {"training": {"file": "trainings/x.json"}, "seeds": {"order": 0}}
    run |= {"configuration": {"data": "/home/someone/data/clicks", "l2": 0.0, "sizes": [1, 2]}}
    metrics = {"val_loss": [0.5, 0.123456789012345, 0.4], "val_auc": [0.6, None, 0.7]}
    ledger.append({**run, "metrics": metrics, "kept_epoch": 1})
    ledger.append({**run, "metrics": metrics, "seed": 1})
    metrics = {"val_loss": [math.nan] * 3, "val_auc": [-math.inf, 0.5, math.inf]}
    ledger.append({**run, "metrics": metrics, "status": "diverged"})
    ledger.append({"pipeline": "b", "seed": 0, "status": "started"})
    # The latest run of a seed counts, so the order must stay.
    ledger.append({**run, "metrics": {"val_loss": [1.0, 2.0, 3.0]}})
    line = {"pipeline": "a", "seed": 0, "losses": {"val_loss": [0.12345678, 1.0, -2e-9]}}
    (ledger.path / "block_losses.jsonl").write_text(json.dumps(line) + "\n" + json.dumps(line))
    (ledger.path / "seconds.csv").write_text("a,3,1.5\nb,1,0.2\n")
    return ledger.path


def test_an_unpacked_ledger_has_the_runs_at_the_kept_epochs(folder, tmp_path):
    file = tmp_path / "archives" / "s.jsonl.xz"
    ledger_archive.pack(folder, file, ABOUT)
    archive = ledger_archive.unpack(file, tmp_path / "again")
    before, after = Ledger(folder).runs(), Ledger(tmp_path / "again").runs()
    np.testing.assert_equal(archive.runs, after)
    for name in ("pipeline", "seed", "status", "created", "num_rows", "seeds", "directions"):
        assert [run[name] for run in after] == [run[name] for run in before]
    assert [run["epochs"] for run in after] == [[1], [2], [2], [], [2]]
    values = [run["metrics"].get("val_loss") for run in after]
    np.testing.assert_equal(values, [[0.1234567890], [0.4], [math.nan], None, [3.0]])
    aucs = [run["metrics"].get("val_auc") for run in after]
    assert aucs == [[None], [0.7], [math.inf], None, None]
    assert after[0]["configuration"] == {"data": "clicks", "l2": 0.0, "sizes": [1, 2]}
    assert after[0]["versions"] == {"keras": "3"}
    assert len(Ledger(tmp_path / "again").runs(status="finished")) == 3


def test_files_beside_the_ledger_come_back_rounded(folder, tmp_path):
    ledger_archive.pack(folder, tmp_path / "s.jsonl.xz", ABOUT)
    ledger_archive.unpack(tmp_path / "s.jsonl.xz", tmp_path / "again")
    assert (tmp_path / "again" / "seconds.csv").read_text() == "a,3,1.5\nb,1,0.2\n"
    lines = (tmp_path / "again" / "block_losses.jsonl").read_text().splitlines()
    assert len(lines) == 2
    assert json.loads(lines[0])["losses"] == {"val_loss": [0.1234568, 1.0, -2e-9]}


def test_what_identifies_a_machine_is_left_out_or_refused(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(platform, "node", lambda: "workstation-7")
    file = tmp_path / "s.jsonl.xz"
    ledger_archive.pack(folder, file, ABOUT)
    text = lzma.decompress(file.read_bytes()).decode()
    assert "home" not in text
    assert "f" * 64 not in text
    assert "trainings" not in text
    with pytest.raises(ValueError, match="does not name this machine"):
        ledger_archive.pack(folder, file, {**ABOUT, "command": "on workstation-7"})
    assert " cores" in ledger_archive.machine()
    assert "workstation-7" not in ledger_archive.machine()


def test_the_first_line_says_what_made_the_study(folder, tmp_path):
    file = tmp_path / "s.jsonl.xz"
    ledger_archive.pack(folder, file, ABOUT)
    about = ledger_archive.read(file).about
    assert {**about, **ABOUT} == about
    assert (about["num_runs"], about["versions"]) == (5, {"keras": "3"})
    line = ledger_archive.about_table([about]).splitlines()[2]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[:4] == ["stocks/range", "5", "`python stocks.py`", "2 min"]
    assert cells[5:] == ["012345678", ABOUT["machine"]]


@pytest.mark.parametrize("study", ["/etc", "../x", "a/../../x", "", "a\\b"])
def test_a_study_stays_below_the_output_folder(folder, tmp_path, study):
    with pytest.raises(ValueError, match="folder below --output"):
        ledger_archive.pack(folder, tmp_path / "s.jsonl.xz", {**ABOUT, "study": study})
    about = {"format": 1, **ABOUT, "study": study, "versions": {}}
    (tmp_path / "s.jsonl.xz").write_bytes(lzma.compress(json.dumps(about).encode()))
    with pytest.raises(ValueError, match="folder below --output"):
        ledger_archive.unpack_all(tmp_path, tmp_path / "output")


def test_other_files_and_full_folders_are_refused(folder, tmp_path):
    for name, content in {
        "a": b"text",
        "b": lzma.compress(b"{}"),
        "c": lzma.compress(b"["),
    }.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match="that `pack` has written"):
            ledger_archive.read(tmp_path / name)
    (tmp_path / "d").write_bytes(lzma.compress(b'{"format": 2}'))
    with pytest.raises(ValueError, match="has the format 2"):
        ledger_archive.read(tmp_path / "d")
    ledger_archive.pack(folder, tmp_path / "s.jsonl.xz", ABOUT)
    with pytest.raises(ValueError, match="new or empty"):
        ledger_archive.unpack(tmp_path / "s.jsonl.xz", folder)
    with pytest.raises(ValueError, match="ledger with runs"):
        ledger_archive.pack(tmp_path / "nothing", tmp_path / "s.jsonl.xz", ABOUT)


def test_a_page_from_archives_is_the_page_from_ledgers(tmp_path, monkeypatch, capsys):
    generator = np.random.default_rng(0)
    ledger = Ledger(tmp_path / "output" / "stocks" / "range")
    metrics = ("quadratic_loss", "calibrated_quadratic_loss", "cross_fitted_quadratic_loss")
    for pipeline in ("base", "half_hidden", "one_more_layer", "two_more_layers"):
        for seed in range(12):
            record = {"pipeline": pipeline, "seed": seed, "status": "finished", "epochs": [0]}
            values = {name: [float(generator.normal(1, 0.1))] for name in (*metrics, "seconds")}
            record |= {"configuration": {"hidden_size": len(pipeline)}, "num_rows": 7}
            ledger.append({**record, "metrics": values})
    page = page_of(tmp_path / "output")
    file = tmp_path / "archives" / "stocks_range.jsonl.xz"
    arguments = ["pack", str(tmp_path / "output" / "stocks" / "range"), str(file)]
    arguments += ["--study", "stocks/range", "--command", "python stocks.py", "--seconds", "9"]
    run(monkeypatch, *arguments, "--commit", "0123456789")
    run(monkeypatch, "unpack", str(file.parent), str(tmp_path / "again"))
    assert page_of(tmp_path / "again") == page
    run(monkeypatch, "show", str(file.parent))
    assert "| stocks/range | 48 " in capsys.readouterr().out


def page_of(folder):
    studies = results.find_studies([folder])
    return [*results.page_parts([], studies), *results.table_parts([], studies)]


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["ledger_archive.py", *arguments])
    ledger_archive.main()


def test_the_page_has_the_tables_of_the_archives_in_the_repository(tmp_path):
    files = ledger_archive.files_of(ROOT / "examples" / "ledgers")
    assert sum(file.stat().st_size for file in files) < 20e6
    page = (ROOT / "examples" / "RESULTS.md").read_text(encoding="utf-8")
    # Those of pairs; the smallest is enough.
    pairs = [file for file in files if file.name.startswith(("clicks_", "stocks_"))]
    file = min(pairs, key=lambda file: file.stat().st_size)
    ledger_archive.unpack(file, tmp_path / ledger_archive.read(file).about["study"])
    (found,) = results.find_studies([tmp_path])
    assert found.module.markdown(found.ledger) in page
