"""LevelDisplay: the level that a head follows over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keras_calibration._solvers.level import Level
from keras_calibration.plots.display import Display
from keras_calibration.plots.style import GUIDE_COLOR, style_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class LevelDisplay(Display):
    """The level of the logits over time with 95 % intervals, and what of it is served.

    Args:
        level: The level, of `head.level()` or of a `CalibrationReport`.
        unit: Unit of the times: `"day"` for dates.

    Raises:
        ValueError: If there is no level.

    Example:
        >>> import numpy as np
        >>> from keras_calibration.layers import FieldBias
        >>> rng = np.random.default_rng(0)
        >>> labels = rng.random(4000) < np.linspace(0.1, 0.2, 4000)
        >>> head = FieldBias({}, follows_time=True)
        >>> summary = head.fit(np.full(4000, -1.7) + rng.normal(size=4000), labels, time="order")
        >>> display = LevelDisplay(head.level())
        >>> bool(display.level.values[-1] > display.level.values[0])
        True
    """

    def __init__(self, level: Level, unit: str = "") -> None:
        if level is None or not len(level.times):
            raise ValueError(
                "Argument `level` must be the level of a head that follows time and is fitted. "
                f"Received: level={level!r}. Use FieldBias(…, follows_time=True), or calibrate "
                "with time=."
            )
        self.level = level
        self.unit = unit

    def figsize(self) -> tuple[float, float]:
        """Width and height of a new figure, in inches."""
        return 6.0, 3.5

    def draw(self, ax: Axes) -> None:
        """Draws on the given Matplotlib axes."""
        times, values = self.level.times, self.level.values
        width = 1.96 * self.level.errors
        color = style_of(1).color
        ax.axhline(0.0, color=GUIDE_COLOR, linewidth=0.8)
        ax.fill_between(times, values - width, values + width, color=color, alpha=0.2, linewidth=0)
        ax.plot(times, values, color=color, marker="o", markersize=3, label="level")
        ax.plot([times[-1]], [self.level.last], color="black", marker="D", label="served")
        unit = f" ({self.unit}s)" if self.unit else ""
        ax.set_xlabel(f"time, before the last row{unit}")
        ax.set_ylabel("level (logits)")
        ax.legend(frameon=False)
