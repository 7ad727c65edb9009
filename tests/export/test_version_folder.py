"""A version is there as a whole or not at all, whoever else exports and whenever one is killed."""

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
import traceback

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_calibration as kc
from keras_calibration.export import version_folder
from keras_calibration.export.version_folder import move_into_place, temporary_folder

FILES = {"saved_model.pb", "fingerprint.pb", "assets", "assets.extra", "variables"}


def write(folder, text):
    folder.mkdir()
    (folder / "model").write_text(text)


def test_a_folder_is_put_in_place(tmp_path):
    with temporary_folder(tmp_path / "ctr") as temporary:
        write(temporary / "new", "1")
        path = move_into_place(temporary / "new", tmp_path / "ctr", "next")
    assert path == tmp_path / "ctr" / "1"
    assert [entry.name for entry in (tmp_path / "ctr").iterdir()] == ["1"]
    assert (path / "model").read_text() == "1"


def test_two_that_choose_the_same_number_get_two_numbers(tmp_path, monkeypatch):
    """The other process moves its version into place just before this one does."""
    rename = os.rename

    def rename_second(source, target):
        monkeypatch.setattr(os, "rename", rename)
        write(tmp_path / "1", "other")
        rename(source, target)

    with temporary_folder(tmp_path) as temporary:
        write(temporary / "new", "this")
        monkeypatch.setattr(os, "rename", rename_second)
        path = move_into_place(temporary / "new", tmp_path, "next")
    assert path == tmp_path / "2"
    assert [(tmp_path / name / "model").read_text() for name in "12"] == ["other", "this"]


@pytest.mark.parametrize("version", [None, 7])
def test_a_number_that_was_asked_for_is_not_taken_twice(version, tmp_path):
    write(tmp_path / "7", "other")
    with temporary_folder(tmp_path) as temporary:
        write(temporary / "new", "this")
        path = tmp_path / "7" if version is None else tmp_path
        with pytest.raises(ValueError, match="which exists"):
            move_into_place(temporary / "new", path, version)
    assert (tmp_path / "7" / "model").read_text() == "other"
    assert [entry.name for entry in tmp_path.iterdir()] == ["7"]


@pytest.mark.parametrize("kind", ["file", "broken link"])
def test_neither_file_nor_link_is_overwritten(kind, tmp_path):
    target = tmp_path / "7"
    target.write_text("kept") if kind == "file" else target.symlink_to(tmp_path / "nowhere")
    with temporary_folder(tmp_path) as temporary:
        write(temporary / "new", "this")
        with pytest.raises(ValueError, match="which exists"):
            move_into_place(temporary / "new", target, None)
    assert os.path.lexists(target)


def test_leftovers_go_and_what_is_being_written_stays(tmp_path):
    dead = tmp_path / ".export-dead"
    dead.mkdir()
    (dead / "half").write_text("written")
    with temporary_folder(tmp_path) as first:
        assert not dead.exists()
        write(first / "new", "1")
        with temporary_folder(tmp_path) as second:
            assert first.exists()
            assert second.exists()
        assert (first / "new" / "model").read_text() == "1"
    assert not list(tmp_path.iterdir())


def test_a_new_folder_that_passed_for_a_leftover_is_made_again(tmp_path, monkeypatch):
    make, made = version_folder.tempfile.mkdtemp, []

    def make_and_lose(**arguments):
        made.append(make(**arguments))
        if len(made) == 1:
            os.rmdir(made[0])  # as another process does before the lock is taken
        return made[-1]

    monkeypatch.setattr(version_folder.tempfile, "mkdtemp", make_and_lose)
    with temporary_folder(tmp_path) as folder:
        assert str(folder) == made[1]
        assert folder.is_dir()


def test_without_locks_one_folder_is_made_and_others_wait_a_day(tmp_path, monkeypatch):
    """As on file systems where flock fails: without an end it would make folder after folder."""

    def no_locks(descriptor, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with temporary_folder(tmp_path) as first, temporary_folder(tmp_path) as second:
        assert sorted(tmp_path.iterdir()) == sorted([first, second])
        tomorrow = time.time() + 25 * 3600
        monkeypatch.setattr(version_folder.time, "time", lambda: tomorrow)
        with temporary_folder(tmp_path):
            assert not first.exists()
            assert not second.exists()


def test_a_folder_of_another_host_stays_for_a_day(tmp_path):
    """The lock is not shared between hosts: this host gets it though the other one writes."""
    now = int(time.time())
    running, dead = (tmp_path / f".export-other-{t}-x" for t in (now - 60, now - 25 * 3600))
    running.mkdir()
    dead.mkdir()
    with temporary_folder(tmp_path):
        assert running.exists()
        assert not dead.exists()


def test_folders_that_others_take_away_are_not_made_for_ever(tmp_path, monkeypatch):
    make, made = version_folder.tempfile.mkdtemp, []

    def make_and_lose(**arguments):
        made.append(make(**arguments))
        os.rmdir(made[-1])
        return made[-1]

    monkeypatch.setattr(version_folder.tempfile, "mkdtemp", make_and_lose)
    with pytest.raises(OSError, match="removed or locked each"), temporary_folder(tmp_path):
        pass
    assert len(made) == 10


@pytest.mark.parametrize("moment", ["before the move", "during the removal"])
def test_what_another_process_removes_is_no_version(moment, tmp_path, monkeypatch):
    """Two hosts of one name, without shared locks: one cleans up while the other exports."""
    monkeypatch.setattr(fcntl, "flock", lambda *arguments: None)
    rename = os.rename

    def clean_up_first(source, target):
        monkeypatch.setattr(os, "rename", rename)
        with temporary_folder(tmp_path):
            pass
        rename(source, target)

    with temporary_folder(tmp_path) as folder:
        write(folder / "new", "this")
        if moment == "before the move":
            monkeypatch.setattr(os, "rename", clean_up_first)
        else:
            monkeypatch.setattr(version_folder, "_remove", lambda folder: None)

            def rename_and_lose(source, target):
                os.unlink(source / "model")
                rename(source, target)

            monkeypatch.setattr(os, "rename", rename_and_lose)
        with pytest.raises(RuntimeError, match="Another process removed files"):
            move_into_place(folder / "new", tmp_path, "next")
    assert not [entry for entry in tmp_path.iterdir() if entry.name.isdecimal()]


def export_and_tell(folder, duration_to):
    """Exports a small model as the next version, and writes down how long it took."""
    keras.utils.set_random_seed(0)
    inputs = {"x": keras.Input((1,), name="x")}
    base = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(inputs["x"]))
    model = kc.models.CalibratedModel(base, kc.layers.PlattScaling())
    rows = {"x": np.linspace(-1, 1, 8)}
    start = time.monotonic()
    (folder / "started").touch()
    kc.export_savedmodel(model, folder / "ctr", rows, version="next", verify="same_process")
    duration_to.write_text(json.dumps(time.monotonic() - start))


def in_a_child(function, *arguments):
    """The id of a new process that runs the function."""
    child = os.fork()
    if child == 0:
        try:
            function(*arguments)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return child


def kill_exports(folder, num_kills):
    """Kills exports at random moments of the time that one takes, until so many were killed."""
    rng = np.random.default_rng(0)
    duration, killed = folder / "seconds", 0
    _, status = os.waitpid(in_a_child(export_and_tell, folder, duration), 0)
    assert status == 0
    seconds = json.loads(duration.read_text())
    while killed < num_kills:
        (folder / "started").unlink()
        child = in_a_child(export_and_tell, folder, duration)
        while not (folder / "started").exists():
            time.sleep(0.001)
        time.sleep(seconds * rng.random())
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        killed += os.WIFSIGNALED(status)
        if status == 0:  # It was quicker than the first.
            seconds = min(seconds, json.loads(duration.read_text()))


def kill_at_the_move(folder, before):
    """An export that is killed right before or right after it is moved into place."""
    rename = os.rename

    def rename_and_die(source, target):
        if not os.path.basename(target).isdecimal():  # What a killed export has left is removed.
            return rename(source, target)
        if not before:
            rename(source, target)
        return os.kill(os.getpid(), signal.SIGKILL)

    os.rename = rename_and_die
    export_and_tell(folder, folder / "unused")


@pytest.mark.slow
def test_killed_at_any_moment_a_version_is_absent_or_whole(tmp_path):
    # TensorFlow's threads do not live on in a fork: the forks are those of a fresh process that has
    # imported it and computed nothing, which spares each of them the import.
    program = (
        "import importlib.util, os, pathlib, sys\n"
        f"spec = importlib.util.spec_from_file_location('kills', {__file__!r})\n"
        "kills = importlib.util.module_from_spec(spec); spec.loader.exec_module(kills)\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "kills.kill_exports(folder, 12)\n"
        "for before in (False, True):\n"
        "    child = kills.in_a_child(kills.kill_at_the_move, folder, before)\n"
        "    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # The one that was killed right before the move has left everything but the last step.
    assert list((tmp_path / "ctr").glob(".export-*/model/assets.extra/provenance.json"))
    versions = sorted(int(e.name) for e in (tmp_path / "ctr").iterdir() if e.name.isdecimal())
    assert versions == list(range(1, len(versions) + 1))
    # The first, and the one killed right after the move, at least.
    assert len(versions) >= 2
    x = np.linspace(-1, 1, 5, dtype="float32")[:, None]
    served = []
    for version in versions:
        path = tmp_path / "ctr" / str(version)
        assert {entry.name for entry in path.iterdir()} == FILES
        assert json.loads((path / "assets.extra" / "provenance.json").read_text())["verification"]
        serving = tf.saved_model.load(str(path)).signatures["serving_default"]
        served.append(serving(x=tf.constant(x))["probability"].numpy())
        np.testing.assert_array_equal(served[-1], served[0])
    export_and_tell(tmp_path, tmp_path / "unused")
    assert not list((tmp_path / "ctr").glob(".export-*"))
    assert (tmp_path / "ctr" / str(len(versions) + 1)).is_dir()
