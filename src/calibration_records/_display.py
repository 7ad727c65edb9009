"""Display: the base class of the plots. It keeps the data; Matplotlib is loaded to draw."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from calibration_records._check import installed, instance

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure


#: Styles of sets of probabilities, as arguments of Matplotlib: before, after, and two more. Their
#: lightness differs, so that greyscale shows the difference too.
STYLES: tuple[dict[str, Any], ...] = (
    {"color": "#f0a552", "marker": "s", "linestyle": "--"},
    {"color": "#2b69ad", "marker": "o", "linestyle": "-"},
    {"color": "#8fc7b8", "marker": "^", "linestyle": ":"},
    {"color": "#4a4a4a", "marker": "D", "linestyle": "-."},
)
GUIDE_COLOR = "#8a8a8a"


class Display:
    """Base class of the plots, in the manner of scikit-learn's displays.

    A display keeps its data, and `plot` draws it. A subclass defines `draw`.

    Attributes:
        figsize: Width and height of a new figure, in inches.
        ax_: Matplotlib axes of the last `plot`.
        figure_: Figure of the last `plot`.
    """

    figsize: tuple[float, float] = (5.0, 4.6)
    ax_: Axes
    figure_: Figure | SubFigure

    def plot(self, ax: Axes | None = None) -> Self:
        """Draws the plot.

        Args:
            ax: Matplotlib axes to draw on; None for a new figure.

        Returns:
            The display itself, with `ax_` and `figure_` set.

        Raises:
            ImportError: If Matplotlib is not installed.
            ValueError: If `ax` is something else, for example several axes.

        Example:
            >>> import matplotlib.pyplot as plt
            >>> class Line(Display):
            ...     def draw(self, ax):
            ...         ax.plot([0, 1])
            >>> figure, ax = plt.subplots()
            >>> Line().plot(ax).ax_ is ax
            True
            >>> plt.close(figure)
        """
        with installed("plots", "Plots require Matplotlib."):
            import matplotlib.pyplot as plt
        ax = plt.subplots(figsize=self.figsize, layout="constrained")[1] if ax is None else ax
        instance("ax", ax, plt.Axes, "Matplotlib axes, or None", "Of several, pass one: axes[0].")
        self.draw(ax)
        ax.spines[["top", "right"]].set_visible(False)
        self.ax_, self.figure_ = ax, ax.figure
        return self

    def draw(self, ax: Axes) -> None:
        """Draws on the given Matplotlib axes."""
        raise NotImplementedError(f"{type(self).__name__} does not define `draw`.")


def as_label(name: str) -> str:
    r"""A name as a label of a plot, where Matplotlib would read dollars as the ends of a formula.

    Example:
        >>> as_label("price in $")
        'price in \\$'
    """
    return name.replace("$", r"\$")
