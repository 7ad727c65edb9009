"""The common style of the plots."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from calibration_records._check import installed

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class CurveStyle(NamedTuple):
    """Style of one set of probabilities, distinguishable in greyscale too.

    Args:
        color: Colour of lines, markers and bars.
        marker: Marker of points.
        linestyle: Style of lines.

    Example:
        >>> STYLES[0].linestyle
        '--'
    """

    color: str
    marker: str
    linestyle: str


#: Styles of sets of probabilities: before, after, and two more. They differ in lightness.
STYLES = (
    CurveStyle("#f0a552", "s", "--"),
    CurveStyle("#2b69ad", "o", "-"),
    CurveStyle("#8fc7b8", "^", ":"),
    CurveStyle("#4a4a4a", "D", "-."),
)
GUIDE_COLOR = "#8a8a8a"


def style_of(index: int) -> CurveStyle:
    """The style of a set of probabilities by its index; the fifth is the first again."""
    return STYLES[index % len(STYLES)]


def make_axes(ax: Axes | None, figsize: tuple[float, float]) -> Axes:
    """The given Matplotlib axes, or those of a new figure of a size in inches."""
    if ax is not None:
        return ax
    with installed("plots", "Plots require Matplotlib."):
        import matplotlib.pyplot as plt
    return plt.subplots(figsize=figsize, layout="constrained")[1]
