"""A table of the studies' results as Markdown."""

from collections.abc import Callable, Mapping, Sequence


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with aligned columns."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    rules = ["-" * width for width in widths]

    def line(cells: Sequence[str], pad: Callable[[str, int], str] = str.ljust) -> str:
        return "| " + " | ".join(map(pad, cells, widths)) + " |"

    return "\n".join(map(line, [head, rules, *rows]))


def table_of(lines: Sequence[Mapping[str, str]]) -> str:
    """A Markdown table of lines that map a column to its text; a line may lack columns."""
    head = list(dict.fromkeys(column for line in lines for column in line))
    return markdown_table(head, [[line.get(column, "") for column in head] for line in lines])
