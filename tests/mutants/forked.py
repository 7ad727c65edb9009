"""Runs test files against a changed `src`, in a process forked from one with the imports done.

TensorFlow alone takes seconds to import. The parent imports it, without running it, and nothing of
the packages of `src`; a child has them from a copy with one changed file. While tests run, it also
records which functions of `src` each calls, so that the tests of later faults are known.
"""

import atexit
import collections
import hashlib
import importlib
import inspect
import json
import os
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "mutants"
_CALLS = FOLDER / "calls"
_TEMPORARY = FOLDER / f"run-{os.getpid()}"
_COPY, _OUTPUT = _TEMPORARY / "src", _TEMPORARY / "output.txt"
_IMPORTED = (
    *("tensorflow", "keras", "tensorflow_probability", "hypothesis", "scipy.stats", "pandas"),
    *("scipy.optimize", "matplotlib.pyplot", "duckdb", "pyarrow", "lightgbm", "joblib"),
    *("sklearn.linear_model", "threadpoolctl"),
)
_LONGEST_TEST = 120  # seconds; ends a loop without end
_TIME_IS_OVER = "The time of a fault is over."


class Outcome(NamedTuple):
    """What became of a fault.

    Args:
        noticed_by: The test that failed, or "" if none did.
        num_tests: How many tests were started.
        seconds: Processor seconds.
        is_whole: Whether no test was left out because the time was over.
    """

    noticed_by: str
    num_tests: int
    seconds: float
    is_whole: bool


def prepare() -> None:
    """Imports what the tests need, and copies `src`."""
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3", "MPLBACKEND": "Agg", "JAX_PLATFORMS": "cpu"}
    environment |= {"TF_NUM_INTRAOP_THREADS": "1", "OMP_NUM_THREADS": "1"}
    for name, value in environment.items():
        os.environ.setdefault(name, value)
    for name in _IMPORTED:
        importlib.import_module(name)
    _CALLS.mkdir(parents=True, exist_ok=True)
    # Not at the end of a child, which leaves by `_exit`.
    atexit.register(shutil.rmtree, _TEMPORARY, ignore_errors=True)
    # With the compiled files, which hold for copies with the same times.
    shutil.copytree(ROOT / "src", _COPY)


def outcome_of(
    path: str, content: bytes, place: str, tests: Sequence[Path], seconds: float
) -> Outcome:
    """What test files say of a changed file of `src`.

    The examples in the docstrings of the file are tests too. A test that no run has passed yet is
    run without the change as well. If it fails there, it says nothing: the others are run again.

    Args:
        path: The file, below `src`.
        content: Its changed content.
        place: The name of the function that is changed; "" if that is not inside of one.
        tests: The test files, those that name the file first.
        seconds: Processor seconds, after which no further test is started.
    """
    function, broken = f"{path}:{place}" if place else "", set()
    while True:
        passed = {test for file in tests for test in _calls_of(file).of_test}
        original = (_COPY / path).read_bytes()
        times = (_COPY / path).stat()
        _compiled_away(path)
        (_COPY / path).write_bytes(content)
        try:
            examples = [str(_COPY / path)] if b">>>" in content else []
            outcome = _forked([*examples, *_in_order(tests, function)], function, broken, seconds)
        finally:
            (_COPY / path).write_bytes(original)
            os.utime(_COPY / path, ns=(times.st_atime_ns, times.st_mtime_ns))
            _compiled_away(path)
        test = outcome.noticed_by.partition(" (exit")[0]
        alone = [test] if "::" in test else [str(_COPY / path)]
        if not test or test in passed or not _forked(alone, "", set(), seconds).noticed_by:
            return outcome
        if "::" not in test:
            raise RuntimeError(f"{path} cannot be imported without a change either: {_OUTPUT}.")
        broken.add(test)


def _compiled_away(path: str) -> None:
    for compiled in (_COPY / path).parent.glob(f"__pycache__/{Path(path).stem}.*"):
        compiled.unlink()


class _Calls(NamedTuple):
    """The functions of `src` that the tests of a file call, as far as these have run.

    Args:
        of_test: Of each test that has passed.
        num_tests: How many tests the file has.
    """

    of_test: dict[str, list[str]]
    num_tests: int


def _calls_of(file: Path) -> _Calls:
    """What is known of a test file; nothing if it has changed since."""
    kept = _kept(file)
    content = json.loads(kept.read_text("utf-8")) if kept.exists() else {}
    if content.get("digest") != _digest(file):
        return _Calls({}, -1)
    return _Calls(content["of_test"], content["num_tests"])


def _kept(file: Path) -> Path:
    return _CALLS / f"{_relative(file).replace('/', '.')}.json"


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _relative(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def _in_order(tests: Sequence[Path], function: str) -> list[str]:
    """The files that may call a function: those known to call it first, without those known not to.

    What is traced once is not called again by a later test, nor what another thread calls, so that
    a file with one test that calls it runs whole.
    """
    ranks = {}
    for file in tests:
        calls = _calls_of(file)
        is_called = any(function in called for called in calls.of_test.values())
        is_known = len(calls.of_test) == calls.num_tests
        ranks[_relative(file)] = 0 if is_called else 2 if is_known else 1
    if not function or 0 not in ranks.values():
        return list(ranks)
    return sorted((file for file in ranks if ranks[file] < 2), key=lambda file: ranks[file])


class _Plugin:
    """Orders the tests of a run, bounds its time, and records what passes, and what it calls."""

    def __init__(self, function: str, broken: set[str], seconds: float, report: int) -> None:
        self.function, self.broken = function, broken
        self.seconds, self.report = seconds, report
        self.known: set[str] = set()
        self.called: set[str] = set()
        self.num_tests: collections.Counter[Path] = collections.Counter()
        self.calls: dict[str, dict[str, list[str]]] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self.num_tests = collections.Counter(item.path for item in items)
        items[:] = [item for item in items if item.nodeid not in self.broken]
        known = {}
        for file in {item.path for item in items}:
            # Examples in the docstrings of the changed file are not recorded, and come first.
            known |= {} if file.is_relative_to(_COPY) else _calls_of(file).of_test
        self.known = set(known) | {item.nodeid for item in items if item.path.is_relative_to(_COPY)}
        if self.function:
            items.sort(key=lambda item: self._rank(item, known.get(item.nodeid)))

    def _rank(self, item: pytest.Item, calls: list[str] | None) -> tuple[int, int]:
        """Examples and tests named after the file come first, then callers, the simplest first."""
        path, _, place = self.function.partition(":")
        if item.path.is_relative_to(_COPY):
            return 0, 0
        if item.path.stem == f"test_{Path(path).stem.strip('_')}" and (
            calls is None or self.function in calls
        ):
            return 1, 0
        if calls is not None:
            return (2, len(calls)) if self.function in calls else (5, 0)
        text = inspect.getsource(item.function) if isinstance(item, pytest.Function) else ""
        is_named = bool({*place.split(".")} & {*re.findall(r"\w+", text)})
        return 3 if is_named else 4, 0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterable[None]:
        os.write(self.report, f"{item.nodeid}\n".encode())
        signal.alarm(_LONGEST_TEST)
        self.called = set()
        is_new = item.nodeid not in self.known  # to record takes as long as the test
        if is_new:
            sys.settrace(self._trace)
            threading.settrace(self._trace)
        result = yield
        sys.settrace(None)
        threading.settrace(None)
        signal.alarm(0)
        if is_new and not item.session.testsfailed:
            self.calls.setdefault(_relative(item.path), {})[item.nodeid] = sorted(self.called)
        if time.process_time() > self.seconds:
            item.session.shouldstop = _TIME_IS_OVER
        return result

    def _trace(self, frame: object, event: str, argument: object) -> None:
        code = frame.f_code
        if (file := code.co_filename).startswith(str(_COPY)):
            self.called.add(f"{file[len(str(_COPY)) + 1 :]}:{code.co_qualname}")

    def pytest_sessionfinish(self) -> None:
        # Without a function, there may be a single test, which says nothing of its file.
        for name, calls in self.calls.items() if self.function else ():
            file = ROOT / name
            content = {
                "digest": _digest(file),
                "num_tests": self.num_tests[file],
                "of_test": _calls_of(file).of_test | calls,
            }
            _kept(file).write_text(json.dumps(content), "utf-8")


def _forked(tests: Sequence[str], function: str, broken: set[str], seconds: float) -> Outcome:
    """What tests say of the copy of `src` as it is."""
    reader, writer = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if not child:
        code = 3
        try:
            os.close(reader)
            code = _run(tests, _Plugin(function, broken, seconds, writer))
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader) as file:
        started = file.read().split("\n")[:-1]
    _, status, usage = os.wait4(child, 0)
    code = os.waitstatus_to_exitcode(status)
    last = started[-1] if started else "import"
    noticed_by = {0: "", 1: last, 2: "import", 5: ""}.get(code, f"{last} (exit {code})")
    is_whole = code != 2 or _TIME_IS_OVER not in _OUTPUT.read_text("utf-8", "replace")
    used = round(usage.ru_utime + usage.ru_stime, 1)
    return Outcome(noticed_by if is_whole else "", len(started), used, is_whole)


def _run(tests: Sequence[str], plugin: _Plugin) -> int:
    """Runs tests in this process, and returns pytest's exit code."""
    output = os.open(_OUTPUT, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(ROOT)
    os.environ["PYTHONPATH"] = str(_COPY)
    sys.path.insert(0, str(_COPY))
    sys.dont_write_bytecode = True
    signal.alarm(_LONGEST_TEST)  # for imports
    for test in map(Path, tests):
        # Or pytest would import a module with examples a second time.
        if test.is_relative_to(_COPY):
            importlib.import_module(".".join(test.relative_to(_COPY).with_suffix("").parts))
    flags = ["-q", "-x", "-m", "not slow", "-p", "no:cacheprovider", "-p", "no:randomly"]
    flags += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    return int(pytest.main([*flags, *tests], plugins=[plugin]))
