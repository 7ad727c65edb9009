"""Programs in benchmarks/: what they import, small runs of them, and how old their figures are."""

import ast
import functools
import importlib
import importlib.util
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sklearn.linear_model import LogisticRegressionCV

from serving import c_client

ROOT = Path(__file__).parents[1]
PROGRAMS = sorted((ROOT / "benchmarks").glob("*.py"))
# The arguments of a small run: some ten seconds of a core, most of them imports.
SMALL = {
    "calibrate_speed.py": "--rows 500 --fields 2 --rounds 1",
    "calibrator_speed.py": "--rows 1e4 --rounds 1 --calibrators PlattScaling",
    "compare_decisions.py": "--trials 1 --draws 1",
    "head.py": "--rows 64 --rounds 1",
    "interval_coverage.py": "--samples 1",
    "kernels.py": "--rows 1000 --rounds 1 --knots 20 --libraries jax",
    "levels.py": "--samples 1",
    "metrics.py": "--rows 110000 --accuracy-rows 1e5 --rounds 1",
    "on_gpu.py": "--parts kernels sums fit --rows 1000 --rounds 1 --fit 500",
    "report_honesty.py": "--columns logit --effects strong --rows 300 --samples 2",
    "scale.py": "--rows 10000 --rounds 1 --fields site --ways embedded polars",
    "seed_intervals.py": "--trials 2",
    "seed_training.py": "--seeds 1 --rounds 1 --steps 2 --engines vectorized",
    "serving.py": "--rows 2000 --rounds 1 --batch-sizes 1",
    "time_levels.py": "--seeds 2 --rows 100",
}
# A module, programs that need data or hours, and one that draws what is on the page.
NOT_RUN = {
    "arena.py",
    "calibrators.py",
    "chart.py",
    "rivals.py",
}
# What kernels.py and scale.py print of a part that failed, and go on.
FAILED = re.compile(r"ended early|\| \['")
# | `program.py` | date | `commit` | `folder`, `file.py` | what has changed since |
MEASURED = re.compile(r"^\| `(\w+\.py)` \| .+ \| `(\w{8})` \| (.+) \| ?(.*) \|$", re.MULTILINE)


def git(*arguments):
    """What git says."""
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True).stdout


@functools.cache
def files_at(commit, paths):
    """Name → code of the Python files below some paths, in a commit or, without one, here."""
    if commit is None:
        files = [file for path in paths for file in (ROOT / path, *(ROOT / path).rglob("*.py"))]
        found = [file for file in files if file.is_file()]
        return {str(file.relative_to(ROOT)): code_of(file.read_text("utf-8")) for file in found}
    listed = git("ls-tree", "-r", "--name-only", commit, "--", *paths).split()
    names = [name for name in listed if name.endswith(".py")]
    return {name: code_of(git("show", f"{commit}:{name}")) for name in names}


def code_of(text):
    """A program without its comments and docstrings."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        has_docstring = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        if has_docstring and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return ast.dump(tree)


@pytest.mark.tensorflow
def test_the_names_that_benchmarks_import_are_there():
    imports = [
        (path.name, node.module, name.name)
        for path in PROGRAMS
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith(("keras_calibration", "calibration_records"))
        for name in node.names
    ]
    assert len(imports) > 40
    missing = [
        imported
        for imported in imports
        if not hasattr(importlib.import_module(imported[1]), imported[2])
        and importlib.util.find_spec(f"{imported[1]}.{imported[2]}") is None
    ]
    assert missing == []


def test_each_program_has_a_small_run_or_none():
    assert sorted([*SMALL, *NOT_RUN]) == [path.name for path in PROGRAMS]


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.parametrize("program", SMALL)
def test_each_program_runs(program, tmp_path):
    if program == "serving.py" and c_client.find_compiler() is None:
        pytest.skip(c_client.NO_COMPILER)
    options = inspect.signature(LogisticRegressionCV).parameters
    if program == "calibrate_speed.py" and "use_legacy_attributes" not in options:
        pytest.skip("Its rival is that of scikit-learn 1.8 or later.")
    backend = "jax" if program == "on_gpu.py" else "tensorflow"
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / program), *SMALL[program].split()],
        cwd=tmp_path,
        env={**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(done.stdout.splitlines()) > 3
    assert FAILED.search(done.stdout) is None, done.stdout


@pytest.mark.slow
def test_each_page_of_figures_says_what_has_changed_since():
    rows = MEASURED.findall((ROOT / "benchmarks" / "README.md").read_text("utf-8"))
    without_figures = {"chart.py", "rivals.py"}
    assert {row[0] for row in rows} == {path.name for path in PROGRAMS} - without_figures
    for program, commit, paths, since in rows:
        if git("cat-file", "-t", commit).strip() != "commit":
            pytest.skip("needs the history of the repository")
        names = tuple(f"src/{path}" for path in re.findall(r"`([\w/.]+)`", paths))
        then, now = files_at(commit, names), files_at(None, names)
        assert now, f"{program}: nothing lies in {paths}"
        differing = sorted(name for name in {*then, *now} if then.get(name) != now.get(name))
        assert bool(differing) == bool(since), (
            f"benchmarks/README.md must say of {program} what has changed since {commit}, or be "
            f"measured again, or say nothing if nothing has changed. Changed: {differing}."
        )
