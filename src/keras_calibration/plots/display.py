"""Display: the base class of the plots, which keep their data and are drawn on request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from keras_calibration.plots.style import make_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure


class Display:
    """Base class of the plots, in the manner of scikit-learn's displays.

    A display keeps its data; `plot` draws it, as often as wanted. A subclass defines `figsize` and
    `draw`.

    Attributes:
        ax_: Matplotlib axes of the last `plot`.
        figure_: Figure of the last `plot`.
    """

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

        Example:
            >>> import matplotlib.pyplot as plt
            >>> from keras_calibration.plots import ReliabilityDisplay
            >>> figure, ax = plt.subplots()
            >>> display = ReliabilityDisplay.from_predictions([0, 1], [0.2, 0.7], num_bins=1)
            >>> display.plot(ax).ax_ is ax
            True
            >>> plt.close(figure)
        """
        ax = make_axes(ax, self.figsize())
        self.draw(ax)
        ax.spines[["top", "right"]].set_visible(False)
        self.ax_, self.figure_ = ax, ax.figure
        return self

    def figsize(self) -> tuple[float, float]:
        """Width and height of a new figure, in inches."""
        raise NotImplementedError(f"{type(self).__name__} does not define `figsize`.")

    def draw(self, ax: Axes) -> None:
        """Draws on the given Matplotlib axes."""
        raise NotImplementedError(f"{type(self).__name__} does not define `draw`.")
