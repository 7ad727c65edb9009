"""Checks what is to be released: `./dev release` builds `dist/` and runs this.

    ./dev release            metadata, contents, installations; tests on the wheel with the newest
                             versions, on every Python that is supported, all of them on the newest
                             and all but the slow ones on the others; these also with the lowest
    ./dev release --quick    the same with a selection of the tests, on the Pythons that are found
    ./dev release --trial    the same before the changelog has a date for the version

The wheel and the source distribution are each installed in an empty environment with the lowest
and with the newest versions that pyproject.toml allows. The lowest versions are tested on the
oldest Python, with which `./dev` must be set up. Later Pythons are looked for on the path.
"""

import argparse
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path

from packaging.metadata import Metadata

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
# What a source distribution may hold besides Python files.
OTHER_FILES = r"examples/.*\.(md|png|json)|tests/gpu/specs/\w+\.txtpb|tests/serving/serve\.c"
TOP_FILES = r"CHANGELOG\.md|LICENSE|PKG-INFO|README\.md|pyproject\.toml|\.gitignore"
PACKAGES = ("keras_calibration", "calibration_records")
PACKAGE = rf"({'|'.join(PACKAGES)})/([\w/]+\.py|py\.typed|datasets/flights\.csv\.xz)"
ABOUT = r"[^/]+\.dist-info/(METADATA|WHEEL|RECORD|entry_points\.txt|licenses/LICENSE)"
IN_WHEEL = f"{PACKAGE}|{ABOUT}"
IN_SOURCE = rf"src/{PACKAGE}|(tests|examples)/[\w/]+\.py|{OTHER_FILES}|{TOP_FILES}"
LARGEST_FILE = 300_000
# The lowest versions are tested on the oldest Python: they have no wheels for later ones.
OLDEST_PYTHON, *LATER_PYTHONS = ("3.11", "3.12", "3.13")
QUICK_TESTS = [
    *("tests/test_public_names.py", "tests/records/test_cli.py", "tests/test_readme.py"),
    *("tests/layers/test_contract.py", "tests/export/test_export_savedmodel.py"),
]
TESTS = ["tests", "examples/data_folder.py"]
SMOKE = """
import pathlib, sys, tempfile
import numpy as np
import keras_calibration as kc
assert pathlib.Path(kc.__file__).is_relative_to(sys.prefix), kc.__file__
generator = np.random.default_rng(0)
scores, site = generator.normal(-1, 1, 2000), generator.integers(0, 5, 2000)
labels = generator.random(2000) < 1 / (1 + np.exp(-scores - 0.5 * (site - 2)))
features = {"site": site}
model = kc.calibrate_scores(
    scores, labels, features, from_logits=True, fields=["site"], methods="quick", verbose=0
)
assert model.report.after.log_loss < model.report.before.log_loss
path = kc.export_savedmodel(model, tempfile.mkdtemp() + "/1")
print(kc.__version__, model.report.chosen, sorted(file.name for file in path.iterdir()))
"""


def main() -> None:
    """Runs every check; the first that fails ends the program with an exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only a selection of the tests")
    parser.add_argument("--trial", action="store_true", help="the changelog needs no date yet")
    options = parser.parse_args()
    quick = options.quick
    wheel, source = next(DIST.glob("*.whl")), next(DIST.glob("*.tar.gz"))
    version = check_versions(options.trial)
    oldest, later = find_pythons(needs_all=not quick)
    files = {wheel: files_of_wheel(wheel), source: files_of_source(source)}
    for archive, contents in files.items():
        check_metadata(archive, contents, version)
        check_contents(archive, contents)
    check_python_files(files[wheel], files[source])
    for archive in (wheel, source):
        for resolution in ("highest", "lowest-direct"):
            with tempfile.TemporaryDirectory() as folder:
                python = install(archive, "", resolution, oldest, Path(folder))
                run([python, "-c", SMOKE], cwd=folder)
    quick_tests = QUICK_TESTS if quick else ["-m", "not slow", *TESTS]
    for resolution in ("highest",) if quick else ("highest", "lowest-direct"):
        test(wheel, resolution, oldest, quick_tests)
    for number, python in enumerate(later, start=1):
        # `./dev test --all` runs all of them on the oldest.
        is_newest = number == len(LATER_PYTHONS) and not quick
        test(wheel, "highest", python, TESTS if is_newest else quick_tests)
    print(f"Ready: {wheel.name}, {source.name}")


def check_versions(is_trial: bool) -> str:
    """The version, which four files must share, with a dated section in the changelog."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    for file, pattern in {
        "src/calibration_records/__init__.py": f'^__version__ = "{re.escape(version)}"$',
        "CITATION.cff": f"^version: {re.escape(version)}$",
        "CHANGELOG.md": r"^## \[Unreleased\]$"
        if is_trial
        else rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$",
        "docs/citation.md": rf"version += \{{{re.escape(version)}\}}",
    }.items():
        if not re.search(pattern, (ROOT / file).read_text("utf-8"), re.MULTILINE):
            sys.exit(f"{file} does not have version {version}: no line like {pattern}")
    return version


def find_pythons(needs_all: bool) -> tuple[str, list[str]]:
    """The paths of the oldest Python that is supported, and of the later ones that are found."""
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    if running != OLDEST_PYTHON:
        sys.exit(f"Set ./dev up with Python {OLDEST_PYTHON}, the oldest supported, not {running}.")
    working = list(filter(None, map(path_of, LATER_PYTHONS)))
    if needs_all and len(working) < len(LATER_PYTHONS):
        later = ", ".join(LATER_PYTHONS)
        sys.exit(f"Pythons {later} must all be on the path; only {working} work.")
    return sys.executable, working


def path_of(version: str) -> str | None:
    """The path of a Python that starts; None if there is none."""
    # A name on the path may be pyenv's, which needs the version too, or be without such a Python.
    for settings in ({}, {"PYENV_VERSION": version}):
        found = subprocess.run(
            ["/usr/bin/env", f"python{version}", "-c", "import sys; print(sys.executable)"],
            env={**os.environ, **settings},
            capture_output=True,
            text=True,
            check=False,
        )
        if found.returncode == 0:
            return found.stdout.strip()
    return None


def files_of_wheel(wheel: Path) -> dict[str, bytes]:
    """Name → content."""
    with zipfile.ZipFile(wheel) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


def files_of_source(source: Path) -> dict[str, bytes]:
    """Name → content, without the folder in which everything lies."""
    with tarfile.open(source) as opened:
        files = {member.name: opened.extractfile(member) for member in opened if member.isfile()}
        return {
            name.partition("/")[2]: file.read() for name, file in files.items() if file is not None
        }


def check_metadata(archive: Path, files: dict[str, bytes], version: str) -> None:
    """The metadata is valid, of this version, and has the README as Markdown."""
    (name,) = (file for file in files if re.fullmatch(r"PKG-INFO|[^/]+\.dist-info/METADATA", file))
    metadata = Metadata.from_email(files[name], validate=True)
    received = (metadata.name, str(metadata.version), metadata.description_content_type)
    if received != ("keras-calibration", version, "text/markdown"):
        sys.exit(f"{archive.name}: unexpected metadata {received}")


def check_contents(archive: Path, files: dict[str, bytes]) -> None:
    """No data but the table of the guides, nothing large, no path of this machine, no surprise."""
    expected = re.compile(IN_WHEEL if archive.suffix == ".whl" else IN_SOURCE)
    folders = [
        str(path).encode() for path in {ROOT, ROOT.resolve(), Path.home()} if len(path.parts) > 1
    ]
    for name, content in files.items():
        if not expected.fullmatch(name):
            sys.exit(f"{archive.name}: unexpected file {name}")
        if len(content) > LARGEST_FILE:
            sys.exit(f"{archive.name}: {name} has {len(content):,} bytes")
        if any(re.search(re.escape(path) + rb"\b", content) for path in folders):
            sys.exit(f"{archive.name}: {name} holds a path of this machine")


def check_python_files(wheel: dict[str, bytes], source: dict[str, bytes]) -> None:
    """Wheel and source distribution hold exactly the files of the packages that are in git."""
    listed = subprocess.run(
        ["git", "ls-files", "src"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    in_git = {name.removeprefix("src/") for name in listed.stdout.split()}
    in_wheel = {name for name in wheel if name.partition("/")[0] in PACKAGES}
    in_source = {name.removeprefix("src/") for name in source if name.startswith("src/")}
    if not in_git == in_wheel == in_source:
        sys.exit(
            f"Files that are not everywhere: {sorted((in_git ^ in_wheel) | (in_git ^ in_source))}"
        )


def install(archive: Path, extras: str, resolution: str, base_python: str, folder: Path) -> str:
    """Installs an archive into a new environment; returns its Python."""
    print(f"{archive.name}{extras}, {resolution} versions, {base_python}", flush=True)
    run(["uv", "venv", "--quiet", "--python", base_python, str(folder / "venv")])
    python = str(folder / "venv" / "bin" / "python")
    target = f"keras-calibration{extras} @ {archive.as_uri()}"
    run(["uv", "pip", "install", "--quiet", "--python", python, "--resolution", resolution, target])
    return python


def test(wheel: Path, resolution: str, base_python: str, tests: list[str]) -> None:
    """Installs the wheel with all that the tests need, and runs those of this checkout on it."""
    package = "import pathlib, keras_calibration as k; print(pathlib.Path(k.__file__).parent)"
    with tempfile.TemporaryDirectory() as folder:
        python = install(wheel, "[dev]", resolution, base_python, Path(folder))
        imported = subprocess.run(
            [python, "-c", package], cwd=DIST, capture_output=True, text=True, check=True
        )
        if not Path(imported.stdout.strip()).is_relative_to(Path(python).parents[1]):
            sys.exit(f"The tests would not run on the installed package, but on {imported.stdout}")
        # `pytest`, not `python -m pytest`, which would put this folder on the path.
        pytest = [
            str(Path(python).with_name("pytest")),
            *("--numprocesses", "auto", "--dist", "worksteal", "-p", "no:cacheprovider"),
        ]
        run([*pytest, *tests], cwd=ROOT)
        if tests != QUICK_TESTS:
            run([*pytest, "--pyargs", *PACKAGES], cwd=ROOT)


def run(command: list[str], cwd: str | Path | None = None) -> None:
    """Runs a command; ends the program if it fails."""
    one_thread = dict.fromkeys(["TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS"], "1")
    environment = {**os.environ, "KERAS_BACKEND": "tensorflow", **one_thread}
    environment.pop("PYTHONPATH", None)
    code = subprocess.run(command, cwd=cwd, env=environment, check=False).returncode
    if code:
        sys.exit(f"Exit code {code}: {' '.join(command)[:300]}")


if __name__ == "__main__":
    main()
