"""Small pictures in SVG: an axis, rows of marks and lines, and a caption."""

import html
import math
from collections.abc import Sequence

WIDTH, LEFT, RIGHT = 720, 190, 20


class Scale:
    """Maps values to pixels on an axis with round ticks; `values` are finite."""

    def __init__(self, values: Sequence[float]) -> None:
        low, high = min(values), max(values)
        # Equal values need an axis too.
        margin = 0.08 * (high - low) or abs(high) * 1e-3 or 1e-3
        self.low, self.high = low - margin, high + margin

    def __call__(self, value: float) -> float:
        """The x of a value."""
        share = (value - self.low) / (self.high - self.low)
        return LEFT + (WIDTH - LEFT - RIGHT) * share

    def clip(self, value: float) -> float:
        """The x of a value, moved to the nearer end of the axis if it lies outside."""
        return self(min(max(value, self.low), self.high))

    def axis(self, height: int) -> str:
        """The axis at the bottom of a picture of this height."""
        # About five steps of 1, 2 or 5 times a power of ten.
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


def picture(height: int, marks: Sequence[str], caption: str) -> str:
    """A picture with its caption below it."""
    drawing = f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{html.escape(caption)}">'
    shown = f'<div class="scroll">{drawing}{"".join(marks)}</svg></div>'
    return f'{shown}<p class="faint">{html.escape(caption)}</p>'


def label(text: str, y: float) -> str:
    """The name of a row, to its left."""
    return f'<text x="4" y="{y + 4:.1f}">{html.escape(text)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    """A straight line."""
    return f'<line class="{style}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def band(left: float, right: float, height: int) -> str:
    """A grey band from the top of a picture to its axis."""
    place = f'x="{left:.1f}" y="8" width="{right - left:.1f}" height="{height - 40}"'
    return f'<rect class="band" {place}/>'


def mark(side: str, x: float, y: float) -> str:
    """A hollow square for "a", a disc for "b": distinct without colour."""
    if side == "a":
        corner = f'x="{x - 3.5:.1f}" y="{y - 3.5:.1f}"'
        return f'<rect class="a hollow" {corner} width="7" height="7"/>'
    return f'<circle class="b" cx="{x:.1f}" cy="{y:.1f}" r="4"/>'
