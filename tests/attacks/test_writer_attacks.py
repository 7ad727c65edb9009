"""Writers under attack: killed, side by side, on full disks, and what others did to their files.

Of ledgers and of exports alike: what is there under its name is whole, and nothing is lost.
"""

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
from keras_calibration.seeds import Ledger

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
RUN = {"pipeline": "deepfm", "seed": 1, "status": "finished", "epochs": [*range(100)]}
RUN |= {"metrics": {"val_loss": [0.1] * 100}}


def append(folder):
    Ledger(folder).append(RUN)


def finish(folder):
    ledger = Ledger(folder)
    ledger.finish(ledger.append({**RUN, "status": "started", "metrics": {}}), RUN)


def export(folder, version="next"):
    keras.utils.set_random_seed(0)
    inputs = {"x": keras.Input((1,), name="x")}
    base = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(inputs["x"]))
    model = kc.models.CalibratedModel(base, kc.layers.PlattScaling())
    return kc.export_savedmodel(model, folder, {"x": X}, version=version)


def refresh(folder):
    return kc.refresh_savedmodel(folder, LOGITS, LABELS, from_logits=True, verbose=0).path


# How each is called, and how often it moves a file or a folder into place.
ACTS = {"append": 1, "finish": 2, "export": 1, "refresh": 1}


def whole(folder):
    """The finished runs or the versions in a folder; fails if one is not whole."""
    runs = Ledger(folder).runs()
    assert all(run["status"] == "started" or run["metrics"] == RUN["metrics"] for run in runs)
    versions = [path for path in folder.glob("*") if path.name.isdecimal() and any(path.iterdir())]
    for path in versions:
        assert all((path / name).stat().st_size for name in READ_FILES)
        json.loads((path / "assets.extra" / "provenance.json").read_text())
    finished = [run["run_id"] for run in runs if run["status"] == "finished"]
    return finished + sorted(int(path.name) for path in versions)


def assert_served(folder):
    """Every version can be loaded, and gives a probability."""
    for path in folder.glob("[0-9]*/saved_model.pb"):
        serving = tf.saved_model.load(str(path.parent)).signatures["serving_default"]
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


def is_in_place(name):
    return name.endswith(".json") or name.isdecimal()


def die_at_the_last_move(name, folder, before):
    """Acts, and is killed right before or right after what it wrote is moved into place."""
    moves_left = ACTS[name]

    def dying(move):
        def move_and_die(source, target):
            nonlocal moves_left
            if not is_in_place(os.path.basename(target)):
                return move(source, target)
            moves_left -= 1
            if moves_left or not before:
                move(source, target)
            if not moves_left:
                os.kill(os.getpid(), signal.SIGKILL)

        return move_and_die

    os.rename, os.replace = dying(os.rename), dying(os.replace)
    globals()[name](folder)


def kill(name, folder):
    """Kills at random moments of the time that one takes, and at its last move."""
    act, rng, start = globals()[name], random.Random(0), time.monotonic()
    assert os.waitpid(in_a_child(act, folder), 0)[1] == 0
    seconds = time.monotonic() - start
    num_whole = len(whole(folder))
    for _ in range(20 if name in ("append", "finish") else 4):
        child = in_a_child(act, folder)
        time.sleep(seconds * rng.random())
        os.kill(child, signal.SIGKILL)
        has_returned = os.waitpid(child, 0)[1] == 0
        num_before, num_whole = num_whole, len(whole(folder))
        assert num_before + has_returned <= num_whole <= num_before + 1
    for before in (False, True):
        child = in_a_child(die_at_the_last_move, name, folder, before)
        assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
        num_before, num_whole = num_whole, len(whole(folder))
        assert num_whole == num_before + (not before)


def repeat(name, folder):
    for _ in range(3):
        globals()[name](folder)


# TensorFlow's threads do not live on in a fork: the forks are those of a fresh process that has
# imported it and computed nothing, which spares each of them the import.
PROGRAM = f"""
import importlib.util, pathlib, sys
spec = importlib.util.spec_from_file_location("attacks", {__file__!r})
attacks = importlib.util.module_from_spec(spec); spec.loader.exec_module(attacks)
what, folder, *names = sys.argv[1:]
for name in names:
    getattr(attacks, what)(name, pathlib.Path(folder, name if what == "kill" else ""))
"""


def start(what, folder, *names):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen([sys.executable, "-c", PROGRAM, what, folder, *names], env=environment)


def test_killed_at_any_moment_what_is_there_is_whole(tmp_path):
    for name in ACTS:
        (tmp_path / name).mkdir()
    export(tmp_path / "refresh")
    assert start("kill", tmp_path, *ACTS).wait() == 0
    for name in ("export", "refresh"):
        assert_served(tmp_path / name)


SIDE_BY_SIDE = ("export", "append", "finish"), ("refresh", "finish")


def test_writers_side_by_side_and_a_reader(tmp_path):
    export(tmp_path)
    processes = [start("repeat", tmp_path, *names) for names in SIDE_BY_SIDE]
    while any(process.poll() is None for process in processes):
        whole(tmp_path)
        time.sleep(0.01)
    assert [process.returncode for process in processes] == [0, 0]
    found = whole(tmp_path)
    assert (len(found), found[-7:]) == (16, [*range(1, 8)])
    assert_served(tmp_path)


@pytest.mark.parametrize("name", ACTS)
def test_a_full_disk_changes_nothing(name, tmp_path):
    """`RLIMIT_FSIZE`: the kernel refuses to write on in the middle of a file, here of each."""
    act = globals()[name]
    (export if name == "refresh" else act)(tmp_path)
    sizes = {path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()}
    before = whole(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for size in sorted(sizes)[::2]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (max(size - 1, 1), hard))
        try:
            with pytest.raises(Exception, match=r"."):
                act(tmp_path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert whole(tmp_path) == before
    assert all(path.suffix == ".json" or path.name == "1" for path in tmp_path.iterdir())


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


def test_a_damaged_record_is_a_record_or_an_error_that_names_it(tmp_path):
    runs, rng, num_errors = Ledger(tmp_path), random.Random(0), 0
    run_id = runs.append({**RUN, "epochs": [0, 1], "metrics": {"val_loss": [0.3, 0.2]}})
    path = tmp_path / f"{run_id}.json"
    content = path.read_bytes()
    for how in 50 * ("cut off", "bytes", "bytes", "bytes"):
        path.write_bytes(damaged(content, how, rng))
        try:
            (run,) = runs.runs()
        except ValueError as error:
            assert run_id in str(error)  # noqa: PT017
            num_errors += 1
        else:
            assert isinstance(run["seed"], int)
            assert all(len(values) == len(run["epochs"]) for values in run["metrics"].values())
    assert num_errors > 100


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    return export(tmp_path_factory.mktemp("exported"), version=1)


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
        assert whole(tmp_path) == [1, 2]
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
