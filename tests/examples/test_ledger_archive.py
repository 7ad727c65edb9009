"""Ledgers packed into one file, and back: nothing a page needs is lost, nothing private kept."""

import json
import lzma
import math
import platform
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
    "commits": ["0123456789abcdef"],
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


def test_an_unpacked_ledger_has_the_runs_at_the_kept_epochs(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(platform, "node", lambda: "workstation-7")
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


def test_the_first_line_says_when_the_runs_were_and_from_which_commits(folder, tmp_path):
    times = sorted(run["created"] for run in Ledger(folder).runs())
    file = tmp_path / "s.jsonl.xz"
    ledger_archive.pack(folder, file, {k: v for k, v in ABOUT.items() if k != "commits"})
    about = ledger_archive.read(file).about
    assert [about["first_run"], about["last_run"]] == [times[0], times[-1]]
    # The runs are new, and so is the newest commit.
    head = ledger_archive.commit_at(times[-1])
    assert about["commits"] == [head, head]
    earlier = {**about, "first_run": "2026-01-01T10:20:30Z", "commits": ["a" * 40, "b" * 40]}
    (line,) = ledger_archive.about_studies([about, earlier]).splitlines()[2:-2]
    cells = [cell.strip() for cell in line.split("|")]
    assert cells[5] == "2026-01-01 10:20"
    assert cells[7] == f"aaaaaaaaa to {head[:9]}"


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


def test_the_page_has_the_tables_of_the_archives_in_the_repository(tmp_path):
    files = ledger_archive.files_of(ROOT / "examples" / "ledgers")
    assert sum(file.stat().st_size for file in files) < 20e6
    page = (ROOT / "examples" / "TABLES.md").read_text(encoding="utf-8")
    # Those of pairs; the smallest is enough.
    pairs = [file for file in files if file.name.startswith(("clicks_", "stocks_"))]
    file = min(pairs, key=lambda file: file.stat().st_size)
    ledger_archive.unpack(file, tmp_path / ledger_archive.read(file).about["study"])
    (study,) = results.find_studies([tmp_path])
    assert study.module.markdown(study.ledger) in page
