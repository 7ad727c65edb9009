"""Exports and refreshes under attack: killed, side by side, on full disks, of damaged versions."""

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
import traceback
import zipfile

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_calibration as kc
from keras_calibration.export import target
from keras_calibration.export.provenance import files_sha256, read_provenance, write_provenance
from tiers import attack_size, only_in_full_attack

pytestmark = [
    pytest.mark.slow,
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:The head .* changes no probability:UserWarning"),
]
FILES = {
    "saved_model.pb",
    "fingerprint.pb",
    "variables/variables.index",
    "variables/variables.data-00000-of-00001",
    "assets.extra/head.keras",
    "assets.extra/provenance.json",
    "assets.extra/tf_serving_warmup_requests",
}
X = np.linspace(-1, 1, 64, dtype="float32")[:, None]
LOGITS = np.linspace(-2, 2, 200)
LABELS = LOGITS + np.sin(np.arange(200)) > 0


def small_model():
    keras.utils.set_random_seed(0)
    inputs = {"x": keras.Input((1,), name="x")}
    base = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(inputs["x"]))
    return kc.models.CalibratedModel(base, kc.layers.PlattScaling())


def export(path, **arguments):
    return kc.export_savedmodel(small_model(), path, {"x": X}, verify="same_process", **arguments)


def refresh(path, **arguments):
    return kc.refresh_savedmodel(
        path, LOGITS, LABELS, from_logits=True, verify="same_process", **arguments
    )


def versions(folder):
    """The numbered folders; each is whole: every file is there, and not empty."""
    numbers = sorted(int(path.name) for path in folder.glob("*") if path.name.isdecimal())
    for number in numbers:
        found = {
            str(path.relative_to(folder / str(number))): path.stat().st_size
            for path in (folder / str(number)).rglob("*")
            if path.is_file()
        }
        assert set(found) == FILES
        assert all(found.values())
        json.loads((folder / str(number) / "assets.extra" / "provenance.json").read_text())
    return numbers


def others(folder):
    return [path.name for path in folder.glob("*") if not path.name.isdecimal()]


def assert_served(folder):
    """Every version can be loaded, and gives a probability."""
    for number in versions(folder):
        serving = tf.saved_model.load(str(folder / str(number))).signatures["serving_default"]
        assert np.isfinite(serving(x=tf.constant(X))["probability"].numpy()).all()


# The steps of an export with files of nothing, which start in no time: from their own file.
STEPS = f"""
import importlib.util, pathlib, sys
spec = importlib.util.spec_from_file_location("target", {target.__file__!r})
steps = importlib.util.module_from_spec(spec)
spec.loader.exec_module(steps)
folder = pathlib.Path(sys.argv[1])
print("ready", flush=True)
for _ in range(int(sys.argv[2])):
    with steps.temporary_folder(folder) as temporary:
        model = temporary / "model"
        for part in range(5):
            (model / str(part)).mkdir(parents=True)
            for number in range(5):
                (model / str(part) / str(number)).write_text("whole")
        print(steps.move_into_place(model, folder, "next").name, flush=True)
"""


def start_steps(folder, num_exports):
    command = [sys.executable, "-c", STEPS, str(folder), str(num_exports)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    return process


def assert_steps_whole(folder):
    numbers = sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal())
    assert numbers == [*range(1, len(numbers) + 1)]
    for number in numbers:
        texts = [p.read_text() for p in (folder / str(number)).rglob("*") if p.is_file()]
        assert texts == ["whole"] * 25
    return numbers


def test_the_steps_of_an_export_killed_at_forty_moments(tmp_path):
    rng, told = random.Random(0), []
    started = start_steps(tmp_path, 3)
    start = time.monotonic()
    told += [int(line) for line in started.communicate()[0].split()]
    seconds = time.monotonic() - start
    for _ in range(attack_size(10, 40)):
        process = start_steps(tmp_path, 10**6)
        time.sleep(rng.random() * seconds)
        process.kill()
        lines = process.communicate()[0].splitlines(keepends=True)
        told += [int(line) for line in lines if line.endswith("\n")]
        assert len(others(tmp_path)) <= 2
    assert set(told) <= set(assert_steps_whole(tmp_path))
    assert len(set(told)) == len(told) > 0
    with target.temporary_folder(tmp_path):
        pass
    assert others(tmp_path) == []


def test_exporters_side_by_side_get_versions_of_their_own(tmp_path):
    num_processes, num_exports = attack_size((3, 6), (6, 20))
    processes = [start_steps(tmp_path, num_exports) for _ in range(num_processes)]
    told = [int(line) for process in processes for line in process.communicate()[0].split()]
    assert [process.returncode for process in processes] == [0] * num_processes
    assert sorted(told) == assert_steps_whole(tmp_path)
    assert len(told) == num_processes * num_exports
    assert others(tmp_path) == []


def act_and_tell(act, folder):
    """Exports or refreshes, and writes down how long it took."""
    start = time.monotonic()
    (folder / "started").touch()
    act(folder / "ctr", **({"version": "next"} if act is export else {}))
    (folder / "seconds").write_text(json.dumps(time.monotonic() - start))


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


def kill_at_random(act, folder, num_kills):
    """Kills at random moments of the time that one takes, until so many were killed."""
    rng, killed = random.Random(0), 0
    _, status = os.waitpid(in_a_child(act_and_tell, act, folder), 0)
    assert status == 0
    seconds = json.loads((folder / "seconds").read_text())
    while killed < num_kills:
        (folder / "started").unlink()
        child = in_a_child(act_and_tell, act, folder)
        while not (folder / "started").exists():
            time.sleep(0.001)
        time.sleep(seconds * rng.random())
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        killed += os.WIFSIGNALED(status)
        versions(folder / "ctr")
        if status == 0:  # It was quicker than the first.
            seconds = min(seconds, json.loads((folder / "seconds").read_text()))


def kill_at_the_move(act, folder, before):
    """One that is killed right before or right after it is moved into place."""
    rename = os.rename

    def rename_and_die(source, target):
        if not os.path.basename(target).isdecimal():  # What a killed one has left is removed.
            return rename(source, target)
        if not before:
            rename(source, target)
        return os.kill(os.getpid(), signal.SIGKILL)

    os.rename = rename_and_die
    act_and_tell(act, folder)


# TensorFlow's threads do not live on in a fork: the forks are those of a fresh process that has
# imported it and computed nothing, which spares each of them the import.
KILLS = f"""
import importlib.util, os, pathlib, sys
spec = importlib.util.spec_from_file_location("attacks", {__file__!r})
attacks = importlib.util.module_from_spec(spec); spec.loader.exec_module(attacks)
folder, act = pathlib.Path(sys.argv[1]), getattr(attacks, sys.argv[2])
attacks.kill_at_random(act, folder, int(sys.argv[3]))
for before in (False, True):
    child = attacks.in_a_child(attacks.kill_at_the_move, act, folder, before)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
"""


@pytest.mark.slow
@pytest.mark.parametrize("act", ["export", "refresh"])
def test_killed_at_any_moment_a_version_is_absent_or_whole(act, tmp_path):
    if act == "refresh":
        export(tmp_path / "ctr", version="next")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", KILLS, str(tmp_path), act, str(attack_size(5, 18))],
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "ctr"
    # The one that was killed right before the move has left everything but the last step.
    assert list(folder.glob(".export-*/model/assets.extra/provenance.json"))
    numbers = versions(folder)
    assert numbers == [*range(1, len(numbers) + 1)]
    # The first, and the one killed right after the move, at least.
    assert len(numbers) >= 2
    assert_served(folder)
    export(folder, version="next")
    assert others(folder) == []
    # No file elsewhere either, where no export would remove it, but TensorFlow's own; Keras leaves
    # an empty folder.
    left = [path.name for path in temporary.rglob("*") if path.is_file()]
    assert [name for name in left if not name.startswith("__autograph_generated_file")] == []


SIDE_BY_SIDE = f"""
import importlib.util, pathlib, sys
spec = importlib.util.spec_from_file_location("attacks", {__file__!r})
attacks = importlib.util.module_from_spec(spec); spec.loader.exec_module(attacks)
for _ in range(4):
    attacks.export(pathlib.Path(sys.argv[1]), version="next")
    attacks.refresh(pathlib.Path(sys.argv[1]))
"""


@only_in_full_attack
def test_exports_and_refreshes_side_by_side(tmp_path):
    command = [sys.executable, "-c", SIDE_BY_SIDE, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    processes = [subprocess.Popen(command, env=environment) for _ in range(3)]
    assert [process.wait() for process in processes] == [0] * 3
    assert versions(tmp_path) == [*range(1, 25)]
    assert others(tmp_path) == []
    assert_served(tmp_path)


@pytest.mark.parametrize("act", [export, refresh])
def test_a_full_disk_leaves_no_version(act, tmp_path):
    """`RLIMIT_FSIZE`: the kernel refuses to write on in the middle of a file, here of each."""
    if act is refresh:
        first = export(tmp_path / "ctr", version="next")
        sizes = [path.stat().st_size for path in first.rglob("*") if path.is_file()]
    else:
        sizes = [100, 3_000, 30_000]
    before = versions(tmp_path / "ctr") if act is refresh else []
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for size in sorted(set(sizes))[:: attack_size(2, 1)]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size - 1, hard))
        try:
            with pytest.raises(Exception, match=r"."):
                act(tmp_path / "ctr", **({"version": "next"} if act is export else {}))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert versions(tmp_path / "ctr") == before
        assert others(tmp_path / "ctr") == []


@pytest.mark.parametrize("place", ["at the path", "above it", "two above it"])
def test_a_file_in_the_way_is_kept(place, tmp_path, monkeypatch):
    """And is found before anything is computed."""
    monkeypatch.setattr(kc.models.CalibratedModel, "predict", None)
    file = tmp_path / "ctr"
    file.write_text("mine")
    path = {"at the path": file, "above it": file / "1", "two above it": file / "a" / "1"}[place]
    for version in (None, "next", 3):
        with pytest.raises(ValueError, match=r"Argument `path` must be"):
            export(path, version=version)
    for write in (kc.export_onnx, kc.export_litert):
        with pytest.raises(ValueError, match=r"Argument `path` must be"):
            write(small_model(), path)
    assert file.read_text() == "mine"
    assert os.listdir(tmp_path) == ["ctr"]


def test_files_named_like_versions_are_kept(tmp_path):
    (tmp_path / "3").write_text("mine")
    (tmp_path / "7").symlink_to(tmp_path / "nowhere")
    assert export(tmp_path, version="next").name == "8"
    for version in (3, 7):
        with pytest.raises(ValueError, match="which exists"):
            export(tmp_path, version=version)
    assert (tmp_path / "3").read_text() == "mine"
    assert (tmp_path / "7").is_symlink()


def test_of_two_that_write_one_file_the_second_is_refused(tmp_path):
    """They have both found the place free: the first has just moved its file there."""
    for number in (1, 2):
        (tmp_path / f"new{number}").write_text(f"model {number}")
    path = tmp_path / "ctr.onnx"
    target.move_file_into_place(tmp_path / "new1", path)
    with pytest.raises(ValueError, match="which exists"):
        target.move_file_into_place(tmp_path / "new2", path)
    assert path.read_text() == "model 1"


def test_a_file_is_put_in_place_without_hard_links_too(tmp_path, monkeypatch):
    def refuse(source, path):
        raise PermissionError("Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    (tmp_path / "new").write_text("model")
    path = target.move_file_into_place(tmp_path / "new", tmp_path / "ctr.onnx")
    assert path.read_text() == "model"


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    return export(tmp_path_factory.mktemp("exported") / "1")


def damaged(content, how, rng):
    """The content of a file, cut off or with other bytes."""
    if how == "cut off":
        return content[: rng.randrange(len(content))]
    if how == "empty":
        return b""
    changed = bytearray(content)
    for _ in range(rng.choice((1, 8))):
        changed[rng.randrange(len(changed))] ^= rng.randrange(1, 256)
    return bytes(changed)


# The requests that warm up a server are copied, not read.
READ_FILES = sorted(FILES - {"fingerprint.pb", "assets.extra/tf_serving_warmup_requests"})


@pytest.mark.parametrize("name", READ_FILES)
def test_a_damaged_version_is_refused_or_refreshed_to_a_right_one(name, exported, tmp_path):
    """No damage leads to another error than a `ValueError`, or to a version that is not whole."""
    rng = random.Random(name)
    path = shutil.copytree(exported, tmp_path / "1")
    content = (path / name).read_bytes()
    ways = attack_size(["cut off", "bytes"], ["cut off", "bytes"] * 12)
    for how in ["missing", "empty", *ways]:
        (path / name).unlink(missing_ok=True)
        if how != "missing":
            (path / name).write_bytes(damaged(content, how, rng))
        try:
            second = refresh(path)
        except ValueError as error:
            assert "Received" in str(error) or "hash differs" in str(error)  # noqa: PT017
            assert [entry.name for entry in tmp_path.iterdir()] == ["1"]
            continue
        # Damaged where nothing is read from.
        assert name.startswith("assets.extra/")
        (path / name).write_bytes(content)
        assert versions(tmp_path) == [1, 2]
        shutil.rmtree(second)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "null", "{}", '{"files_sha256": 5}', "[" * 10**5, "\0"],
    ids=lambda text: text[:20],
)
def test_a_provenance_of_anything_is_refused(text, exported, tmp_path):
    path = shutil.copytree(exported, tmp_path / "1")
    (path / "assets.extra" / "provenance.json").write_text(text)
    with pytest.raises(ValueError, match=r"Received|hash differs"):
        refresh(path)


EVIL = {
    "lambda": {
        "module": "keras.layers",
        "class_name": "Lambda",
        "config": {
            "name": "platt_scaling",
            "function": {
                "class_name": "__lambda__",
                "config": {"code": "4wAAAAA=", "defaults": None, "closure": None},
            },
        },
        "registered_name": None,
    },
    "any function": {
        "module": "os",
        "class_name": "function",
        "config": "system",
        "registered_name": "system",
    },
    "any class": {
        "module": "subprocess",
        "class_name": "Popen",
        "config": {"args": ["touch", "owned"]},
        "registered_name": None,
    },
}


@pytest.mark.parametrize("kind", EVIL)
def test_a_head_of_somebody_else_runs_no_program(kind, exported, tmp_path, monkeypatch):
    """Keras' safe mode: an exported model from another machine may be refreshed."""
    monkeypatch.chdir(tmp_path)
    path = shutil.copytree(exported, tmp_path / "1")
    head = path / "assets.extra" / "head.keras"
    with zipfile.ZipFile(head) as file:
        files = {name: file.read(name) for name in file.namelist()}
    config = json.loads(files["config.json"])
    config["config"]["layers"][-1].update(EVIL[kind])
    files["config.json"] = json.dumps(config).encode()
    with zipfile.ZipFile(head, "w") as file:
        for name, content in files.items():
            file.writestr(name, content)
    # Somebody else can compute the hash of the files too.
    told = read_provenance(path / "assets.extra")
    write_provenance(path / "assets.extra", {**told, "files_sha256": files_sha256(path)})
    with pytest.raises(ValueError, match="cannot be loaded"):
        refresh(path)
    assert os.listdir(tmp_path) == ["1"]


MEASURED = """
import json, resource, sys, time
from pathlib import Path
import keras, numpy as np, tensorflow as tf, keras_calibration as kc
num_rows, folder, kind = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
user, price = keras.Input((1,), name="user", dtype="int32"), keras.Input((1,), name="price")
embedded = keras.layers.Flatten()(keras.layers.Embedding(num_rows, 16)(user))
hidden = keras.layers.Concatenate()([embedded, price])
base = keras.Model({"user": user, "price": price}, keras.layers.Dense(1, "sigmoid")(hidden))
rows = {"user": np.arange(8, dtype="int32")[:, None], "price": np.zeros((8, 1), "float32")}
model = kc.models.CalibratedModel(base, kc.layers.PlattScaling())
model.head.fit([-2.0, -1.0, 0.0, 1.0], [0, 1, 0, 1])
start = time.perf_counter()
if kind == "keras":
    base.export(str(folder / "1"), verbose=False)
    # What an export of this package does too.
    served = tf.saved_model.load(str(folder / "1")).signatures["serving_default"]
    served(**{name: tf.constant(values) for name, values in rows.items()})
elif kind == "export":
    kc.export_savedmodel(model, folder, rows, version="next", verify="same_process")
else:
    logits = np.linspace(-2, 2, 200)
    kc.refresh_savedmodel(
        folder, logits, np.arange(200) % 3 == 0, from_logits=True, verify="same_process"
    )
seconds = time.perf_counter() - start
newest = max(folder.iterdir())
size = sum(path.stat().st_size for path in newest.rglob("*") if path.is_file())
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"disk": size, "memory": memory, "seconds": seconds}))
"""


def measured(num_rows, folder, kind):
    folder.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, str(num_rows), str(folder), kind],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@only_in_full_attack
def test_a_large_embedding_takes_no_more_than_kerass_own_export(tmp_path):
    """5e6 × 16 weights, 320 MB: on disk, in memory, and (not asserted) in seconds."""
    by_keras = measured(5 * 10**6, tmp_path / "keras", "keras")
    shutil.rmtree(tmp_path / "keras")
    for kind in ("export", "refresh"):
        figures = measured(5 * 10**6, tmp_path / "ctr", kind)
        print(kind, {name: round(value / by_keras[name], 2) for name, value in figures.items()})
        assert figures["disk"] <= 1.2 * by_keras["disk"]
        assert figures["memory"] <= 1.2 * by_keras["memory"]
    shutil.rmtree(tmp_path / "ctr")


@pytest.mark.parametrize("part", ["base", pytest.param("head", marks=pytest.mark.slow)])
def test_an_embedding_is_written_once(part, tmp_path):
    """4,000 rows of 16: Keras' own export would write them twice."""
    inputs = {"user": keras.Input((1,), name="user", dtype="int32")}
    embedded = keras.layers.Flatten()(keras.layers.Embedding(4000, 16)(inputs["user"]))
    if part == "base":
        head = kc.layers.PlattScaling()
    else:
        embedded = 0.0 * keras.ops.cast(inputs["user"], "float32")
        head = kc.layers.FieldNetwork({"user": 4000}, embedding_dim=16)
        head = kc.layers.NeuralCalibration(kc.layers.PlattScaling(), head)
    base = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(embedded))
    model = kc.models.CalibratedModel(base, head)
    rows = {"user": np.arange(8, dtype="int32")[:, None]}
    path = kc.export_savedmodel(model, tmp_path / "1", rows, verify="same_process")
    size = (path / "variables" / "variables.data-00000-of-00001").stat().st_size
    assert size < 1.1 * 4 * sum(np.prod(weight.shape) for weight in model.weights)
