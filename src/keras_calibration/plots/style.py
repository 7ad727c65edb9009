"""The look that all pictures share."""

from __future__ import annotations

from typing import Any, NamedTuple


class CurveStyle(NamedTuple):
    """How one set of probabilities is drawn, told apart in greyscale too.

    Args:
        color: Colour of lines, markers and bars.
        marker: Marker of points.
        linestyle: Style of lines.
    """

    color: str
    marker: str
    linestyle: str


# In this order: before, after, and two more to compare with. They differ in lightness.
STYLES = (
    CurveStyle("#f0a552", "s", "--"),
    CurveStyle("#2b69ad", "o", "-"),
    CurveStyle("#8fc7b8", "^", ":"),
    CurveStyle("#4a4a4a", "D", "-."),
)
GUIDE_COLOR = "#8a8a8a"


def style_of(index: int) -> CurveStyle:
    """The style of a set of probabilities by its place; the fifth looks like the first.

    Args:
        index: Its place, from 0.

    Returns:
        The style.

    Example:
        >>> style_of(4) == STYLES[0]
        True
    """
    return STYLES[index % len(STYLES)]


def make_axes(ax: Any, figsize: tuple[float, float]) -> Any:
    """The given axes, or those of a new figure.

    Args:
        ax: Matplotlib axes, or None.
        figsize: Width and height of a new figure, in inches.

    Returns:
        Matplotlib axes.

    Raises:
        ImportError: If Matplotlib is not installed.

    Example:
        >>> ax = make_axes(None, (4.0, 3.0))
        >>> make_axes(ax, (4.0, 3.0)) is ax
        True
        >>> import matplotlib.pyplot as plt
        >>> plt.close(ax.figure)
    """
    if ax is not None:
        return ax
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError(
            'Drawing needs Matplotlib: pip install "keras-calibration[plots]".'
        ) from error
    return plt.subplots(figsize=figsize, layout="constrained")[1]
