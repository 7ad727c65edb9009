"""A version is there as a whole or not at all, whoever else exports."""

import concurrent.futures
import contextlib
import os

import pytest

from keras_calibration.export.target import Target


def put(place, text="this"):
    """Makes a version as an export does, and returns its path."""
    with place.temporary_path() as path:
        if place.is_file:
            path.write_text(text)
        else:
            path.mkdir()
            (path / "model").write_text(text)
        return place.move(path)


def names_in(folder):
    return sorted(entry.name for entry in folder.iterdir())


def test_the_next_number_follows_the_highest_also_where_others_are_gone(tmp_path):
    for number in ("5", "10", "notes"):
        (tmp_path / number).mkdir()
    assert put(Target(tmp_path, "next")) == tmp_path / "11"
    assert (tmp_path / "11" / "model").read_text() == "this"
    assert names_in(tmp_path) == ["10", "11", "5", "notes"]
    assert put(Target(tmp_path / "new" / "ctr", "next")).name == "1"


@pytest.mark.parametrize("is_file", [False, True])
@pytest.mark.parametrize("version", [None, 7])
@pytest.mark.parametrize("kind", ["folder", "file", "broken link"])
def test_what_is_there_is_never_overwritten(version, kind, is_file, tmp_path):
    """Neither where it is there from the start, nor where it comes during the export."""
    place = Target(tmp_path / "7" if version is None else tmp_path, version, is_file=is_file)
    with place.temporary_path() as path:
        if is_file:
            path.write_text("this")
        else:
            path.mkdir()
        if kind == "folder":
            put(Target(tmp_path / "7"), "other")
        elif kind == "file":
            (tmp_path / "7").write_text("other")
        else:
            (tmp_path / "7").symlink_to(tmp_path / "nowhere")
        with pytest.raises(ValueError, match="which exists"):
            place.move(path)
    with pytest.raises(ValueError, match="which exists"):
        place.check()
    assert names_in(tmp_path) == ["7"]
    if kind != "broken link":
        kept = tmp_path / "7" / "model" if kind == "folder" else tmp_path / "7"
        assert kept.read_text() == "other"


@pytest.mark.parametrize("version", [None, "next", 7])
def test_a_place_where_nothing_can_be_written_is_refused(version, tmp_path, monkeypatch):
    """Also for an administrator, whom the modes of a folder do not stop."""
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / "m" / "1", tmp_path / "file" / "1"):
        with pytest.raises(ValueError, match=r"`path`.*file'"):
            Target(path, version).check()
    Target(tmp_path / "m" / "1", version).check()
    access = os.access
    monkeypatch.setattr(os, "access", lambda p, mode: p != tmp_path and access(p, mode))
    with pytest.raises(ValueError, match="`path`"):
        Target(tmp_path / "m" / "1", version).check()


@pytest.mark.parametrize("is_file", [False, True])
def test_an_export_is_on_the_disk_before_it_has_its_name(is_file, tmp_path, monkeypatch):
    """Its files, its folders, and then its name in the folder around it."""
    calls, sync = [], os.fsync

    def watched(descriptor):
        is_there = (tmp_path / "7").exists()
        calls.append((os.readlink(f"/proc/self/fd/{descriptor}"), is_there))
        sync(descriptor)

    place = Target(tmp_path / "7" if is_file else tmp_path, None if is_file else 7, is_file)
    with place.temporary_path() as path:
        files = [path]
        if is_file:
            path.write_text("this")
        else:
            (path / "inner").mkdir(parents=True)
            (path / "model").write_text("this")
            (path / "inner" / "weights").write_text("this")
            files = [path, path / "inner", path / "model", path / "inner" / "weights"]
        monkeypatch.setattr(os, "fsync", watched)
        place.move(path)
    assert sorted(calls[:-1]) == sorted((str(file), False) for file in files)
    assert calls[-1] == (str(tmp_path), True)


def test_two_that_choose_the_same_number_get_two_numbers(tmp_path, monkeypatch):
    """The other process moves its version into place just before this one does."""
    rename = os.rename

    def rename_second(source, target):
        monkeypatch.setattr(os, "rename", rename)
        put(Target(tmp_path, 1), "other")
        rename(source, target)

    monkeypatch.setattr(os, "rename", rename_second)
    assert put(Target(tmp_path, "next")) == tmp_path / "2"
    assert [(tmp_path / name / "model").read_text() for name in "12"] == ["other", "this"]


@pytest.mark.parametrize("version", [None, "next"])
def test_an_export_that_fails_leaves_no_folder(version, tmp_path):
    place = Target(tmp_path / "a" / "b", version)
    with contextlib.suppress(KeyError), place.temporary_path() as path:
        path.mkdir()
        raise KeyError("a converter")
    assert names_in(tmp_path) == []
    assert put(place).is_dir()


def test_exports_that_fail_leave_those_of_others(tmp_path):
    moved, place = [], Target(tmp_path / "a" / "b", "next")

    def export(number):
        for _ in range(10):
            with contextlib.suppress(KeyError), place.temporary_path() as path:
                if number % 2:
                    raise KeyError("a converter")
                path.mkdir()
                (path / "file").write_text("content")
                moved.append(place.move(path))

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(export, range(4)))
    assert sorted(int(path.name) for path in moved) == list(range(1, 21))
    assert names_in(tmp_path / "a" / "b") == sorted(map(str, range(1, 21)))
