"""Plain text for terminals and notebooks: safe names, wrapped lines and aligned columns."""

import html
import math
import textwrap
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

MAX_WIDTH = 100


def wrap(line: str, width: int = MAX_WIDTH) -> list[str]:
    """Wraps a line at `width` columns and indents the continuation lines.

    Example:
        >>> wrap("a long line of words", 10)
        ['a long', '  line of', '  words']
    """
    return textwrap.wrap(terminal_safe(line), width, subsequent_indent="  ") or [""]


def terminal_safe(text: str) -> str:
    r"""Escapes control characters, so that a name cannot send commands to the terminal.

    Example:
        >>> terminal_safe("a\x1b[31m\nb")
        'a\\x1b[31m\\nb'
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shorten(name: str, width: int) -> str:
    """Escapes control characters and cuts the name at `width` columns.

    Example:
        >>> shorten("calibrated_log_loss", 8)
        'calibra…'
    """
    name = terminal_safe(name)
    return name if len(name) <= width else name[: width - 1] + "…"


def counted(number: int, noun: str) -> str:
    """The number and its noun, in the plural unless it is 1.

    Example:
        >>> counted(1, "more seed"), counted(1200, "run")
        ('1 more seed', '1,200 runs')
    """
    return f"{number:,} {noun}{'s' * (number != 1)}"


def grid(rows: Sequence[Sequence[str]]) -> list[str]:
    """Aligns rows of cells: the first column to the left, the others to the right.

    Example:
        >>> grid([["metric", "mean"], ["loss", "0.5"]])
        ['metric  mean', 'loss     0.5']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join([first.ljust(widths[0]), *map(str.rjust, rest, widths[1:])]).rstrip()
        for first, *rest in rows
    ]


def as_json(value: Any) -> Any:
    """A report as JSON values, without records of runs; None for numbers that are not finite.

    Example:
        >>> as_json({"interval": (0.5, math.inf)})
        {'interval': [0.5, None]}
    """
    if is_dataclass(value) and not isinstance(value, type):
        # The records of the runs are in the ledger.
        value = {f.name: getattr(value, f.name) for f in fields(value) if f.name != "records"}
    elif hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {name: as_json(part) for name, part in value.items()}
    if isinstance(value, tuple | list):
        return [as_json(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value.value if isinstance(value, Enum) else value


class ShownAsText:
    """Base class of reports whose notebook cell shows `str(report)`, not the repr of every number.

    Example:
        >>> class Report(ShownAsText):
        ...     def __str__(self):
        ...         return "site = <b>"
        >>> Report()._repr_html_()
        '<pre>site = &lt;b&gt;</pre>'
    """

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"
