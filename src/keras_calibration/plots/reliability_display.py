"""ReliabilityDisplay: the observed rate against the predicted probability."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from keras_calibration.plots.display import Display
from keras_calibration.plots.rates import Rates, bin_by_mass, checked_predictions, group_rates
from keras_calibration.plots.style import GUIDE_COLOR, style_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class ReliabilityDisplay(Display):
    """Observed rate against mean predicted probability, in bins of equal mass.

    Rows are sorted by predicted probability and cut into bins of equal total weight (equal
    probabilities share a bin). Each bin is a point at `x = Σ w p / Σ w`, `y = Σ w y / Σ w`, with
    the 95 % Wilson interval of y. The points of a calibrated model lie on the diagonal, up to
    chance. Create it with `from_predictions`.

    Args:
        curves: Name of each set of probabilities → the `Rates` of its bins.

    Example:
        >>> generator = np.random.default_rng(0)
        >>> before = generator.uniform(0.1, 0.9, size=1000)
        >>> labels = generator.random(1000) < before**2
        >>> display = ReliabilityDisplay.from_predictions(
        ...     labels, {"before": before, "after": before**2}, num_bins=5
        ... )
        >>> display.curves["before"].num_rows
        array([200, 200, 200, 200, 200])
        >>> figure = display.plot().figure_
        >>> import matplotlib.pyplot as plt
        >>> plt.close(figure)

    Reference:
        The interface follows scikit-learn's `CalibrationDisplay`.
    """

    def __init__(self, curves: Mapping[str, Rates]) -> None:
        self.curves = dict(curves)

    @classmethod
    def from_predictions(
        cls,
        labels: ArrayLike,
        predictions: ArrayLike | Mapping[str, ArrayLike],
        *,
        sample_weight: ArrayLike | None = None,
        num_bins: int = 15,
        from_logits: bool = False,
    ) -> ReliabilityDisplay:
        """Computes the bins.

        Args:
            labels: Labels, 0 or 1, shape `(n,)` or `(n, 1)`.
            predictions: Probabilities of the same rows, or name → probabilities, for
                example `{"before": ..., "after": ...}`. Each has its own bins.
            sample_weight: Non-negative weights of the rows; None for ones.
            num_bins: Number of bins, at least 1. Ties may leave fewer.
            from_logits: Whether the predictions are logits.

        Returns:
            The display, not yet drawn.

        Raises:
            ValueError: If arrays differ in length, or values are out of range.

        Example:
            >>> display = ReliabilityDisplay.from_predictions([0, 1], [0.2, 0.7], num_bins=1)
            >>> display.curves["predicted"].predicted
            array([0.45])
        """
        flat_labels, named, weights = checked_predictions(
            labels, predictions, sample_weight, from_logits
        )
        curves = {}
        for name, values in named.items():
            bins = bin_by_mass(values, num_bins, weights)
            curves[name] = group_rates(flat_labels, values, bins, int(bins.max()) + 1, weights)
        return cls(curves)

    def figsize(self) -> tuple[float, float]:
        """Width and height of a new figure, in inches."""
        return (5.0, 4.6)

    def draw(self, ax: Axes) -> None:
        """Draws on the given Matplotlib axes."""
        limit = max(np.nanmax([rates.predicted, rates.upper]) for rates in self.curves.values())
        limit = min(1.0, 1.04 * float(limit))
        ax.plot([0.0, limit], [0.0, limit], color=GUIDE_COLOR, linewidth=1.0, zorder=1)
        for index, (name, rates) in enumerate(self.curves.items()):
            style = style_of(index)
            ax.errorbar(
                rates.predicted,
                rates.observed,
                yerr=rates.interval_lengths(),
                label=name,
                color=style.color,
                marker=style.marker,
                linestyle=style.linestyle,
                markersize=4.5,
                linewidth=1.4,
                elinewidth=1.0,
                zorder=2 + index,
            )
        ax.set(
            xlim=(0.0, limit),
            ylim=(0.0, limit),
            aspect="equal",
            xlabel="mean predicted probability",
            ylabel="observed rate (95 % interval)",
            title="Reliability, bins of equal mass",
        )
        if len(self.curves) > 1:
            ax.legend(loc="upper left", frameon=False)
