"""The parts of an HTML page, and the page: one file, no script, nothing fetched."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibration_records._check import installed
from calibration_records._files import write_atomically


@dataclass(frozen=True)
class Bar:
    """Values of a row of a table, drawn on the axis that all rows share.

    Args:
        marks: Values, drawn as marks.
        low: Start of a line below the marks; NaN for none.
        high: End of that line.
        is_square: Whether the marks are hollow squares instead of discs.
    """

    marks: Sequence[float]
    low: float = math.nan
    high: float = math.nan
    is_square: bool = False


@dataclass(frozen=True)
class Axis:
    """The axis of bars.

    Args:
        low: Smallest value shown.
        high: Largest value shown.
        labels: Texts of the two ends.
        target: Value of a dashed line; NaN for none.
        margin: Half the width of a grey band around the target.
    """

    low: float
    high: float
    labels: tuple[str, str]
    target: float = math.nan
    margin: float = 0.0

    def place(self, value: float) -> float:
        """The place of a value in percent of the axis; of one beyond an end, that end."""
        return 100 * (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)


def range_of(values: Sequence[float]) -> tuple[float, float]:
    """The ends of an axis that shows all finite values.

    Example:
        >>> range_of([0.0, 1.0, math.inf])
        (-0.08, 1.08)
    """
    finite = [value for value in values if math.isfinite(value)] or [0.0]
    low, high = min(finite), max(finite)
    # Equal values need an axis too.
    margin = 0.08 * (high - low) or abs(high) * 1e-3 or 1e-3
    return low - margin, high + margin


@dataclass(frozen=True)
class Table:
    """A table of texts.

    Args:
        head: Names of the columns.
        rows: Texts of each row.
        bars: A bar for each row, after its first cell; `None` for none. Empty without an axis.
        axis: Axis of the bars.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    bars: Sequence[Bar | None] = ()
    axis: Axis | None = None


@dataclass(frozen=True)
class Section:
    """A part of a page; all texts are plain.

    Args:
        title: Title.
        verdict: The result, in large type.
        table: A table.
        caption: A remark on the table or on the section.
        points: List of sentences.
        parts: Parts of this part.
        is_open: Whether a part that can be folded is open; `None` if it cannot be folded.
    """

    title: str = ""
    verdict: str = ""
    table: Table | None = None
    caption: str = ""
    points: Sequence[str] = ()
    parts: Sequence["Section"] = ()
    is_open: bool | None = None


def page(title: str, heading: str, sections: Sequence[Section]) -> str:
    """A complete page; Jinja2 escapes every text.

    Example:
        >>> "<script" in page("A", "<script>", [Section("<script>")])
        False
    """
    template = _environment().get_template("page.html")
    return template.render(title=title, heading=heading, sections=sections)


def _environment() -> Any:
    with installed("html", "HTML pages require Jinja2."):
        import jinja2
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def check_page(path: str | os.PathLike[str], argument: str = "path") -> None:
    """Raises if no page can be written there, before the work that it would show.

    Example:
        >>> check_page("nowhere/page.html", "--html")
        Traceback (most recent call last):
        ...
        ValueError: Argument `--html` must be a file in a folder that exists. Received:
        'nowhere/page.html'. Create the folder first.
    """
    if Path(path).is_dir():
        raise ValueError(
            f"Argument `{argument}` must be a file. Received: {os.fspath(path)!r}, a folder."
        )
    if not Path(path).parent.is_dir():
        raise ValueError(
            f"Argument `{argument}` must be a file in a folder that exists. Received: "
            f"{os.fspath(path)!r}. Create the folder first."
        )
    _environment()


def write(text: str, path: str | os.PathLike[str]) -> None:
    """Writes a page atomically in UTF-8: an older page stays until the new one is complete."""
    check_page(path)
    # UTF-8 cannot encode some names, such as half a surrogate pair.
    write_atomically(Path(path), text.encode("utf-8", "backslashreplace"))
