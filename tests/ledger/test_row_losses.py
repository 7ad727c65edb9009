import os
import sys
from pathlib import Path

import numpy as np
import pytest

from keras_calibration.ledger.row_losses import hash_row_ids
from keras_calibration.seeds import Ledger

RUN = {"pipeline": "deepfm", "seed": 1, "status": "finished"}


def test_a_run_refers_to_its_losses(tmp_path):
    runs = Ledger(tmp_path / "runs")
    losses = np.random.default_rng(0).exponential(size=100)
    reference = runs.write_row_losses(losses, np.arange(100))
    runs.append({**RUN, "row_losses": reference, "num_rows": 100})
    (run,) = runs.runs()
    read = runs.read_row_losses(run)
    assert read.dtype == np.float32
    np.testing.assert_array_equal(read, losses.astype("float32"))
    assert run["row_losses"]["rows_hash"] == hash_row_ids(range(100))
    assert len(runs) == 1


def test_the_hash_tells_rows_and_their_order():
    hashes = [
        hash_row_ids(ids)
        for ids in ([1, 2, 3], [3, 2, 1], [1, 2], ["1", "2", "3"], ["12", "3"], ["1", "23"])
    ]
    assert len(set(hashes)) == len(hashes)
    assert hash_row_ids(np.array(["a", "b"])) == hash_row_ids(["a", "b"])


def test_what_a_killed_process_left_is_not_looked_at(tmp_path):
    runs = Ledger(tmp_path)
    runs.write_row_losses([0.5], [1])
    (tmp_path / "rows" / "half.tmp").write_bytes(b"\x93NUMPY")
    assert runs.runs() == []


def test_refuses_other_shapes_and_lost_files(tmp_path):
    runs = Ledger(tmp_path)
    with pytest.raises(ValueError, match=r"losses\.shape=\(2,\), row_ids\.shape=\(3,\)"):
        runs.write_row_losses([0.5, 0.5], [1, 2, 3])
    with pytest.raises(ValueError, match="must have row losses"):
        runs.read_row_losses({"row_losses": None})
    reference = runs.write_row_losses([0.5], [1])
    (tmp_path / reference["file"]).unlink()
    with pytest.raises(ValueError, match="Cannot read the row losses"):
        runs.read_row_losses({"row_losses": reference})


def test_a_reference_leads_nowhere_outside_the_ledger(tmp_path):
    np.save(tmp_path / "secret.npy", np.ones(3))
    runs = Ledger(tmp_path / "runs")
    with pytest.raises(ValueError, match="Cannot read"):
        runs.read_row_losses({"row_losses": {"file": "../secret.npy"}})


@pytest.mark.skipif(sys.platform != "linux", reason="Asks Linux which file it is.")
def test_losses_are_on_the_disk_with_their_folders(tmp_path, monkeypatch):
    """When the call returns: the run that refers to them is recorded afterwards."""
    synced, sync = [], os.fsync

    def watched(descriptor):
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    Ledger(tmp_path).write_row_losses([0.5], [1])
    assert [Path(path).suffix for path in synced] == [".tmp", "", ""]
    assert synced[1:] == [str(tmp_path / "rows"), str(tmp_path)]
