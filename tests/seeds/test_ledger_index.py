import json
import os

import numpy as np
import pytest

from keras_calibration.seeds import Ledger, ledger
from keras_calibration.seeds.ledger_index import INDEX_NAME

RUN = {
    "pipeline": "deepfm",
    "seed": 1,
    "status": "finished",
    "epochs": [0, 1],
    "metrics": {"val_loss": [float("nan"), 0.1]},
}


@pytest.fixture
def runs(tmp_path, monkeypatch):
    # A small ledger has an index too, in these tests.
    monkeypatch.setattr(ledger, "_MIN_INDEXED", 1)
    found = Ledger(tmp_path)
    for seed in range(5):
        found.append({**RUN, "seed": seed})
    return found


def read_without_index(runs):
    (runs.path / INDEX_NAME).unlink(missing_ok=True)
    return runs.runs()


def test_reads_the_same_with_and_without(runs):
    first = runs.runs()
    assert (runs.path / INDEX_NAME).is_file()
    np.testing.assert_equal(runs.runs(), first)
    np.testing.assert_equal(read_without_index(runs), first)


def test_a_small_ledger_has_none(tmp_path):
    Ledger(tmp_path).append(RUN)
    Ledger(tmp_path).runs()
    assert not (tmp_path / INDEX_NAME).exists()


def test_sees_what_was_added_finished_and_removed(runs):
    run_id = runs.append({**RUN, "seed": 9, "status": "started"})
    assert [run["status"] for run in runs.runs()].count("started") == 1
    runs.finish(run_id, {**RUN, "seed": 9})
    assert [run["status"] for run in runs.runs()].count("started") == 0
    (runs.path / f"{run_id}.json").unlink()
    assert len(runs.runs()) == 5
    np.testing.assert_equal(runs.runs(), read_without_index(runs))


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"\xff\x00", b'{"version": 99, "records": {}}', b'{"version": 1}']
)
def test_a_damaged_index_is_made_anew(runs, content):
    first = runs.runs()
    (runs.path / INDEX_NAME).write_bytes(content)
    np.testing.assert_equal(runs.runs(), first)
    assert json.loads((runs.path / INDEX_NAME).read_bytes())["version"] == 1


def test_a_damaged_record_is_named_as_ever(runs):
    runs.runs()
    path = runs.path / "foreign.json"
    path.write_text("{")
    with pytest.raises(ValueError, match=r"foreign\.json', which is no record"):
        runs.runs()


def test_records_are_the_callers_own(runs):
    runs.runs()
    runs.runs()[0]["metrics"].clear()
    assert runs.runs()[0]["metrics"]


def test_a_folder_that_cannot_be_written_is_read_all_the_same(runs, monkeypatch):
    def refuse(*arguments):
        raise PermissionError("Read-only file system")

    monkeypatch.setattr(os, "replace", refuse)
    assert len(runs.runs()) == 5
    assert [path.suffix for path in runs.path.iterdir()] == [".json"] * 5
