import json
import math
import os
import tempfile

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_calibration.seeds import Ledger, compare

STARTED = {"pipeline": "deepfm", "seed": 7, "status": "started"}
FINISHED = {
    **STARTED,
    "status": "finished",
    "epochs": [0, 1],
    "metrics": {"loss": [0.5, 0.25], "val_loss": [None, 0.125]},
    "initial_weights": "ab12",
    "backend": "tensorflow",
    "versions": {"keras": "3.15.1", "torch": None},
    "configuration": {"layers": [8, 8], "lr": 0.1},
    "seeds": {"initialization": 7, "order": 1},
    "num_rows": 60_000,
    "training": None,
    "kept_epoch": 0,
    "directions": {"val_loss": "min"},
}


def test_appends_and_reads(tmp_path):
    runs = Ledger(tmp_path)
    run_id = runs.append(FINISHED)
    (record,) = runs.runs()
    assert record == {**FINISHED, "run_id": run_id, "created": record["created"]}
    assert record["created"].endswith("+00:00")
    assert [path.name for path in tmp_path.iterdir()] == [f"{run_id}.json"]


def test_reads_by_pipeline_and_status_in_the_order_of_time(tmp_path):
    runs = Ledger(str(tmp_path))
    runs.append({**FINISHED, "seed": 3})
    for pipeline in ("dcn", "deepfm 2", 'deep"fm', "with / slash"):
        runs.append({**FINISHED, "pipeline": pipeline})
    runs.append({**FINISHED, "seed": 1})
    runs.append({**STARTED, "seed": 2})
    assert [run["seed"] for run in runs.runs("deepfm")] == [3, 1, 2]
    assert [run["seed"] for run in runs.runs("deepfm", status="finished")] == [3, 1]
    assert [run["seed"] for run in runs.runs(status="started")] == [2]
    assert runs.runs("xdeepfm") == []
    with pytest.raises(ValueError, match="status='done'"):
        runs.runs(status="done")


def test_a_path_that_can_be_no_folder_is_refused(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / ("n" * 256) / "runs", "ü" * 128, "a\0b"):
        with pytest.raises(ValueError, match="must be the path of a folder"):
            Ledger(path)
    Ledger(tmp_path / ("n" * 255)).append(STARTED)


def test_a_ledger_is_empty_and_makes_no_folder_until_a_run_is_appended(tmp_path):
    runs = Ledger(tmp_path / "a" / "b")
    assert (len(runs), runs.runs()) == (0, [])
    assert not (tmp_path / "a").exists()
    runs.append(STARTED)
    assert len(runs) == 1


def test_a_relative_path_stays_when_the_program_changes_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs = Ledger("runs")
    runs.append(STARTED)
    monkeypatch.chdir("/")
    assert len(runs) == 1


def test_non_finite_metrics_are_stored_as_strict_json(tmp_path):
    values = [math.nan, math.inf, -math.inf, None, 0.1]
    record = {**FINISHED, "epochs": list(range(5)), "metrics": {"loss": values}}
    run_id = Ledger(tmp_path).append(record)

    def refuse(token):
        raise AssertionError(f"{token} is not JSON")

    text = (tmp_path / f"{run_id}.json").read_text(encoding="ascii")
    stored = json.loads(text, parse_constant=refuse)["metrics"]["loss"]
    assert stored == ["nan", "inf", "-inf", None, 0.1]
    (read,) = Ledger(tmp_path).runs()
    np.testing.assert_equal(read["metrics"]["loss"], values)


def test_finish_replaces_what_had_started_and_nothing_else(tmp_path):
    runs = Ledger(tmp_path)
    run_id = runs.append(STARTED)
    (started,) = runs.runs()
    runs.finish(run_id, FINISHED)
    (finished,) = runs.runs()
    assert (finished["run_id"], finished["created"]) == (run_id, started["created"])
    assert (finished["status"], len(runs)) == ("finished", 1)
    for other in (run_id, "nothing"):
        with pytest.raises(ValueError, match="`run_id`"):
            runs.finish(other, {**FINISHED, "seed": 8})
    with pytest.raises(ValueError, match="`status`"):
        runs.finish(run_id, STARTED)
    assert runs.runs()[0]["seed"] == 7
    other = runs.append({**STARTED, "seed": 8})
    for change in ({"seed": 9}, {"seed": 8, "pipeline": "dcn"}):
        with pytest.raises(ValueError, match=r"`record`.*pipeline and seed"):
            runs.finish(other, {**FINISHED, **change})
    assert [run["status"] for run in runs.runs()] == ["finished", "started"]


WRONG = {
    "pipeline": ["", None],
    "seed": ["7", 7.0, True],
    "status": ["done"],
    "epochs": [[1, 0], [1, 1], [-1, 0], 2],
    "metrics": [[0.5], *({"loss": v} for v in ([0.5], 0.5, ["0.5", "low"])), {3: [0.5, 0.25]}],
    "initial_weights": [b"ab"],
    "versions": [["3.15"]],
    "configuration": [{"at": {1, 2}}, [math.nan]],
    "seeds": [{"order": 0.5}],
    "num_rows": [-1],
    "kept_epoch": ["best", 7],
    "directions": [{"loss": "up"}, {"loss": []}],
    "training": ["a file"],
}


@pytest.mark.parametrize("name", WRONG)
def test_refuses_a_wrong_record_and_writes_nothing(tmp_path, name):
    for value in WRONG[name]:
        with pytest.raises(ValueError, match=f"`{name}` must"):
            Ledger(tmp_path).append({**FINISHED, name: value})
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_record_and_no_run_id_is_refused(tmp_path):
    runs = Ledger(tmp_path)
    for write in (runs.append, lambda record: runs.finish("id", record)):
        with pytest.raises(ValueError, match="`record`"):
            write(None)
    with pytest.raises(ValueError, match="`run_id`"):
        runs.finish(None, FINISHED)


@pytest.mark.parametrize("text", ["", '{"run_id": 1', "[" * 10**5, "3", "{}", "\x00", "\u00e9"])
def test_names_the_file_that_is_no_record(tmp_path, text):
    runs = Ledger(tmp_path)
    runs.append(FINISHED)
    (tmp_path / "foreign.json").write_text(text, encoding="latin-1")
    with pytest.raises(ValueError, match=r"foreign\.json"):
        runs.runs()


@pytest.mark.parametrize("path", [None, 5, ["runs"]])
def test_a_path_that_is_none_is_refused(path):
    frame = pd.DataFrame({"pipeline": "dcn", "seed": [1], "loss": 0.5})
    for call in (Ledger, lambda path: Ledger.from_frame(frame, path)):
        with pytest.raises(ValueError, match="A ledger must"):
            call(path)
    with pytest.raises(ValueError, match="A ledger must"):
        compare(path, "dcn", "deepfm")


def test_looks_at_no_other_files(tmp_path):
    Ledger(tmp_path).append(FINISHED)
    (tmp_path / "20260101T000000000000Z-00.tmp").write_text('{"schema')
    (tmp_path / "README.md").write_text("Our runs.")
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "link.json").symlink_to(tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe.json")
    assert len(Ledger(tmp_path).runs()) == len(Ledger(tmp_path)) == 1


def test_a_run_id_is_no_path(tmp_path):
    other = Ledger(tmp_path / "other")
    run_id = other.append(STARTED)
    Ledger(tmp_path / "runs").append(STARTED)
    with pytest.raises(ValueError, match=r"`run_id`.*folders"):
        Ledger(tmp_path / "runs").finish(f"../other/{run_id}", FINISHED)
    assert other.runs()[0]["status"] == "started"


def test_a_record_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    calls = []

    def watch(name):
        call = getattr(os, name)

        def watched(*arguments):
            calls.append((name, [path.suffix for path in tmp_path.iterdir()]))
            return call(*arguments)

        monkeypatch.setattr(os, name, watched)

    watch("fsync")
    watch("replace")
    Ledger(tmp_path).append(FINISHED)
    assert calls == [("fsync", [".tmp"]), ("replace", [".tmp"]), ("fsync", [".json"])]


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=30)
@given(data=st.data())
def test_round_trip(data):
    epochs = sorted(data.draw(st.sets(st.integers(0, 10**6), max_size=4)))
    values = st.lists(st.none() | st.floats(width=64), min_size=len(epochs), max_size=len(epochs))
    record = {
        "pipeline": data.draw(st.text(st.characters(exclude_categories=()), min_size=1)),
        "seed": data.draw(st.integers()),
        "status": data.draw(st.sampled_from(["started", "finished", "diverged"])),
        "epochs": epochs,
        "metrics": data.draw(st.dictionaries(st.text(), values, max_size=3)),
        "configuration": data.draw(json_values),
    }
    with tempfile.TemporaryDirectory() as folder:
        Ledger(folder).append(record)
        (read,) = Ledger(folder).runs(record["pipeline"])
    np.testing.assert_equal({name: read[name] for name in record}, record)


def test_a_damaged_record_of_another_pipeline_is_no_error_of_this_one(tmp_path):
    ledger = Ledger(tmp_path)
    ledger.append({**FINISHED, "pipeline": "mine"})
    (tmp_path / "a.json").write_text('{"pipeline": "theirs", "seed": "one"}')
    assert len(ledger.runs("mine")) == 1
    with pytest.raises(ValueError, match=r"a\.json"):
        ledger.runs("theirs")
    # Cut off: nobody knows whose it is.
    (tmp_path / "a.json").write_text('{"pipeline": "the')
    with pytest.raises(ValueError, match=r"a\.json"):
        ledger.runs("mine")
