"""The subcommand `monitor` of `keras-calibration`."""

import argparse
import contextlib
import dataclasses
import json
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from calibration_records.logs import ScoredLog

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
        help="check the calibration of a scored log",
        description=(
            "Checks the calibration of a scored log (Parquet or CSV) over time and by field. Exit "
            "code: 0 within bounds, 1 alert, 2 error."
        ),
    )
    parser.add_argument("log", nargs="+", help="Parquet or CSV files, or a folder of them")
    parser.add_argument(
        "--probability",
        action="append",
        metavar="COLUMN",
        help=(
            "column of predicted probabilities; for K classes repeated, or a column of lists; "
            "default: probability"
        ),
    )
    parser.add_argument(
        "--class",
        dest="classes",
        action="append",
        metavar="NAME",
        help="name of a class, in the order of the probabilities; repeatable",
    )
    for name, what in (
        ("label", "column of labels, 0 or 1; for K classes, class numbers or names"),
        ("timestamp", "column of times"),
    ):
        parser.add_argument(
            f"--{name}", default=name, metavar="COLUMN", help=f"{what}; default: %(default)s"
        )
    parser.add_argument(
        "--field",
        action="append",
        default=[],
        metavar="COLUMN",
        help=("column of a field; repeatable"),
    )
    parser.add_argument(
        "--period",
        default="day",
        metavar="hour|day|week|month|year",
        help="length of a period; default: %(default)s",
    )
    parser.add_argument(
        "--since", metavar="TIME", help=("start of the time range, included (ISO 8601)")
    )
    parser.add_argument(
        "--until", metavar="TIME", help="end of the time range, excluded (ISO 8601)"
    )
    parser.add_argument(
        "--tolerance",
        type=float,
        default=0.05,
        help="largest relative error that does not matter; default: %(default)s",
    )
    parser.add_argument(
        "--false-alarms-per-year",
        type=float,
        default=0.01,
        metavar="NUMBER",
        help=(
            "probability that correct probabilities raise an alert in a year of one call a period; "
            "default: %(default)s"
        ),
    )
    parser.add_argument(
        "--state",
        metavar="FILE",
        help="file of the sums so far: only files that are new are read, whatever their dates",
    )
    _add_late_labels(parser)
    parser.add_argument("--html", metavar="FILE", help="also write an HTML page")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(command=_run)


def _add_late_labels(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments for labels that come late."""
    late = parser.add_argument_group("labels that come late")
    late.add_argument(
        "--label-time",
        metavar="COLUMN",
        help="column of the times of positive labels, empty if there is none; instead of --label",
    )
    late.add_argument(
        "--observed-until", metavar="TIME", help="time until which labels are in the log (ISO 8601)"
    )
    late.add_argument(
        "--label-delay", metavar="FILE", help="how late labels come: what LabelDelay.save wrote"
    )
    late.add_argument(
        "--delay-field", metavar="COLUMN", help="column of the field by which delays differ"
    )


def _log(options: argparse.Namespace) -> "ScoredLog":
    """The log and its columns."""
    from calibration_records.logs import ScoredLog
    from calibration_records.logs.late_labels.delay_curves import DelayCurves, read_label_delay

    probabilities = options.probability or ["probability"]
    log = ScoredLog(
        options.log[0] if len(options.log) == 1 else options.log,
        probability=probabilities[0] if len(probabilities) == 1 else probabilities,
        label=options.label,
        timestamp=options.timestamp,
        fields=options.field,
        label_time=options.label_time,
        observed_until=options.observed_until,
        delay_field=options.delay_field,
    )
    if options.label_delay is None and options.label_time is not None:
        raise ValueError(
            "Argument --label-delay must be given with --label-time. Received: none. Pass the file "
            "that LabelDelay.save wrote, for example of LabelDelay(window=30).fit_log(log)."
        )
    if options.label_delay is None:
        return log
    config, fitted = read_label_delay(options.label_delay)
    curves = DelayCurves.of(fitted, config["min_share"], options.delay_field is not None)
    return dataclasses.replace(log, label_delay=curves)


def _run(options: argparse.Namespace) -> tuple[str, int]:
    """The report as text, and the exit code."""
    if options.html:
        from calibration_records.pages.page import check_page

        check_page(options.html, "--html")
    # The progress bar goes to stderr: stdout holds the report alone.
    with contextlib.redirect_stdout(sys.stderr):
        from calibration_records.logs.periods import Periods
        from calibration_records.monitoring.monitor import monitor

        report = monitor(
            _log(options),
            classes=options.classes,
            period=Periods(options.period, since=options.since, until=options.until),
            tolerance=options.tolerance,
            false_alarms_per_year=options.false_alarms_per_year,
            state=options.state,
            verbose=int(sys.stderr.isatty()),
        )
    if options.html:
        from calibration_records.pages.monitor_page import write_page

        write_page(report, options.html)
    if options.json:
        text = json.dumps(report.to_dict(), indent=1, allow_nan=False)
    else:
        text = str(report)
    return text, ALERT if report.is_alert else FINE
