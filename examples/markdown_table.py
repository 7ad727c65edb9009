"""A table of the studies' results as Markdown."""

from collections.abc import Callable, Sequence


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with aligned columns."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    rules = ["-" * width for width in widths]

    def line(cells: Sequence[str], pad: Callable[[str, int], str] = str.ljust) -> str:
        return "| " + " | ".join(map(pad, cells, widths)) + " |"

    return "\n".join(map(line, [head, rules, *rows]))
