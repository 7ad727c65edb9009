"""Runs what takes too long for each push, one after the other: `./dev everything [NAME ...]`.

All tests, those with the lowest versions, the other Pythons, README's program on each, the site
with its guides, the release, and three benchmarks on the last code. What has ended with the present
commit is not run again, so that an interrupted run goes on where it was; a name runs this alone,
and again. The output of each is in build/everything/. In the end, one table shows what passed, and
how long it took; the exit status is 1 if something has failed.
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
COMMANDS = {
    "all tests": [DEV, "test", "--all"],
    "lowest versions": [DEV, "test", "--lowest"],
    "other Pythons": [DEV, "test", "--smoke"],
    README: [*RUN, str(ROOT / "tools" / "everything.py"), "--readme"],
    "site": [DEV, "docs"],
    "release": [DEV, "release"],
    "39 cells": [*RUN, "benchmarks/calibrators.py"],
    "report on right models": [*RUN, "benchmarks/report_honesty.py"],
    "coverage of intervals": [*RUN, "benchmarks/interval_coverage.py"],
    "arena": [*RUN, "benchmarks/arena.py", "--results", str(FOLDER / "arena.jsonl")],
}


def main() -> None:
    """Runs the commands that have not ended with the present commit, and prints the table."""
    named = sys.argv[1:]
    if unknown := set(named) - set(COMMANDS):
        raise SystemExit(f"Names must be among {list(COMMANDS)}. Received: {sorted(unknown)}.")
    FOLDER.mkdir(parents=True, exist_ok=True)
    commit = present_commit()
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    if record.get("commit") != commit:
        record = {"commit": commit, "results": {}}
        (FOLDER / "arena.jsonl").unlink(missing_ok=True)
    results = record["results"]
    for name in named or [name for name in COMMANDS if name not in results]:
        print(f"{name}: {FOLDER / file_of(name)}", flush=True)
        start = time.monotonic()
        with (FOLDER / file_of(name)).open("w") as output:
            ended = subprocess.run(
                COMMANDS[name], cwd=ROOT, check=False, stdout=output, stderr=subprocess.STDOUT
            )
        results[name] = {"code": ended.returncode, "seconds": time.monotonic() - start}
        RECORD.write_text(json.dumps(record, indent=1))
    print(table(record))
    sys.exit(any(result["code"] for result in results.values()))


def present_commit() -> str:
    """The commit of the work tree, and what differs from it."""
    parts = (["rev-parse", "HEAD"], ["status", "--porcelain"], ["diff", "HEAD"])
    texts = [
        subprocess.run(["git", *part], cwd=ROOT, check=True, capture_output=True, text=True).stdout
        for part in parts
    ]
    return texts[0].strip() + ("" if not any(texts[1:]) else f", changed ({hash_of(texts[1:])})")


def hash_of(texts: list[str]) -> str:
    """A short name for a state of the work tree."""
    return hashlib.sha256("".join(texts).encode()).hexdigest()[:8]


def file_of(name: str) -> str:
    """The file for the output of a command."""
    return re.sub(r"\W+", "_", name) + ".txt"


def table(record: dict) -> str:
    """What was run with which commit, whether it passed, and in how many minutes."""
    lines = [
        f"commit {record['commit']}",
        "",
        "| what | result | minutes |",
        "| --- | --- | ---: |",
    ]
    for name in COMMANDS:
        result = record["results"].get(name)
        text = "not run" if result is None else "failed" if result["code"] else "passed"
        minutes = "" if result is None else f"{result['seconds'] / 60:.1f}"
        lines.append(f"| {name} | {text} | {minutes} |")
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
