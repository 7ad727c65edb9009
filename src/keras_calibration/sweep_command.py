"""The subcommand `sweep` of `keras-calibration`."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from keras_calibration.comparison_options import add_options, comparison_arguments
from keras_calibration.ledger.ledger import Ledger
from keras_calibration.training.train import ENGINES

if TYPE_CHECKING:
    from keras_calibration.comparison.comparison import Comparison

DONE, UNDECIDED = 0, 1


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the subcommand to the result of `ArgumentParser.add_subparsers`.

    Example:
        >>> parser = argparse.ArgumentParser()
        >>> add_parser(parser.add_subparsers())
        >>> parser.parse_args(["sweep", "runs", "ctr:deepfm", "--seeds", "0-3"]).seeds
        [0, 1, 2, 3]
    """
    parser = commands.add_parser(
        "sweep",
        help="train a pipeline under many seeds",
        description="Trains a pipeline under many seeds and records each in the ledger. Seeds that "
        "have ended in the ledger are not trained again, so the same command goes on after an "
        "interruption. Exit code: 0 done, 1 undecided with --until-decided, 2 error.",
    )
    parser.add_argument("ledger", help="folder of the ledger")
    parser.add_argument(
        "function",
        metavar="MODULE:FUNCTION",
        help="function without arguments that returns a dict with the arguments of seeds.train: "
        "build_model, data, epochs, …; the module is looked up in this folder, too",
    )
    parser.add_argument(
        "--pipeline", metavar="NAME", help="name of the pipeline; default: the function's"
    )
    parser.add_argument(
        "--seeds",
        type=_seeds,
        default=list(range(16)),
        metavar="FIRST-LAST",
        help="range of seeds, both included, or a list with commas; default: 0-15",
    )
    parser.add_argument("--engine", choices=ENGINES, help="default: the function's, or vectorized")
    parser.add_argument(
        "--num-parallel", type=int, metavar="N", help="seeds at once; default: one for each core"
    )
    parser.add_argument(
        "--until-decided",
        nargs=2,
        metavar=("A", "B"),
        help="stop once a comparison of two pipelines is decided; one of them is trained here, and "
        "the other is in the ledger",
    )
    add_options(parser, num_looks=None)
    parser.set_defaults(command=_run)


def _seeds(text: str) -> list[int]:
    try:
        seeds: list[int] = []
        for part in text.split(","):
            first, _, last = part.partition("-")
            seeds += range(int(first), int(last or first) + 1)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected a range such as 0-15, or a list such as 1,5,7, received {text!r}"
        ) from None
    return seeds


def _run(options: argparse.Namespace) -> tuple[str, int]:
    """Trains the seeds; returns a summary, and the exit code."""
    from keras_calibration.training.train import train

    arguments = _pipeline(options)
    until: Callable[[Ledger], Comparison] | None = None
    if options.until_decided:
        _check_question(options, arguments["pipeline"])
        until = partial(_compare, options)
    runs = train(**arguments, ledger=options.ledger, seeds=options.seeds, until=until)
    text = f"{len(runs)} of {len(options.seeds)} seeds have ended in {options.ledger}"
    if until is None:
        return text, DONE
    comparison = until(Ledger(options.ledger))
    code = DONE if comparison.verdict.decided else UNDECIDED
    return f"{text}\n\n{comparison}", code


def _compare(options: argparse.Namespace, ledger: Ledger) -> Comparison:
    from keras_calibration.comparison.compare import compare

    return compare(ledger, *options.until_decided, **comparison_arguments(options))


def _check_question(options: argparse.Namespace, pipeline: str) -> None:
    """Refuses a comparison that could never be made, before anything is trained."""
    others = [name for name in options.until_decided if name != pipeline]
    if len(others) != 1:
        raise ValueError(
            "Argument `--until-decided` must name the pipeline that is trained, and another one. "
            f"Received: {options.until_decided}, and the pipeline is {pipeline!r}."
        )
    if not Ledger(options.ledger).runs(others[0]):
        raise ValueError(
            "Argument `--until-decided` must name a pipeline of the ledger. Received: "
            f"{others[0]!r}, which has no runs in {options.ledger!r}. Train it first."
        )


def _pipeline(options: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `seeds.train` that the function returns, with those of the options."""
    module, _, name = options.function.partition(":")
    # As `python -m` does; the path of an installed program is not the user's.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    function = getattr(importlib.import_module(module), name or "", None) if module else None
    if not callable(function):
        raise ValueError(
            "Argument `MODULE:FUNCTION` must be the name of a module and of a function in it. "
            f"Received: {options.function!r}."
        )
    arguments = function()
    if not isinstance(arguments, Mapping) or not {"build_model", "data"} <= set(arguments):
        raise ValueError(
            "Argument `MODULE:FUNCTION` must return a dict with the arguments of seeds.train, at "
            f"least build_model and data. Received: {options.function} returned "
            f"{type(arguments).__name__}."
        )
    given = {
        "pipeline": options.pipeline or arguments.get("pipeline", name),
        "engine": options.engine or arguments.get("engine", "vectorized"),
        "num_parallel": options.num_parallel or arguments.get("num_parallel"),
    }
    return {**arguments, **given}
