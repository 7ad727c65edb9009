"""What all pictures share: data kept, drawn on request."""

from __future__ import annotations

from typing import Any, Self

from keras_calibration.plots.style import make_axes


class Display:
    """Base of the pictures, in the manner of scikit-learn's displays.

    A display keeps what it shows; `plot` draws it, as often as wanted. A subclass writes `figsize`
    and `draw`.

    Attributes:
        ax_: Matplotlib axes of the last `plot`.
        figure_: Its figure.
    """

    ax_: Any
    figure_: Any

    def plot(self, ax: Any = None) -> Self:
        """Draws the picture.

        Args:
            ax: Matplotlib axes to draw on; those of a new figure if not given.

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
        raise NotImplementedError(f"{type(self).__name__} does not write `figsize`.")

    def draw(self, ax: Any) -> None:
        """Draws on the given Matplotlib axes."""
        raise NotImplementedError(f"{type(self).__name__} does not write `draw`.")
