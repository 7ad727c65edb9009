"""The subcommand `monitor` of `keras-calibration`."""

import argparse
import contextlib
import json
import sys

FINE, ALERT = 0, 1


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the subcommand to the result of `ArgumentParser.add_subparsers`.

    Example:
        >>> parser = argparse.ArgumentParser()
        >>> add_parser(parser.add_subparsers())
        >>> parser.parse_args(["monitor", "log.parquet", "--field", "site"]).field
        ['site']
    """
    parser = commands.add_parser(
        "monitor",
        help="check a scored log",
        description="Checks the calibration of a scored log (Parquet or CSV) over time and by "
        "field. Exit code: 0 within bounds, 1 alert, 2 error.",
    )
    parser.add_argument("log", nargs="+", help="Parquet or CSV files, or a folder of them")
    for name, default, what in (
        ("probability", "probability", "column of predicted probabilities"),
        ("label", "label", "column of labels, 0 or 1"),
        ("timestamp", "timestamp", "column of times"),
        ("period", "day", "hour, day, week, month or year"),
        ("tolerance", 0.05, "largest relative error that does not matter"),
        ("false-alarms-per-year", 0.01, "chance of a false alarm in a year of one call per period"),
    ):
        parser.add_argument(
            f"--{name}", default=default, type=type(default), help=f"{what}; default: %(default)s"
        )
    parser.add_argument("--since", help="start of the time range, included (ISO 8601)")
    parser.add_argument("--until", help="end of the time range, excluded (ISO 8601)")
    parser.add_argument("--field", action="append", default=[], help="column; repeatable")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(command=_run)


def _run(options: argparse.Namespace) -> tuple[str, int]:
    """The report as text, and the exit code."""
    # The progress bar goes to stderr: stdout holds the report alone.
    with contextlib.redirect_stdout(sys.stderr):
        from calibration_records.logs import Periods, ScoredLog
        from calibration_records.monitoring.monitor import monitor

        columns = {name: vars(options)[name] for name in ("label", "probability", "timestamp")}
        report = monitor(
            ScoredLog(options.log, fields=options.field, **columns),
            Periods(options.period, options.since, options.until),
            tolerance=options.tolerance,
            false_alarms_per_year=options.false_alarms_per_year,
            verbose=int(sys.stderr.isatty()),
        )
    text = json.dumps(report.to_dict(), allow_nan=False) if options.json else str(report)
    return text, ALERT if report.is_alert else FINE
