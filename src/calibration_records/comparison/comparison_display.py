"""ComparisonDisplay: the runs of two pipelines, and the interval of their difference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from calibration_records._display import GUIDE_COLOR, STYLES, Display, as_label
from calibration_records._text import shorten
from calibration_records.statistics.estimate import Estimate, RunValues

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH = 22


@dataclass
class ComparisonDisplay(Display):
    """The metric of each run of A and B, their means, and the difference B − A.

    Each run is a point, and a dash is the mean of a pipeline. Lines join runs with the same seed if
    the comparison is paired. On the right, the plot shows the difference of the means with its
    interval, on a second scale whose 0 is the mean of A. An interval without 0 shows a difference
    that the seeds do not explain. `Comparison.plot` creates it.

    Args:
        runs: Name of each pipeline → its values, A first.
        pairs: The values of A and B under the same seeds, two of equal length; empty if the runs
            are not paired.
        difference: The mean of B − A with its interval; None with too few runs.
        metric: Name of the metric.
        unit: Its unit, for example " (nats per row)"; empty if unknown.

    Example:
        >>> runs = {"deepfm": [0.50, 0.52], "dcn": [0.40, 0.43]}
        >>> display = ComparisonDisplay(runs, ([], []), Estimate(-0.1, -0.2, 0.0), "loss")
        >>> figure = display.plot().figure_
        >>> import matplotlib.pyplot as plt
        >>> plt.close(figure)

    Reference:
        Gardner and Altman (1986), *Confidence intervals rather than P values*.
    """

    runs: dict[str, RunValues]
    pairs: tuple[RunValues, RunValues]
    difference: Estimate | None
    metric: str
    unit: str = ""

    def draw(self, ax: Axes) -> None:
        """Draws on the given Matplotlib axes."""
        # Lines between runs of one seed show how much of the spread the seeds share.
        ax.plot(
            [0, 1], np.asarray(self.pairs), color=GUIDE_COLOR, linewidth=0.8, alpha=0.5, zorder=1
        )
        ticks = []
        for place, (name, values) in enumerate(self.runs.items()):
            style = STYLES[place]
            ax.plot(
                np.full(len(values), place),
                values,
                alpha=0.8,
                markersize=5,
                **{**style, "linestyle": ""},
            )
            if len(values):
                ax.hlines(
                    np.mean(values), place - 0.2, place + 0.2, color=style["color"], linewidth=2.5
                )
            ticks.append(f"{'AB'[place]}: {as_label(shorten(name, _WIDTH))}\n{len(values)} runs")
        if self.difference is not None:
            value, low, high, confidence, _ = self.difference
            # Gardner and Altman's plot: the scale of differences is the metric's scale, moved so
            # that 0 is the mean of A.
            zero = float(np.mean(next(iter(self.runs.values()))))
            ax.errorbar(
                [2],
                [zero + value],
                [[value - low], [high - value]],
                color=STYLES[3]["color"],
                fmt="D",
                capsize=4,
            )
            ax.hlines(zero, 0.2, 2.4, color=GUIDE_COLOR, linestyle=":", zorder=0)
            scale = (lambda metric: metric - zero, lambda difference: difference + zero)
            ax.secondary_yaxis("right", functions=scale).set_ylabel(f"B − A{self.unit}")
            ticks.append(f"B − A\n{100 * confidence:g} % interval")
        ax.set_xticks(range(len(ticks)), ticks)
        ax.set(xlim=(-0.5, len(ticks) - 0.5), ylabel=f"{as_label(self.metric)}{self.unit}")
