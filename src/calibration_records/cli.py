"""The command line `keras-calibration`.

Each command imports what it needs when it runs; none loads Keras.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from calibration_records._text import grid, shorten, terminal_safe
from calibration_records.monitor_command import add_parser as add_monitor
from calibration_records.runs.run_record import RunRecord

if TYPE_CHECKING:
    from calibration_records.runs.ledger import Ledger

DECIDED, UNDECIDED, ERROR = 0, 1, 2
_MAX_NAME, _MAX_MESSAGE = 40, 1000
# Replacements for terminals that only show ASCII.
_ASCII = str.maketrans(
    {
        "−": "-",
        "–": "-",
        "±": "+-",
        "×": "x",
        "…": "...",
        "≥": ">=",
        "≤": "<=",
        "’": "'",
        "√": "sqrt",
    }
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
    options = _parser().parse_args(arguments)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            text, code = options.command(options)
        _show_result(text)
        return int(code)
    except KeyboardInterrupt:
        _say("interrupted")
        return ERROR
    except Exception as error:
        # All exceptions: Python's own exit code, 1, would mean "undecided" or "alert".
        _say(_message(error))
        return ERROR


def _message(error: Exception) -> str:
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
        # What is left in the buffer is written at exit.
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


def _parser() -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = _Parser(
        prog="keras-calibration",
        description="Compare pipelines over seeds, and monitor a scored log.",
    )
    commands: argparse._SubParsersAction[argparse.ArgumentParser] = parser.add_subparsers(
        required=True, metavar="COMMAND"
    )

    runs = commands.add_parser("runs", help="list the pipelines of a ledger")
    runs.set_defaults(command=_runs)
    show = commands.add_parser("show", help="show a pipeline, or the record of a run")
    show.set_defaults(command=_show)
    comparison = commands.add_parser(
        "compare",
        help="compare two pipelines",
        description="Tells whether pipeline B is better than A. Exit code: 0 decided, 1 undecided, "
        "2 error.",
    )
    comparison.set_defaults(command=_compare)
    report = commands.add_parser("report", help="write comparisons to one HTML page")
    report.set_defaults(command=_report)

    for command in (runs, show, comparison, report):
        command.add_argument("ledger", help="folder of the ledger")
    show.add_argument("name", help="a pipeline, or the start of a run id")
    comparison.add_argument("a", metavar="A", help="first pipeline")
    comparison.add_argument("b", metavar="B", help="second pipeline")
    report.add_argument(
        "pipelines",
        nargs="*",
        help=("pipelines to compare: the first with each of the others; default: all"),
    )
    report.add_argument("--html", required=True, metavar="FILE", help="page to write")
    for command in (comparison, report):
        _add_comparison_options(command)
    for command in (runs, show, comparison):
        command.add_argument("--json", action="store_true", help="print JSON")
    add_monitor(commands)
    return parser


def _add_comparison_options(command: argparse.ArgumentParser) -> None:
    """Adds the options of `seeds.compare`."""
    command.add_argument(
        "--metric", default="calibrated_log_loss", help="metric that decides; default: %(default)s"
    )
    command.add_argument(
        "--epoch",
        type=_epoch,
        default="kept",
        metavar="kept|last|best|N",
        help="epoch to compare; default: %(default)s, the epoch whose weights the run kept",
    )
    for verb in ("maximize", "minimize"):
        command.add_argument(
            f"--{verb}",
            action="append",
            default=[],
            metavar="NAME",
            help=f"{verb} this metric, if its direction is unknown; repeatable",
        )
    command.add_argument(
        "--delta",
        type=float,
        help=("largest difference that does not matter, in the unit of the metric"),
    )
    command.add_argument(
        "--confidence",
        type=float,
        default=0.95,
        help="confidence level of the intervals; default: %(default)s",
    )
    command.add_argument(
        "--looks",
        type=_looks,
        default="advised",
        metavar="advised|K|any",
        help="number of times that you plan to look at the growing ledger; default: %(default)s, "
        "as often as it takes to train 'about k more seeds each' and look again",
    )
    command.add_argument(
        "--recalibrated",
        choices=("yes", "no"),
        help="is the model calibrated again before it is served? yes: the calibrated loss decides; "
        "no: the plain loss",
    )


def _epoch(text: str) -> int | str:
    if text in ("kept", "last", "best"):
        return text
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected kept, last, best or an integer, received {text!r}"
        ) from None


def _looks(text: str) -> int | str | None:
    if text == "advised":
        return text
    try:
        return None if text == "any" else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected an integer or any, received {text!r}") from None


def _comparison_arguments(options: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `seeds.compare` that the options give."""
    return {
        "metric": options.metric,
        "epoch": options.epoch,
        "delta": options.delta,
        "confidence": options.confidence,
        "num_looks": options.looks,
        "recalibrated": None if options.recalibrated is None else options.recalibrated == "yes",
        "directions": {
            **dict.fromkeys(options.maximize, "max"),
            **dict.fromkeys(options.minimize, "min"),
        },
    }


def _open(options: argparse.Namespace) -> Ledger:
    from calibration_records.runs.ledger import Ledger

    path = Path(options.ledger)
    if not path.is_dir():
        raise ValueError(
            "Argument `ledger` must be the folder of a ledger. Received: "
            f"ledger={options.ledger!r}, which is not a folder."
        )
    ledger = Ledger(path)
    if not len(ledger) and any(path.iterdir()):
        raise ValueError(
            "Argument `ledger` must be the folder of a ledger. Received: "
            f"ledger={options.ledger!r}, a folder that holds no records of runs."
        )
    return ledger


def _runs(options: argparse.Namespace) -> tuple[str, int]:
    by_pipeline: dict[str, list[RunRecord]] = {}
    for run in _open(options).runs():
        by_pipeline.setdefault(run["pipeline"], []).append(run)
    rows = [
        {
            "pipeline": pipeline,
            **{
                status: sum(run["status"] == status for run in runs)
                for status in ("finished", "diverged", "started")
            },
            "seeds": len({run["seed"] for run in runs if run["status"] != "started"}),
            "epochs": max(len(run["epochs"]) for run in runs),
            "last": max(run["created"] for run in runs)[:16].replace("T", " "),
        }
        for pipeline, runs in by_pipeline.items()
    ]
    if options.json:
        return json.dumps(rows, indent=1), DECIDED
    if not rows:
        return "The ledger is empty.", DECIDED
    header = [
        "unfinished" if name == "started" else "last (UTC)" if name == "last" else name
        for name in rows[0]
    ]
    cells = [[shorten(str(row["pipeline"]), _MAX_NAME), *_texts(row)[1:]] for row in rows]
    return "\n".join(grid([header, *cells])), DECIDED


def _show(options: argparse.Namespace) -> tuple[str, int]:
    runs = _open(options).runs()
    mine = [run for run in runs if run["pipeline"] == options.name]
    found = [run for run in runs if run["run_id"].startswith(options.name)]
    if mine:
        return _show_pipeline(options, mine)
    if len(found) != 1:
        raise ValueError(
            "Argument `name` must be a pipeline or the start of exactly one run id. Received: "
            f"name={options.name!r}, with which {len(found)} run ids start. `keras-calibration "
            "runs` lists the pipelines."
        )
    # JSON has no NaN: it is shown as text, as it is stored.
    return json.dumps(_strict(found[0]), indent=None if options.json else 1), DECIDED


def _show_pipeline(options: argparse.Namespace, runs: Sequence[RunRecord]) -> tuple[str, int]:
    from calibration_records.comparison.pipeline_runs import gather_runs
    from calibration_records.statistics.summary import summarize

    names = list(dict.fromkeys(name for run in runs for name in run["metrics"]))
    summaries = {}
    for name in names:
        gathered = gather_runs(runs, options.name, [name])
        summaries[name] = summarize([v for v in gathered.values[name] if v is not None])
    if options.json:
        return json.dumps(_strict(summaries), indent=1), DECIDED
    ended = sum(run["status"] == "finished" for run in runs)
    title = (
        f"{terminal_safe(options.name)}: {ended} of {len(runs)} runs finished; "
        "values at each run's kept epoch"
    )
    statistics = ("count", "mean", "std", "min", "max")
    cells = [
        [shorten(name, _MAX_NAME), *(f"{summaries[name][part]:.6g}" for part in statistics)]
        for name in names
    ]
    return "\n".join([title, "", *grid([["metric", *statistics], *cells])]), DECIDED


def _compare(options: argparse.Namespace) -> tuple[str, int]:
    from calibration_records.comparison.compare import compare

    comparison = compare(_open(options), options.a, options.b, **_comparison_arguments(options))
    if options.json:
        text = json.dumps(comparison.to_dict(), indent=1, allow_nan=False)
    else:
        text = str(comparison)
    return text, DECIDED if comparison.verdict.decided else UNDECIDED


def _report(options: argparse.Namespace) -> tuple[str, int]:
    from calibration_records.pages.comparison_page import write_report

    write_report(
        _open(options),
        options.html,
        pipelines=options.pipelines or None,
        **_comparison_arguments(options),
    )
    return f"Wrote {terminal_safe(options.html)}", DECIDED


def _texts(row: Mapping[str, Any]) -> list[str]:
    return [str(value) for value in row.values()]


def _strict(value: Any) -> Any:
    """JSON values, with NaN and infinity as text."""
    if isinstance(value, float):
        return value if abs(value) < float("inf") else str(value)
    if isinstance(value, Mapping):
        return {name: _strict(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_strict(part) for part in value]
    return value


if __name__ == "__main__":
    sys.exit(main())
