"""The command line `keras-calibration`.

Each command imports its modules when it runs; none loads Keras.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TextIO

from calibration_records._check import refused
from calibration_records._text import grid, shorten
from calibration_records.monitor_command import add_parser as add_monitor
from calibration_records.runs.run_record import RunRecord

if TYPE_CHECKING:
    from calibration_records.runs.ledger import Ledger

DECIDED, UNDECIDED, ERROR = 0, 1, 2
_MAX_NAME, _MAX_MESSAGE = 40, 1000
# Replacements for terminals that only show ASCII.
_ASCII = dict(
    zip(map(ord, "−–±×…≥≤’√"), ("-", "-", "+-", "x", "...", ">=", "<=", "'", "sqrt"), strict=True)
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        arguments: Command line without the name of the program; `None` for `sys.argv`.

    Returns:
        The exit code: 0 for success, 1 if `compare` is undecided or `monitor` raises an alert, 2
        for an error, with one line on stderr.

    Example:
        >>> main(["runs", "no-such-folder"])
        2
    """
    options = _build_parser().parse_args(arguments)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            text, code = options.command(options)
        _show_result(text)
        return int(code)
    except KeyboardInterrupt:
        _say("interrupted")
    except Exception as error:
        # All exceptions: Python's own exit code, 1, would mean "undecided" or "alert".
        _say(_describe_error(error))
    return ERROR


def _describe_error(error: Exception) -> str:
    if isinstance(error, ValueError | OSError | ImportError):
        return str(error)
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(place.filename).name}, line {place.lineno})"


def _show_result(text: str) -> None:
    """Prints to stdout now: at exit, a full disk or a closed pipe would give a traceback."""
    try:
        _print(text, sys.stdout)
        sys.stdout.flush()
    except OSError:
        # The rest of the buffer is written at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    _say(f"warning: {message}")


def _say(text: str) -> None:
    """Prints one line to stderr, with control characters escaped."""
    _print(f"keras-calibration: {shorten(' '.join(text.split()), _MAX_MESSAGE)}", sys.stderr)


def _print(text: str, file: TextIO) -> None:
    """Prints, with ASCII replacements if the terminal needs them."""
    encoding = getattr(file, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = text.translate(_ASCII).encode(encoding, "backslashreplace").decode(encoding)
    print(text, file=file)


class _Parser(argparse.ArgumentParser):
    """A parser that reports an error in one line, as the commands do."""

    def error(self, message: str) -> NoReturn:
        """Ends the program."""
        _say(f"{message}. `{self.prog} --help` shows the arguments.")
        raise SystemExit(ERROR)


def _build_parser() -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = _Parser(
        prog="keras-calibration",
        description="Compare pipelines over seeds, and monitor a scored log.",
    )
    commands: argparse._SubParsersAction[argparse.ArgumentParser] = parser.add_subparsers(
        required=True, metavar="COMMAND"
    )
    runs = commands.add_parser("runs", help="list the pipelines of a ledger")
    runs.set_defaults(command=_list_runs)
    comparison = commands.add_parser(
        "compare",
        help="compare two pipelines",
        description="Tells whether pipeline B is better than A. Exit code: 0 decided, 1 undecided, "
        "2 error.",
    )
    comparison.set_defaults(command=_compare)
    for command in (runs, comparison):
        command.add_argument("ledger", help="folder of the ledger")
        command.add_argument("--json", action="store_true", help="print JSON")
    comparison.add_argument("a", metavar="A", help="first pipeline")
    comparison.add_argument("b", metavar="B", help="second pipeline")
    _add_comparison_options(comparison)
    add_monitor(commands)
    return parser


def _add_comparison_options(command: argparse.ArgumentParser) -> None:
    """Adds the options of `seeds.compare`."""
    command.add_argument(
        "--metric",
        default="calibrated_log_loss",
        help="metric that decides; default: %(default)s, for a model that is calibrated again "
        "before it is served; otherwise the plain loss, for example loss",
    )
    command.add_argument(
        "--epoch",
        type=partial(
            _parse_number, {n: n for n in ("kept", "last", "best")}, "kept, last, best or "
        ),
        default="kept",
        help="kept, last, best or a number; default: %(default)s, whose weights the run kept",
    )
    for verb in ("maximize", "minimize"):
        command.add_argument(
            f"--{verb}",
            action="append",
            default=[],
            help=f"{verb} this metric, if its direction is unknown; repeatable",
        )
    command.add_argument(
        "--delta",
        type=float,
        help="largest difference that does not matter, in the unit of the metric",
    )
    command.add_argument(
        "--confidence",
        type=float,
        default=0.95,
        help="confidence level of the intervals; default: %(default)s",
    )
    command.add_argument(
        "--looks",
        type=partial(_parse_number, {"advised": "advised", "any": None}, "any or "),
        default="advised",
        help="advised, any, or the planned number of looks at the growing ledger; default: "
        "%(default)s, which lets you train 'about k more seeds each' and look again",
    )


def _parse_number(words: Mapping[str, str | None], others: str, text: str) -> int | str | None:
    """An integer, or what one of some words stands for; `others` are those of the message."""
    if text in words:
        return words[text]
    if not text.removeprefix("-").isdigit():
        raise argparse.ArgumentTypeError(f"expected {others}an integer, received {text!r}")
    return int(text)


def _open(options: argparse.Namespace) -> Ledger:
    from calibration_records.runs.ledger import Ledger

    path = Path(options.ledger)
    if not path.is_dir() or (any(path.iterdir()) and not len(Ledger(path))):
        raise refused("ledger", "the folder of a ledger", options.ledger)
    return Ledger(path)


def _list_runs(options: argparse.Namespace) -> tuple[str, int]:
    by_pipeline: dict[str, list[RunRecord]] = {}
    for run in _open(options).runs():
        by_pipeline.setdefault(run["pipeline"], []).append(run)
    rows = []
    for pipeline, runs in by_pipeline.items():
        statuses = [run["status"] for run in runs]
        rows.append(
            {
                "pipeline": pipeline,
                **{name: statuses.count(name) for name in ("finished", "diverged")},
                "unfinished": statuses.count("started"),
                "seeds": len({run["seed"] for run in runs if run["status"] != "started"}),
                "epochs": max(len(run["epochs"]) for run in runs),
                "last (UTC)": max(run["created"] for run in runs)[:16].replace("T", " "),
            }
        )
    if options.json:
        return json.dumps(rows, indent=1), DECIDED
    if not rows:
        return "The ledger is empty.", DECIDED
    cells = [[shorten(str(value), _MAX_NAME) for value in row.values()] for row in rows]
    return "\n".join(grid([[*rows[0]], *cells])), DECIDED


def _compare(options: argparse.Namespace) -> tuple[str, int]:
    from calibration_records.comparison.compare import compare

    if both := {*options.maximize} & {*options.minimize}:
        raise refused("--maximize", "of other metrics than --minimize", sorted(both))
    comparison = compare(
        _open(options),
        options.a,
        options.b,
        metric=options.metric,
        epoch=options.epoch,
        delta=options.delta,
        confidence=options.confidence,
        num_looks=options.looks,
        directions=dict.fromkeys(options.maximize, "max") | dict.fromkeys(options.minimize, "min"),
    )
    text = json.dumps(comparison.to_dict(), allow_nan=False) if options.json else str(comparison)
    return text, DECIDED if comparison.verdict.decided else UNDECIDED


if __name__ == "__main__":
    sys.exit(main())
