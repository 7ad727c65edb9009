"""The options of a comparison on the command line."""

import argparse
from typing import Any


def add_options(command: argparse.ArgumentParser, *, num_looks: int | None = 1) -> None:
    """Adds the options of `seeds.compare`; `num_looks` is the default number of looks."""
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
    for way in ("maximize", "minimize"):
        command.add_argument(
            f"--{way}",
            action="append",
            default=[],
            metavar="NAME",
            help=f"{way} this metric, if its direction is unknown; repeatable",
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
        default=num_looks,
        metavar="K|any",
        help="number of times that you plan to look at the growing ledger; default: "
        f"{num_looks or 'any'}",
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


def _looks(text: str) -> int | None:
    try:
        return None if text == "any" else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected an integer or any, received {text!r}") from None


def comparison_arguments(options: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `seeds.compare` that the options say."""
    return {
        "metric": options.metric,
        "epoch": options.epoch,
        "delta": options.delta,
        "confidence": options.confidence,
        "num_looks": options.looks,
        "directions": {
            **dict.fromkeys(options.maximize, "max"),
            **dict.fromkeys(options.minimize, "min"),
        },
    }
