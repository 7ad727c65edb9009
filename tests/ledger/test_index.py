import json
import os

import numpy as np
import pytest

from keras_calibration.ledger import index, ledger
from keras_calibration.ledger.index import INDEX_NAME
from keras_calibration.seeds import Ledger

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
    assert json.loads((runs.path / INDEX_NAME).read_bytes())["version"] == index.INDEX_VERSION


def test_a_damaged_record_is_named_as_ever(runs):
    runs.runs()
    path = runs.path / "foreign.json"
    path.write_text("{")
    with pytest.raises(ValueError, match=r"must be the record of a run.*foreign\.json"):
        runs.runs()


def test_files_of_other_writers_may_vanish_while_they_are_looked_at(runs, monkeypatch):
    """As they do where a writer renames its temporary file between listing and looking."""
    first = runs.runs()
    (runs.path / "other.tmp").write_text("{")
    (runs.path / "foreign.json").write_text("{}")
    scan = os.scandir

    class Vanishing:
        """What `os.scandir` gave, whose entries are gone when their stat is asked for."""

        def __init__(self, folder):
            with scan(folder) as entries:
                self.entries = list(entries)
            for name in ("other.tmp", "foreign.json"):
                (runs.path / name).unlink(missing_ok=True)

        def __enter__(self):
            return iter(self.entries)

        def __exit__(self, *_):
            pass

    paths = runs._files()
    monkeypatch.setattr(os, "scandir", Vanishing)
    found = index.read_indexed(runs.path, paths[:-1], ledger._read)
    np.testing.assert_equal(found, first)


def test_damaged_files_are_left_out_where_asked(runs):
    (runs.path / "foreign.json").write_text("{")
    for _ in range(2):
        with pytest.warns(UserWarning, match=r"Skipped 1 invalid files .*foreign\.json"):
            assert len(runs.runs(skip_damaged=True)) == 5


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
