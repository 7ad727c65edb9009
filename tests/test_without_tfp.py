"""TensorFlow Probability and tf-keras are imported where a prior is asked for, and nowhere else."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import keras_calibration

SRC = Path(keras_calibration.__file__).parents[1]
PROGRAM = """
import importlib, pkgutil, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("tensorflow_probability", "tf_keras"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refuse())

import keras
import numpy as np
import keras_calibration as kc

for module in pkgutil.walk_packages(kc.__path__, "keras_calibration."):
    importlib.import_module(module.name)

rng = np.random.default_rng(0)
logits, site = rng.normal(size=400), rng.integers(0, 3, 400)
labels = (rng.random(400) < 1 / (1 + np.exp(-logits))).astype("float32")
inputs = {"logit": keras.Input((1,), name="logit"), "site": keras.Input((), name="site", dtype=int)}
base = keras.Model(inputs, keras.layers.Activation("sigmoid")(inputs["logit"]))
model = kc.calibrate(
    base, {"logit": logits, "site": site}, labels, fields=["site"], methods="quick", verbose=0
)
kc.export_savedmodel(model, sys.argv[1] + "/exported/1")
field_ece = kc.metrics.FieldECE(3)
field_ece.update_state(labels, 1 / (1 + np.exp(-logits)), field=site)
assert np.isfinite(field_ece.per_field()["observed_rate"][:3]).all()
ledger = kc.seeds.Ledger(sys.argv[1] + "/runs")
for pipeline, mean in (("a", 0.5), ("b", 0.4)):
    for seed in range(5):
        metrics = {"val_loss": [mean + rng.normal() / 20]}
        record = {"pipeline": pipeline, "seed": seed, "status": "finished", "epochs": [0]}
        ledger.append({**record, "metrics": metrics})
comparison = kc.seeds.compare(ledger, "a", "b", metric="val_loss")
assert comparison.probability_b_better() > 0.9
try:
    comparison.probability_b_better(prior_scale=0.1)
except ModuleNotFoundError as error:
    print(error.name)
"""


def test_one_module_imports_it_when_it_is_called():
    imports = set()
    for path in [*SRC.glob("keras_calibration/**/*.py"), *SRC.glob("calibration_records/**/*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if {"tensorflow_probability", "tf_keras"} & {name.split(".")[0] for name in names}:
                imports.add((path.relative_to(SRC).as_posix(), node.col_offset > 0))
    assert imports == {("calibration_records/statistics/posterior.py", True)}


@pytest.mark.slow
def test_everything_else_runs_without_it(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines()[-1:] == ["tensorflow_probability"], done.stderr[-2000:]
