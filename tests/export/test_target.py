"""A version is there as a whole or not at all, whoever else exports: the steps of the move."""

import concurrent.futures
import contextlib
import errno
import fcntl
import os
import time

import pytest

from keras_calibration.export import target
from keras_calibration.export.target import Target, move_into_place, temporary_folder


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


def test_the_next_number_follows_the_highest_also_where_others_are_gone(tmp_path):
    for number in ("5", "10"):
        write(tmp_path / number, number)
    with temporary_folder(tmp_path) as temporary:
        write(temporary / "new", "this")
        assert move_into_place(temporary / "new", tmp_path, "next") == tmp_path / "11"


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
    make, made = target.tempfile.mkdtemp, []

    def make_and_lose(**arguments):
        made.append(make(**arguments))
        if len(made) == 1:
            os.rmdir(made[0])  # as another process does before the lock is taken
        return made[-1]

    monkeypatch.setattr(target.tempfile, "mkdtemp", make_and_lose)
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
        monkeypatch.setattr(target.time, "time", lambda: tomorrow)
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
    make, made = target.tempfile.mkdtemp, []

    def make_and_lose(**arguments):
        made.append(make(**arguments))
        os.rmdir(made[-1])
        return made[-1]

    monkeypatch.setattr(target.tempfile, "mkdtemp", make_and_lose)
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
            monkeypatch.setattr(target, "_remove", lambda folder: None)

            def rename_and_lose(source, target):
                os.unlink(source / "model")
                rename(source, target)

            monkeypatch.setattr(os, "rename", rename_and_lose)
        with pytest.raises(RuntimeError, match="Another process removed files"):
            move_into_place(folder / "new", tmp_path, "next")
    assert not [entry for entry in tmp_path.iterdir() if entry.name.isdecimal()]


def test_exports_that_fail_take_no_folder_from_others(tmp_path):
    """Each makes the folders above; one that fails removes them only where they are empty."""
    moved, place = [], Target(tmp_path / "a" / "b", "next")

    def export(number):
        for _ in range(10):
            with contextlib.suppress(KeyError), place.beside() as path:
                if number % 2:
                    raise KeyError("a converter")
                path.mkdir()
                (path / "file").write_text("content")
                moved.append(place.move(path))

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(export, range(4)))
    assert sorted(int(path.name) for path in moved) == list(range(1, 21))
    with contextlib.suppress(KeyError), Target(tmp_path / "c" / "d", "next").beside():
        raise KeyError("a converter")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
