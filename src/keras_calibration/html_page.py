"""What the HTML pages share: one file, no network, no script; tables and pictures drawn as SVG."""

import html
import math
import os
import uuid
from collections.abc import Sequence
from pathlib import Path

WIDTH, LEFT, RIGHT = 720, 190, 20
STYLE = """
:root { color-scheme: light dark; --ink: #1c1f23; --faint: #5c6670; --paper: #fff; --line: #c9d0d6;
  --a: #b35c00; --b: #2b69ad; --panel: #f3f5f7; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8eaed; --faint: #a8b0b8; --paper: #16191d;
  --line: #444c55; --a: #f0a552; --b: #7fb4ee; --panel: #22272d; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 52rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin: 2.5rem 0 .5rem; }
h3 { font-size: 1rem; margin: 1.5rem 0 .25rem; } h2, p, li { overflow-wrap: anywhere; }
.verdict { font-size: 1.4rem; font-weight: 600; background: var(--panel); padding: .75rem 1rem;
  border-left: 6px solid var(--b); margin: .5rem 0; } .faint { color: var(--faint); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; width: 100%; }
th, td { text-align: right; padding: .25rem .4rem; border-bottom: 1px solid var(--line);
  font-variant-numeric: tabular-nums; white-space: pre; vertical-align: top; }
th:first-child, td:first-child { text-align: left; white-space: normal; overflow-wrap: anywhere;
  min-width: 7rem; } svg { width: 100%; min-width: 38rem; height: auto; }
svg text { fill: var(--ink); font-size: 13px; }
svg .faint { fill: var(--faint); font-size: 12px; } a { color: var(--b); }
.a { fill: var(--a); stroke: var(--a); } .b { fill: var(--b); stroke: var(--b); }
.hollow { fill: none; stroke-width: 1.5; } .axis { stroke: var(--line); }
.ink { stroke: var(--ink); stroke-width: 2; }
.zero { stroke: var(--faint); stroke-dasharray: 4 3; } .band { fill: var(--line); opacity: .5; }
.part0 { fill: var(--b); } .part1 { fill: var(--a); } .part2 { fill: var(--line); }
@media print { :root { color-scheme: light; --ink: #000; --faint: #444; --paper: #fff; --line: #999;
  --a: #b35c00; --b: #2b69ad; --panel: #fff; } body { max-width: none; margin: 0; }
  h2, h3 { break-after: avoid-page; } svg, tr, .verdict { break-inside: avoid-page; }
  .download { display: none; } details::details-content { content-visibility: visible; }
  table { font-size: .7rem; } details table { font-size: .6rem; }
  details td, details th { padding: .15rem .3rem; white-space: normal; overflow-wrap: anywhere; }
  .scroll { overflow: visible; } }
"""


def page(title: str, heading: str, body: str) -> str:
    """A whole page.

    Args:
        title: Title of the window, plain text.
        heading: First line of the page, plain text.
        body: HTML below it; names in it must be escaped.

    Example:
        >>> "<script" in page("A", "<script>", "")
        False
    """
    # The policy holds even if an escape were forgotten: nothing is fetched and nothing runs.
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title><style>{STYLE}</style></head><body>
<h1>{html.escape(heading)}</h1>
{body}
</body></html>
"""


def write(text: str, path: str | os.PathLike[str]) -> None:
    """Writes a page in UTF-8, in full or not at all: an older page stays until it is replaced."""
    target = Path(path)
    # In the same folder, for a rename is whole on one file system only.
    temporary = target.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("wb") as file:
            # Names may hold what UTF-8 cannot, as half a surrogate pair.
            file.write(text.encode("utf-8", "backslashreplace"))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of plain texts.

    Args:
        head: Texts of the header.
        rows: Texts of the cells.
    """
    header = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    body = "".join(
        f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{header}</tr></thead>{body}</table></div>'


class Scale:
    """Values to pixels, with round ticks.

    Args:
        values: What must have room on the axis; finite.
    """

    def __init__(self, values: Sequence[float]) -> None:
        low, high = min(values), max(values)
        # Equal values get an axis all the same.
        margin = 0.08 * (high - low) or abs(high) * 1e-3 or 1e-3
        self.low, self.high = low - margin, high + margin

    def __call__(self, value: float) -> float:
        """The place of a value."""
        share = (value - self.low) / (self.high - self.low)
        return LEFT + (WIDTH - LEFT - RIGHT) * share

    def clip(self, value: float) -> float:
        """The place of a value, or the end of the axis nearest to it."""
        return self(min(max(value, self.low), self.high))

    def axis(self, height: int) -> str:
        """The axis at the foot of a picture of this height."""
        # Round steps of 1, 2 or 5 times a power of ten, about five on the axis.
        rough = (self.high - self.low) / 5
        power = 10.0 ** math.floor(math.log10(rough))
        factor = next(factor for factor in (1, 2, 5, 10) if factor * power >= rough)
        step = factor * power
        first, last = math.ceil(self.low / step), math.floor(self.high / step)
        digits = 1 + math.floor(math.log10(factor * max(abs(first), abs(last), 1)))
        marks = [line(LEFT, height - 24, WIDTH - RIGHT, height - 24, "axis")]
        for tick in (number * step for number in range(first, last + 1)):
            x = self(tick)
            marks.append(line(x, height - 24, x, height - 19, "axis"))
            text = f"{tick:.{digits}g}"
            place = f'text-anchor="middle" x="{x:.1f}" y="{height - 5}"'
            marks.append(f'<text class="faint" {place}>{text}</text>')
        return "".join(marks)


def svg(height: int, marks: Sequence[str], caption: str) -> str:
    """A picture with its caption below."""
    drawing = f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{html.escape(caption)}">'
    shown = f'<div class="scroll">{drawing}{"".join(marks)}</svg></div>'
    return f'{shown}<p class="faint">{html.escape(caption)}</p>'


def label(text: str, y: float) -> str:
    """The name of a row, at its left."""
    return f'<text x="4" y="{y + 4:.1f}">{html.escape(text)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    """A straight line."""
    return f'<line class="{style}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def band(left: float, right: float, height: int) -> str:
    """A grey band from the top of a picture to its axis."""
    place = f'x="{left:.1f}" y="8" width="{right - left:.1f}" height="{height - 40}"'
    return f'<rect class="band" {place}/>'


def mark(side: str, x: float, y: float) -> str:
    """A hollow square for "a" and a disc for "b", told apart without colour."""
    if side == "a":
        corner = f'x="{x - 3.5:.1f}" y="{y - 3.5:.1f}"'
        return f'<rect class="a hollow" {corner} width="7" height="7"/>'
    return f'<circle class="b" cx="{x:.1f}" cy="{y:.1f}" r="4"/>'
