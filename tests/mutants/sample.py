"""A random sample of faults in `src`, each against the quick tests of its room: which survive?

    ./dev run python tests/mutants/sample.py                        150 faults
    ./dev run python tests/mutants/sample.py --number 300 --seed 1  others, and more of them
    ./dev run python tests/mutants/sample.py --room keras_calibration/_solvers
    ./dev run python tests/mutants/sample.py --seconds 15           a first look at all
    ./dev run python tests/mutants/sample.py --again                also those that had survived
    ./dev run python tests/mutants/sample.py --again --only shifts  of these, those of a name
    ./dev run python tests/mutants/sample.py --table                runs nothing; the table so far
    ./dev run python tests/mutants/sample.py --known                those of `known.py`, no sample

Most faults die in a few seconds. One that survives takes all tests of its room that call the
changed function, or the processor seconds of `--seconds`, 100 by default; the table tells which.
Each result is appended to `build/mutants/results.jsonl`, so that a run that was ended goes on where
it was. It is kept by the name of the fault, which says the file, the function and the change, so
that a sample outlasts changes of other code. After larger changes, delete `build/mutants`.

A fault that survives is equivalent, or needs a test. The first kind is told in `EQUIVALENT`, with
the reason; after a new test, `--again` shows whether it notices.
"""

import argparse
import collections
import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])

from mutants.equivalent import EQUIVALENT
from mutants.forked import FOLDER, ROOT, outcome_of, prepare
from mutants.generate import Fault, sample_of
from mutants.known import known_faults

# The tests of each room of `src`: folders of `tests` and files. Those of modules that are in no
# room come last.
_TABLES = ("layers", "calibration", "scoring")
ROOMS = {
    "keras_calibration/_graph": ("_graph", "models", "calibration", "export"),
    "keras_calibration/_ops": ("_ops", "metrics", "layers"),
    "keras_calibration/_rows": ("_rows", *_TABLES, "metrics", "models", "test_every_door.py"),
    "keras_calibration/_solvers": ("_solvers", *_TABLES, "reports"),
    "keras_calibration/calibration": (
        *("calibration", "reports", "test_sklearn.py", "test_every_door.py"),
    ),
    "keras_calibration/callbacks": ("callbacks", "seeds", "reports"),
    "keras_calibration/datasets": ("datasets", "examples"),
    "keras_calibration/export": ("export", "serving"),
    "keras_calibration/layers": ("layers", "models", "calibration", "reports"),
    "keras_calibration/metrics": ("metrics", "scoring"),
    "keras_calibration/models": ("models", "layers", "metrics"),
    "keras_calibration/plots": ("plots", "calibration"),
    "keras_calibration/scoring": ("scoring", "reports", "test_every_door.py"),
    "keras_calibration/seeds": ("seeds", "callbacks"),
    "keras_calibration/sklearn.py": ("test_sklearn.py",),
    "keras_calibration/testing": ("testing",),
    "calibration_records/comparison": ("records/comparison", "records", "reports"),
    "calibration_records/logs": ("records/logs", "records/monitoring", "scoring", "calibration"),
    "calibration_records/monitoring": ("records/monitoring", "records", "reports", "scoring"),
    "calibration_records/runs": ("records/runs", "records", "callbacks"),
    "calibration_records/statistics": ("records/statistics", "metrics", "records"),
    "calibration_records": ("scoring", "records", "metrics", "test_small_messages.py"),
    "keras_calibration": ("_ops", "layers", "metrics", "models"),
}
_RESULTS = FOLDER / "results.jsonl"


def main() -> None:
    """Runs the faults of the sample that have no result yet, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--number", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--room", default="")
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=float, default=100)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--known", action="store_true")
    options = parser.parse_args()
    faults = sample_of(ROOT / "src", options.number, options.seed, options.room)
    if options.known:
        faults = list(known_faults(ROOT / "src"))
    faults = [fault for fault in faults if options.only in fault.name]
    results = _results()
    if not options.table:
        todo = [fault for fault in faults if _is_open(fault, results, options.again)]
        if todo:
            prepare()
        for number, fault in enumerate(todo, 1):
            results[fault.name] = _result_of(fault, options.seconds)
            died = results[fault.name]["noticed_by"]
            told = f"died     {died}" if died else "SURVIVED"
            print(f"{number}/{len(todo)} {fault.name}\n        {told}", flush=True)
    _print_table(faults, results)
    left = [fault for fault in faults if _kind(fault, results) in ("survived", "not yet run")]
    sys.exit(bool(left))


def _is_open(fault: Fault, results: dict[str, dict], again: bool) -> bool:
    kind = _kind(fault, results)
    return kind == "not yet run" or (again and kind == "survived")


def _results() -> dict[str, dict]:
    """The last result of each fault that was run."""
    if not _RESULTS.exists():
        return {}
    lines = map(json.loads, _RESULTS.read_text("utf-8").splitlines())
    return {line["name"]: line for line in lines}


def _result_of(fault: Fault, seconds: float) -> dict:
    """Runs the tests of a fault, and keeps the result."""
    content = fault.apply((ROOT / "src" / fault.path).read_bytes())
    outcome = outcome_of(fault.path, content, fault.place, room_tests(fault.path), seconds)
    result = {"name": fault.name, "kind": fault.kind, **outcome._asdict()}
    with _RESULTS.open("a", encoding="utf-8") as file:
        file.write(json.dumps(result) + "\n")
    return result


def room_of(path: str) -> str:
    """The room of a file below `src`."""
    return next(room for room in ROOMS if path == room or path.startswith(f"{room}/"))


def room_tests(path: str) -> list[Path]:
    """The test files named after a file, and those of its room, first those that name it."""
    stem = Path(path).stem.strip("_")
    content = (ROOT / "src" / path).read_text("utf-8")
    public = re.findall(r"^(?:def|class) ([a-zA-Z]\w+)", content, re.MULTILINE)
    words = re.compile(rf"\b({'|'.join([Path(path).stem, *public])})\b")

    def rank(file: Path) -> int:
        if file in named:
            return 0
        return 1 if words.search(file.read_text("utf-8")) else 2

    named = sorted((ROOT / "tests").rglob(f"test_{stem}.py"))
    return sorted(dict.fromkeys([*named, *_test_files(ROOMS[room_of(path)])]), key=rank)


def _test_files(places: Iterable[str]) -> Iterable[Path]:
    for place in places:
        path = ROOT / "tests" / place
        yield from sorted(path.rglob("test_*.py")) if path.is_dir() else [path]


def _kind(fault: Fault, results: dict[str, dict]) -> str:
    if fault.name not in results:
        return "not yet run"
    if results[fault.name]["noticed_by"]:
        return "died"
    return "equivalent" if fault.name in EQUIVALENT else "survived"


def _print_table(faults: list[Fault], results: dict[str, dict]) -> None:
    """Prints how many faults of each room died, and those that live."""
    kinds = ("died", "survived", "equivalent", "not yet run")
    counts = collections.Counter((room_of(f.path), _kind(f, results)) for f in faults)
    print(f"{'room':33}{'made':>6}" + "".join(f"{kind:>13}" for kind in kinds))
    for room in (*ROOMS, "all"):
        of_room = [
            sum(counts[name, kind] for name in (ROOMS if room == "all" else [room]))
            for kind in kinds
        ]
        if any(of_room):
            print(f"{room:33}{sum(of_room):6}" + "".join(f"{count:13}" for count in of_room))
    for fault in faults:
        if _kind(fault, results) == "survived":
            part = "" if results[fault.name]["is_whole"] else " (its time was over)"
            print(f"survived{part}: {fault.name}")


if __name__ == "__main__":
    main()
