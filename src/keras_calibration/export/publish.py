"""publish: writes an export to a temporary folder, runs it, compares it with Keras and moves it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from keras_calibration.export.target import Target
from keras_calibration.export.verification import Outputs, Tolerance, largest_difference

SERVING, RAW, CALIBRATE = "serving_default", "raw", "calibrate"


class Request(NamedTuple):
    """A request to an export, and Keras' answer.

    Args:
        signature: Name of the signature.
        inputs: Rows by their names in the signature.
        expected: Function of the received outputs, by name, that returns those of Keras. They may
            depend on the received logits, because a step function may jump between two logits that
            differ only by rounding.
    """

    signature: str
    inputs: Mapping[str, Any]
    expected: Callable[[Outputs], Mapping[str, Any]]


class Format(Protocol):
    """A format of exports: how one is written and run.

    Attributes:
        kind: Name of the format in errors.
    """

    kind: str

    def write(self, path: Path) -> None:
        """Writes the export."""

    def run(self, path: Path, requests: Sequence[Request]) -> list[Outputs]:
        """Runs the export: the outputs of each request, by name."""

    def sign(self, path: Path, differences: Mapping[str, float]) -> None:
        """Adds the differences to the export, if the format keeps them; by default, it does not."""
        return


def publish(
    target: Target, form: Format, requests: Sequence[Request], tolerance: Tolerance
) -> Path:
    """Writes, runs, compares and moves an export: the target holds all of it or nothing.

    Args:
        target: The place of the export, already checked.
        form: The format, which writes and runs it.
        requests: Requests with Keras' answers.
        tolerance: Largest allowed differences of the answers.

    Returns:
        The path of the export.

    Raises:
        RuntimeError: If answers differ by more than rounding explains.
    """
    with target.temporary_path() as path:
        form.write(path)
        answers = form.run(path, requests)
        form.sign(path, _measure_differences(form.kind, requests, answers, tolerance))
        return target.move(path)


def _measure_differences(
    kind: str, requests: Sequence[Request], answers: Sequence[Outputs], tolerance: Tolerance
) -> dict[str, float]:
    """`"SIGNATURE/OUTPUT"` → the largest difference; raises if one is too large."""
    differences: dict[str, float] = {}
    for request, received in zip(requests, answers, strict=True):
        for name, expected in request.expected(received).items():
            output = f"{request.signature}/{name}"
            difference = largest_difference(received[name], np.asarray(expected))
            differences[output] = max(differences.get(output, 0.0), difference)
            # Written so that a difference of NaN fails too.
            if not difference <= tolerance.allowed(name):
                raise RuntimeError(
                    f"The output {output!r} of the {kind} may differ from the Keras model's by at "
                    f"most {tolerance.allowed(name):g}, which rounding explains. Received: a "
                    f"difference of {difference:g} on {len(received[name])} rows. Nothing was "
                    "written. Look for layers that compute differently when exported."
                )
    return differences


@contextlib.contextmanager
def named_errors(runtime: str) -> Iterator[None]:
    """Turns the errors of a converter or runtime into a short `ValueError`."""
    try:
        yield
    except ImportError:
        raise
    except Exception as error:
        raise ValueError(
            f"{runtime} does not support this model: {first_line(error)}. Nothing was written. "
            f"Serve the model as a SavedModel, or serve only the base model with {runtime} and "
            "calibrate its logits with the signature 'calibrate' of the SavedModel."
        ) from error


def first_line(error: Exception) -> str:
    """The first line of an error that is not empty, shortened."""
    return next((line for line in str(error).splitlines() if line.strip()), repr(error))[:300]
