"""ReliabilityDisplay: the observed rate against the predicted probability."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from calibration_records._display import GUIDE_COLOR, STYLES, Display, as_label
from keras_calibration._rows.scored_rows import scored_rows
from keras_calibration.plots.rates import Rates, rates_by_bin

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass
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

    curves: Mapping[str, Rates]

    @classmethod
    @np.errstate(under="ignore")
    def from_predictions(
        cls,
        labels: ArrayLike,
        predictions: ArrayLike | Mapping[str, ArrayLike],
        *,
        sample_weight: ArrayLike | None = None,
        num_bins: int = 15,
        from_logits: bool = False,
        weights_are: str = "importance",
    ) -> ReliabilityDisplay:
        """Computes the bins.

        Args:
            labels: Labels, 0 or 1, shape `(n,)` or `(n, 1)`.
            predictions: Probabilities of the same rows, or name → probabilities, for
                example `{"before": ..., "after": ...}`. Each has its own bins.
            sample_weight: Non-negative weights of the rows; None for ones.
            num_bins: Number of bins, at least 1. Ties may leave fewer.
            from_logits: Whether the predictions are logits.
            weights_are: `"importance"`, known up to a common factor, or `"counts"` of rows.

        Returns:
            The display, not yet drawn.

        Raises:
            ValueError: If arrays differ in length, or values are out of range.

        Example:
            >>> display = ReliabilityDisplay.from_predictions([0, 1], [0.2, 0.7], num_bins=1)
            >>> display.curves["predicted"].predicted
            array([0.45])
        """
        rows = scored_rows(labels, predictions, sample_weight).probabilities(from_logits, True)
        return cls(rates_by_bin(rows, num_bins, weights_are))

    def draw(self, ax: Axes) -> None:
        """Draws on the given Matplotlib axes."""
        # A square from 0 to just beyond the largest point or interval; rates may be far below 1.
        ends = 0.0, 1.03 * max(np.nanmax([r.predicted, r.upper]) for r in self.curves.values())
        ax.plot(ends, ends, color=GUIDE_COLOR, linewidth=1.0, zorder=1)
        for (name, rates), style in zip(self.curves.items(), itertools.cycle(STYLES)):
            ax.errorbar(
                rates.predicted,
                rates.observed,
                yerr=rates.interval_lengths(),
                label=as_label(name),
                markersize=4.5,
                elinewidth=1.0,
                **style,
            )
        ax.set(xlim=ends, ylim=ends, aspect="equal", title="Reliability, bins of equal mass")
        ax.set(xlabel="mean predicted probability", ylabel="observed rate (95 % interval)")
        if len(self.curves) > 1:
            ax.legend(loc="upper left", frameon=False)
