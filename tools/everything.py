"""Runs what takes too long for each push, one after the other: `./dev everything [NAME ...]`.

All tests, those with the lowest versions, the other Pythons, README's program on each, the site
with its guides, the release, and four benchmarks on the last code. What has ended is not run again
while the files that it reads are the same: an interrupted run goes on where it was, and a changed
page repeats no benchmark. A name runs this alone, and again. The output of each is in
build/everything/. In the end, one table shows what passed, with which commit, and how long it took;
the exit status is 1 if something has failed.
"""

import hashlib
import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "everything"
RECORD = FOLDER / "record.json"
PYTHONS = ("3.11", "3.12", "3.13")
DEV = str(ROOT / "dev")
RUN = [DEV, "run", "python"]
README = "README's program"


def benchmark(program: str, *arguments: str) -> tuple[list[str], tuple[str, ...]]:
    """The command of a benchmark, and what it reads."""
    path = f"benchmarks/{program}"
    records = (":(glob)src/calibration_records/*.py", "src/calibration_records/statistics")
    # What benchmarks import of each other, and of the examples.
    shared = ("benchmarks/calibrators.py", "benchmarks/rivals.py", ":(glob)examples/*.py")
    files = ("src/keras_calibration", *records, path, *shared, "requirements.lock")
    return [*RUN, path, *arguments], files


# Name → the command, and the files and folders that it reads.
COMMANDS = {
    "all tests": ([DEV, "test", "--all"], (".",)),
    "lowest versions": ([DEV, "test", "--lowest"], (".",)),
    "other Pythons": ([DEV, "test", "--smoke"], (".",)),
    README: (
        [*RUN, str(ROOT / "tools" / "everything.py"), "--readme"],
        ("README.md", "src", "requirements.lock"),
    ),
    "site": ([DEV, "docs"], (".",)),
    "release": ([DEV, "release", "--trial"], (".",)),
    "39 cells": benchmark("calibrators.py"),
    "report on right models": benchmark("report_honesty.py"),
    "coverage of intervals": benchmark("interval_coverage.py"),
    "arena": benchmark(
        *("arena.py", "--results", str(FOLDER / "arena.jsonl"), "--cache", str(FOLDER / "arena"))
    ),
}


def main() -> None:
    """Runs the commands whose files have changed since they ended, and prints the table."""
    named = sys.argv[1:]
    if unknown := set(named) - set(COMMANDS):
        raise SystemExit(f"Names must be among {list(COMMANDS)}. Received: {sorted(unknown)}.")
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, (command, files) in COMMANDS.items():
        state = state_of(files)
        before = read_record().get(name, {})
        if name not in named and (named or before.get("state") == state):
            continue
        if name == "arena" and before.get("begun") != state:
            (FOLDER / "arena.jsonl").unlink(missing_ok=True)  # which the program goes on with
        record(name, begun=state)
        commit = git("rev-parse", "--short=8", "HEAD").strip()
        print(f"{name}: {FOLDER / file_of(name)}", flush=True)
        start = time.monotonic()
        with (FOLDER / file_of(name)).open("w") as output:
            ended = subprocess.run(
                command, cwd=ROOT, check=False, stdout=output, stderr=subprocess.STDOUT
            )
        record(
            name,
            begun=state,
            state=state,
            commit=commit,
            code=ended.returncode,
            seconds=time.monotonic() - start,
        )
    results = read_record()
    print(table(results))
    sys.exit(any(result.get("code") for result in results.values()))


def read_record() -> dict[str, dict]:
    """Name → what is known of its last run."""
    return json.loads(RECORD.read_text()) if RECORD.exists() else {}


def record(name: str, **result: object) -> None:
    """Keeps what is known of a run, beside what another process has recorded meanwhile."""
    RECORD.write_text(json.dumps({**read_record(), name: result}, indent=1))


def git(*arguments: str) -> str:
    """What git says."""
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout


def state_of(files: tuple[str, ...]) -> str:
    """A name for the contents of files and folders, those that are not committed included."""
    kinds = (["ls-files", "--stage"], ["diff", "HEAD"], ["status", "--porcelain"])
    contents = "".join(git(*kind, "--", *files) for kind in kinds)
    return hashlib.sha256(contents.encode()).hexdigest()[:16]


def file_of(name: str) -> str:
    """The file for the output of a command."""
    return re.sub(r"\W+", "_", name) + ".txt"


def table(results: dict) -> str:
    """What was run with which commit, whether it passed, and in how many minutes."""
    lines = ["| what | commit | result | minutes |", "| --- | --- | --- | ---: |"]
    for name, (_, files) in COMMANDS.items():
        result = results.get(name, {})
        has_ended = "code" in result
        text = "not run" if not has_ended else "failed" if result["code"] else "passed"
        if has_ended and result["state"] != state_of(files):
            text += "; files have changed since"
        minutes = f"{result['seconds'] / 60:.1f}" if has_ended else ""
        lines.append(f"| {name} | {result.get('commit', '')} | {text} | {minutes} |")
    return "\n".join(lines)


def run_readme() -> None:
    """Runs README's program, as it is printed, on each Python of which there is an environment."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    for version in PYTHONS:
        pythons = [
            ROOT / f".venv{suffix}" / "bin" / f"python{version}" for suffix in ("", f"-{version}")
        ]
        python = next((path for path in pythons if path.exists()), None)
        if python is None:
            raise SystemExit(f"Python {version} has no environment: run ./dev test --smoke.")
        folder = FOLDER / f"readme-{version}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        program = folder / "program.py"
        program.write_text("\n".join(blocks))
        print(f"Python {version}", flush=True)
        subprocess.run([str(python), str(program)], cwd=folder, check=True)


if __name__ == "__main__":
    run_readme() if sys.argv[1:] == ["--readme"] else main()
