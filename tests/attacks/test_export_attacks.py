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
import zipfile

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_calibration as kc
from keras_calibration.export import verification
from keras_calibration.export.provenance import files_sha256

pytestmark = [
    pytest.mark.slow,
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:The head .* changes no probability:UserWarning"),
]
# In the processes below too, which spares each export another one.
verification.in_new_process = False
READ_FILES = {
    "saved_model.pb",
    "variables/variables.index",
    "variables/variables.data-00000-of-00001",
    "assets.extra/head.keras",
    "assets.extra/provenance.json",
}
X = np.linspace(-1, 1, 64, dtype="float32")[:, None]
LOGITS = np.linspace(-2, 2, 200)
LABELS = LOGITS + np.sin(np.arange(200)) > 0


def small_model():
    keras.utils.set_random_seed(0)
    inputs = {"x": keras.Input((1,), name="x")}
    base = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(inputs["x"]))
    return kc.models.CalibratedModel(base, kc.layers.PlattScaling())


def export(path, version="next"):
    model = small_model()
    return kc.export_savedmodel(model, path, {"x": X}, version=version)


def refresh(path):
    return kc.refresh_savedmodel(path, LOGITS, LABELS, from_logits=True)


def versions(folder):
    """The numbered folders that are not empty; each is whole."""
    folders = [path for path in folder.glob("*") if path.name.isdecimal() and any(path.iterdir())]
    for path in folders:
        assert all((path / name).stat().st_size for name in READ_FILES)
        json.loads((path / "assets.extra" / "provenance.json").read_text())
    return sorted(int(path.name) for path in folders)


def assert_served(folder):
    """Every version can be loaded, and gives a probability."""
    for number in versions(folder):
        serving = tf.saved_model.load(str(folder / str(number))).signatures["serving_default"]
        assert np.isfinite(serving(x=tf.constant(X))["probability"].numpy()).all()


def in_a_child(function, *arguments):
    """The id of a new process that runs the function."""
    child = os.fork()
    if child == 0:
        try:
            function(*arguments)
            os._exit(0)
        except BaseException:
            os._exit(1)
    return child


def kill_at_random(act, folder, num_kills):
    """Kills at random moments of the time that one takes."""
    rng, start = random.Random(0), time.monotonic()
    assert os.waitpid(in_a_child(act, folder), 0)[1] == 0
    seconds = time.monotonic() - start
    for _ in range(num_kills):
        child = in_a_child(act, folder)
        time.sleep(seconds * rng.random())
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        versions(folder)


def kill_at_the_move(act, folder, before):
    """One that is killed right before or right after it is moved into place."""
    rename = os.rename

    def rename_and_die(source, target):
        if not os.path.basename(target).isdecimal():
            return rename(source, target)
        if not before:
            rename(source, target)
        return os.kill(os.getpid(), signal.SIGKILL)

    os.rename = rename_and_die
    act(folder)


# TensorFlow's threads do not live on in a fork: the forks are those of a fresh process that has
# imported it and computed nothing, which spares each of them the import.
ATTACKS = f"""
import importlib.util, os, pathlib, sys
spec = importlib.util.spec_from_file_location("attacks", {__file__!r})
attacks = importlib.util.module_from_spec(spec); spec.loader.exec_module(attacks)
folder, act = pathlib.Path(sys.argv[1]), getattr(attacks, sys.argv[2])
"""
KILLS = f"""{ATTACKS}
attacks.kill_at_random(act, folder, 6)
for before in (False, True):
    child = attacks.in_a_child(attacks.kill_at_the_move, act, folder, before)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
"""
SIDE_BY_SIDE = f"""{ATTACKS}
for _ in range(3):
    act(folder)
"""


def run_attacks(program, folder, act):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen([sys.executable, "-c", program, folder, act], env=environment)


@pytest.mark.parametrize("act", ["export", "refresh"])
def test_killed_at_any_moment_a_version_is_absent_or_whole(act, tmp_path):
    export(tmp_path)
    assert run_attacks(KILLS, tmp_path, act).wait() == 0
    # The first, one that was not killed, and the one killed right after the move, at least.
    assert len(versions(tmp_path)) >= 3
    assert_served(tmp_path)


def test_exports_and_refreshes_side_by_side(tmp_path):
    export(tmp_path)
    processes = [run_attacks(SIDE_BY_SIDE, tmp_path, act) for act in ("export", "refresh")]
    assert [process.wait() for process in processes] == [0, 0]
    assert versions(tmp_path) == [*range(1, 8)]
    assert_served(tmp_path)


@pytest.mark.parametrize("act", [export, refresh])
def test_a_full_disk_leaves_no_version(act, tmp_path):
    """`RLIMIT_FSIZE`: the kernel refuses to write on in the middle of a file, here of each."""
    first = export(tmp_path)
    sizes = {path.stat().st_size for path in first.rglob("*") if path.is_file()}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for size in sorted(sizes)[::2]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (max(size - 1, 1), hard))
        try:
            with pytest.raises(Exception, match=r"."):
                act(tmp_path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert versions(tmp_path) == [1]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    return export(tmp_path_factory.mktemp("exported"), version=1)


def damaged(content, how, rng):
    """The content of a file: nothing, cut off, or with other bytes."""
    if how == "empty":
        return b""
    if how == "cut off":
        return content[: rng.randrange(len(content))]
    changed = bytearray(content)
    for _ in range(rng.choice((1, 8))):
        changed[rng.randrange(len(changed))] ^= rng.randrange(1, 256)
    return bytes(changed)


@pytest.mark.parametrize("name", sorted(READ_FILES))
def test_a_damaged_version_is_refused_or_refreshed_to_a_right_one(name, exported, tmp_path):
    """No damage leads to another error than a `ValueError`, or to a version that is not whole."""
    rng = random.Random(name)
    path = shutil.copytree(exported, tmp_path / "1")
    content = (path / name).read_bytes()
    for how in ("missing", "empty", "cut off", "bytes", "bytes"):
        (path / name).unlink(missing_ok=True)
        if how != "missing":
            (path / name).write_bytes(damaged(content, how, rng))
        try:
            second = refresh(path)
        except ValueError:
            assert [entry.name for entry in tmp_path.iterdir()] == ["1"]
            continue
        # Damaged where nothing is read from.
        assert name.startswith("assets.extra/")
        (path / name).write_bytes(content)
        assert versions(tmp_path) == [1, 2]
        shutil.rmtree(second)


CODE = {"class_name": "__lambda__", "config": {"code": "4wAAAAA=", "defaults": None}}
EVIL = {
    "lambda": ("keras.layers", "Lambda", {"name": "platt_scaling", "function": CODE}),
    "any function": ("os", "function", "system"),
    "any class": ("subprocess", "Popen", {"args": ["touch", "owned"]}),
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
    evil = dict(zip(("module", "class_name", "config"), EVIL[kind], strict=True))
    config["config"]["layers"][-1].update({**evil, "registered_name": None})
    files["config.json"] = json.dumps(config).encode()
    with zipfile.ZipFile(head, "w") as file:
        for name, content in files.items():
            file.writestr(name, content)
    # Somebody else can compute the hash of the files too.
    provenance = path / "assets.extra" / "provenance.json"
    told = {**json.loads(provenance.read_text()), "files_sha256": files_sha256(path)}
    provenance.write_text(json.dumps(told))
    with pytest.raises(ValueError, match="cannot be loaded"):
        refresh(path)
    assert os.listdir(tmp_path) == ["1"]


def test_an_embedding_is_written_once(tmp_path):
    """4,000 rows of 16: Keras' own export would write them twice."""
    inputs = {"user": keras.Input((1,), name="user", dtype="int32")}
    embedded = keras.layers.Flatten()(keras.layers.Embedding(4000, 16)(inputs["user"]))
    base = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(embedded))
    model = kc.models.CalibratedModel(base, kc.layers.PlattScaling())
    rows = {"user": np.arange(8, dtype="int32")[:, None]}
    path = kc.export_savedmodel(model, tmp_path / "1", rows)
    size = (path / "variables" / "variables.data-00000-of-00001").stat().st_size
    assert size < 1.1 * 4 * sum(np.prod(weight.shape) for weight in model.weights)
