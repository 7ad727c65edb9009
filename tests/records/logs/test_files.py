"""Which files a log is: of paths, folders, globs, links and addresses."""

import os
from pathlib import Path

import duckdb
import pandas as pd
import pytest

from calibration_records.logs.files import LogFile, log_files
from keras_calibration.logs import ScoredLog, log_sums
from keras_calibration.metrics import LogLoss
from keras_calibration.scoring import log_queries, score


def frame(*probabilities):
    return pd.DataFrame({"label": 1, "probability": probabilities})


def write(folder, *names):
    """A file of one row for each name, the n-th with the probability (n + 1) / 100."""
    for number, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = frame((number + 1) / 100)
        if path.suffix == ".gz" or ".csv" in path.name.lower():
            rows.to_csv(path, index=False)
        else:
            rows.to_parquet(path)


def found(source, folder):
    return [os.path.relpath(file.path, folder) for file in log_files(source)]


def num_rows(source):
    log = ScoredLog(source)
    return log_sums(log, log_queries(log)).num_rows


BESIDE = ("_temporary/0/a.parquet", ".tmp/a.parquet", ".ipynb_checkpoints/a.parquet", "_a.parquet")


def test_a_folder_is_its_data_files(tmp_path):
    data = ["B.PARQUET", "a.parquet", "day=1/c.snappy.parquet", "x.parquet/part-0.parquet"]
    write(tmp_path, *data, *BESIDE, ".a.parquet", "a.parquet.bak", "a.parquet.tmp")
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / "notes.txt").touch()
    assert found(tmp_path, tmp_path) == data
    assert found(str(tmp_path) + "/", tmp_path) == data
    assert num_rows(tmp_path) == 4


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*", ["a.parquet", "day=1/b.parquet", "day=2/b.parquet"]),
        ("*.parquet", ["a.parquet"]),
        ("*.pq", ["c.pq"]),
        ("**", ["a.parquet", "day=1/b.parquet", "day=2/b.parquet"]),
        ("**/*.parquet", ["a.parquet", "day=1/b.parquet", "day=2/b.parquet"]),
        ("day=*", ["day=1/b.parquet", "day=2/b.parquet"]),
        ("day=[12]/?.parquet", ["day=1/b.parquet", "day=2/b.parquet"]),
        ("_temporary/**/*.parquet", ["_temporary/0/a.parquet"]),
        ("_temporary", ["_temporary/0/a.parquet"]),
        ("_a.parquet", ["_a.parquet"]),
        ("a.parquet.bak", ["a.parquet.bak"]),
        ("*.bak", ["a.parquet.bak"]),
    ],
)
def test_what_a_glob_matches(tmp_path, pattern, expected):
    names = ("a.parquet", "day=1/b.parquet", "day=2/b.parquet", "c.pq", "a.parquet.bak")
    write(tmp_path, *names, *BESIDE)
    assert found(tmp_path / pattern, tmp_path) == expected
    assert found((tmp_path / pattern).as_posix(), tmp_path) == expected


def test_a_glob_below_a_hidden_folder(tmp_path):
    write(tmp_path, ".cache/_logs/a.parquet", ".cache/_logs/_b.parquet")
    assert found(tmp_path / ".cache/_logs/*", tmp_path) == [".cache/_logs/a.parquet"]


HOSTILE = ("log[1].parquet", "x*.parquet", "q?.parquet", "a[!b].parquet", "it's.parquet")
HOSTILE += ("l{1,2}.parquet", "ü\n.parquet", "f[o]lder/a.parquet", "a b%20.parquet", "[[].parquet")


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_characters_of_globs_in_names_are_literal(tmp_path, suffix):
    names = [name.replace(".parquet", suffix) for name in HOSTILE]
    write(tmp_path, *names)
    others = ("log1", "xy", "qz", "ac", "l1", "folder/a", "[")
    for name in others:
        write(tmp_path / "others", f"{name}{suffix}")
        path = tmp_path / f"{name}{suffix}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes((tmp_path / "others" / f"{name}{suffix}").read_bytes())
    for number, name in enumerate(names):
        for source in (tmp_path / name, [str(tmp_path / name)], (tmp_path / name).as_uri()):
            loss = score(ScoredLog(source), LogLoss(), verbose=0)["log_loss"]
            expected = score(ScoredLog(frame((number + 1) / 100)), LogLoss(), verbose=0)
            assert loss == pytest.approx(expected["log_loss"], rel=1e-12), name
    assert num_rows(tmp_path) == len(names) + 2 * len(others)


def test_the_names_of_folders_are_not_columns(tmp_path):
    write(tmp_path, "label=0/probability=0.5/a.parquet", "label=0/probability=0.5/a.csv")
    for name in ("a.parquet", "a.csv"):
        loss = score(ScoredLog(tmp_path / "label=0/probability=0.5" / name), LogLoss(), verbose=0)
        expected = 0.01 if name == "a.parquet" else 0.02
        assert loss == score(ScoredLog(frame(expected)), LogLoss(), verbose=0)


def test_links_and_circles_are_read_once(tmp_path):
    write(tmp_path / "elsewhere", "b.parquet")
    write(tmp_path / "logs", "2026/a.parquet")
    (tmp_path / "logs/latest.parquet").symlink_to("2026/a.parquet")
    (tmp_path / "logs/0-newest").symlink_to("2026")
    (tmp_path / "logs/more").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "logs/2026/up").symlink_to(tmp_path / "logs")
    assert num_rows(tmp_path / "logs") == 2
    assert num_rows(tmp_path / "logs/**/*.parquet") == 2
    assert found(tmp_path / "logs/latest.parquet", tmp_path) == ["logs/latest.parquet"]
    (tmp_path / "logs/gone.parquet").symlink_to("absent")
    with pytest.raises(ValueError, match=r"that can be read. .*gone.parquet"):
        log_files(tmp_path / "logs")


def test_a_list_keeps_its_order_and_names_no_file_twice(tmp_path):
    write(tmp_path, "a.parquet", "b.parquet", "c.parquet")
    given = [tmp_path / "c.parquet", str(tmp_path / "[ab].parquet")]
    assert found(given, tmp_path) == ["c.parquet", "a.parquet", "b.parquet"]
    for twice in ("a.parquet", "*.parquet", "../" + tmp_path.name + "/a.parquet"):
        with pytest.raises(ValueError, match=r"must name each file once. .*'.*a.parquet' and '"):
            log_files([tmp_path / "a.parquet", f"{tmp_path}/{twice}"])


@pytest.mark.parametrize("name", ["", "folder", "absent.parquet", "*.csv", "file:///absent.csv"])
def test_no_files_are_an_error(tmp_path, name, monkeypatch):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes.txt").touch()
    monkeypatch.chdir(tmp_path / "folder")
    with pytest.raises(ValueError, match="must name existing Parquet or CSV files"):
        log_files(name if name.startswith("file") or not name else tmp_path / name)


def test_mixed_formats_are_an_error(tmp_path):
    write(tmp_path, "a.parquet", "b.CSV", "c.csv.gz")
    with pytest.raises(ValueError, match=r"not both. Received: 2 CSV files, .*b.CSV.* 1 others"):
        num_rows(tmp_path)
    assert num_rows(tmp_path / "*.[cC]*") == 2


def test_what_identifies_a_file(tmp_path):
    write(tmp_path, "a.parquet", "b.parquet")
    files = log_files(tmp_path)
    about = os.stat(tmp_path / "a.parquet")
    assert files[0] == LogFile(str(tmp_path / "a.parquet"), about.st_size, about.st_mtime_ns)
    # Files that were found are read as they are, also where a glob would match others by now.
    assert log_files(files[1:]) == files[1:]
    assert num_rows(files) == 2
    assert num_rows(files[0]) == 1


def test_addresses_are_listed_by_their_store(tmp_path):
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    names = ("log[1].parquet", "log1.parquet", "_temporary/a.parquet", "b.PARQUET", "a.txt")
    write(tmp_path, *names)
    for name in names:
        memory.pipe_file(f"/bucket/{name}", (tmp_path / name).read_bytes())
    with duckdb.connect() as connection:
        connection.register_filesystem(memory)
        found_files = log_files("memory://bucket", connection)
        assert [Path(file.path).name for file in found_files] == list(
            names[3:4] + names[1:2] + names[:1]
        )
        assert found_files[0].size == (tmp_path / "b.PARQUET").stat().st_size
        assert len(log_files("memory://bucket/*1*.parquet", connection)) == 2
