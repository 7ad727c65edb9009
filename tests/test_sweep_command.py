import json
import os
import subprocess
import sys

import pytest

from keras_calibration.cli import main
from keras_calibration.seeds import Ledger

MODULE = """
import keras
import numpy as np
import keras_calibration as kc

x = np.linspace(-1, 1, 64)[:, None]


def build_model():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, "sigmoid")])
    model.compile("sgd", "binary_crossentropy", metrics=[kc.metrics.CalibrationRatio()])
    return model


def linear():
    return {"build_model": build_model, "data": (x, x > 0), "epochs": 2, "batch_size": 16}


def nothing():
    return {"build_model": build_model}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "ctr_pipelines.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    yield tmp_path
    sys.modules.pop("ctr_pipelines", None)


def test_trains_the_seeds_that_are_missing(folder, capsys):
    assert main(["sweep", "runs", "ctr_pipelines:linear", "--seeds", "0-1,5"]) == 0
    assert capsys.readouterr().out.endswith("3 of 3 seeds have ended in runs\n")
    assert [run["seed"] for run in Ledger("runs").runs("linear")] == [0, 1, 5]
    assert main(["sweep", "runs", "ctr_pipelines:linear", "--seeds", "0-2"]) == 0
    assert "2 of 3 seeds are in the ledger" in capsys.readouterr().out
    assert [run["seed"] for run in Ledger("runs").runs("linear")] == [0, 1, 5, 2]
    command = ["sweep", "runs", "ctr_pipelines:linear", "--seeds", "0", "--pipeline", "other"]
    assert main(command) == 0
    assert len(Ledger("runs").runs("other")[0]["metrics"]["loss"]) == 2


def test_stops_once_it_is_decided(folder, capsys):
    ledger = Ledger("runs")
    for seed in range(16):
        ledger.append(
            {
                **{"pipeline": "bad", "seed": seed, "status": "finished", "epochs": [0]},
                "metrics": {"loss": [20.0 + seed / 100]},
            }
        )
    command = ["sweep", "runs", "ctr_pipelines:linear", "--num-parallel", "1", "--metric", "loss"]
    assert main([*command, "--until-decided", "bad", "linear"]) == 0
    assert capsys.readouterr().out.endswith("Verdict: B better\n")
    assert 4 <= len(ledger.runs("linear")) < 16
    # Too few seeds to decide.
    short = [*command, "--seeds", "0-2", "--pipeline", "short"]
    assert main([*short, "--until-decided", "bad", "short"]) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ctr_pipelines:missing"], "a module and of a function"),
        (["ctr_pipelines"], "a module and of a function"),
        (["no_such_module:linear"], "No module named 'no_such_module'"),
        (["ctr_pipelines:nothing"], "at least build_model and data"),
        (["ctr_pipelines:linear", "--until-decided", "a", "b"], "and another one"),
        (["ctr_pipelines:linear", "--until-decided", "a", "linear"], "has no runs"),
        (["ctr_pipelines:linear", "--until-decided", "linear", "linear"], "and another one"),
    ],
)
def test_errors_leave_no_runs(folder, capsys, arguments, message):
    assert main(["sweep", "runs", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not (folder / "runs").exists()


def test_an_interrupt_is_one_line(folder, capsys, monkeypatch):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("keras_calibration.training.train.train", interrupt)
    assert main(["sweep", "runs", "ctr_pipelines:linear"]) == 2
    assert capsys.readouterr().err == "keras-calibration: interrupted\n"


def test_bad_seeds(folder, capsys):
    with pytest.raises(SystemExit):
        main(["sweep", "runs", "ctr_pipelines:linear", "--seeds", "few"])
    assert "expected a range such as 0-15" in capsys.readouterr().err


@pytest.mark.slow
def test_as_a_program_with_processes(folder):
    """The user's module may use the whole package, also in other processes."""
    program = "import sys; sys.argv[0] = '/bin/keras-calibration'\n" + (
        "from keras_calibration.cli import main\nif __name__ == '__main__': sys.exit(main())"
    )
    path = folder / "program.py"
    path.write_text(program)
    done = subprocess.run(
        [
            *(sys.executable, str(path), "sweep", "runs", "ctr_pipelines:linear"),
            *("--seeds", "0-1", "--engine", "processes", "--num-parallel", "1"),
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    assert [run["status"] for run in Ledger("runs").runs("linear")] == ["finished"] * 2
    assert (
        "calibration_ratio"
        in json.loads(next(iter((folder / "runs").glob("*.json"))).read_text())["metrics"]
    )
