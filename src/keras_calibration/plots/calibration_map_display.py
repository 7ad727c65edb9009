"""CalibrationMapDisplay: the calibrated logit against the logit, over a histogram of the logits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
from keras import ops
from numpy.typing import ArrayLike

from calibration_records._check import at_least, refused
from calibration_records._display import GUIDE_COLOR, STYLES, Display
from keras_calibration.layers.head import Head
from keras_calibration.plots.rates import Floats, checked_columns

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NUM_POINTS = 512


@dataclass
class CalibrationMapDisplay(Display):
    """The fitted curve η(l) of a calibrator, over the histogram of the logits.

    The upper part shows the calibrated logit against the logit, with the identity: where the curve
    is above it, the predictions are too low. Knots are marked if the calibrator has them. The lower
    part shows the rows that support the curve: histograms of the positives and of the negatives, in
    bins of equal width, each normalised to sum to 1. Where there are no rows, the curve is an
    extrapolation. Create it with `from_calibrator`.

    Args:
        logits: Increasing logits l at which the curve is drawn, shape `(m,)`.
        values: Calibrated logits η(l), shape `(m,)`.
        knots: Knots, shape `(K,)`; empty if the calibrator has none.
        knot_values: η at the knots, shape `(K,)`.
        bin_edges: Edges of the histogram, shape `(num_bins + 1,)`.
        shares: Name of each group of rows → its share in each bin, shape `(num_bins,)`.

    Example:
        >>> from keras_calibration.layers import PlattScaling
        >>> generator = np.random.default_rng(0)
        >>> logits = generator.normal(-1.0, 1.0, size=2000)
        >>> labels = generator.random(2000) < 1 / (1 + np.exp(1 - 2 * logits))
        >>> platt = PlattScaling()
        >>> summary = platt.fit(logits, labels)
        >>> display = CalibrationMapDisplay.from_calibrator(platt, logits, labels)
        >>> slope = np.ptp(display.values) / np.ptp(display.logits)
        >>> print(slope.round(1))
        2.1
        >>> figure = display.plot().figure_
        >>> import matplotlib.pyplot as plt
        >>> plt.close(figure)

    Reference:
        Kull, Silva Filho, Flach, *Beta calibration*, AISTATS 2017 ("calibration map").
    """

    logits: Floats
    values: Floats
    knots: Floats
    knot_values: Floats
    bin_edges: Floats
    shares: Mapping[str, Floats]

    @classmethod
    def from_calibrator(
        cls,
        calibrator: Head,
        logits: ArrayLike,
        labels: ArrayLike,
        *,
        sample_weight: ArrayLike | None = None,
        num_bins: int = 60,
    ) -> Self:
        """Computes the curve and the histogram.

        Args:
            calibrator: A head of one logit a row that reads no features. For another head, pass
                `head.calibrator`.
            logits: Logits of the rows, shape `(n,)` or `(n, 1)`. Infinite ones are left out.
            labels: Labels, 0 or 1, of the same rows.
            sample_weight: Non-negative weights of the rows; None for ones.
            num_bins: Number of bins, at least 1.

        Returns:
            The display, not yet drawn.

        Raises:
            ValueError: If the calibrator is of another kind, arrays differ in length, a value is
                out of range, or no logit is finite.

        Example:
            >>> from keras_calibration.layers import ILPS
            >>> rows = [-2.0, 0.0, 1.0], [0, 1, 1]
            >>> display = CalibrationMapDisplay.from_calibrator(ILPS(num_knots=3), *rows)
            >>> display.knots.round(2), display.bin_edges[[0, -1]]
            (array([-1.1,  0. ,  1.1]), array([-2.,  1.]))
        """
        if getattr(calibrator, "feature_names", None) != ():
            remedy = "For another head, pass head.calibrator."
            raise refused("calibrator", "a head that reads no features", calibrator, remedy)
        calibrator.check_logits((None, 1))
        at_least("num_bins", num_bins, 1)
        flat, columns, weights = checked_columns(labels, {"logits": logits}, sample_weight)
        rows = columns["logits"]
        finite = np.isfinite(rows)
        if np.isnan(rows).any() or not finite.any():
            raise refused("logits", "without NaN, and some finite", rows)
        edges = np.histogram_bin_edges(rows[finite], num_bins)
        shares = {}
        for label, name in enumerate(("negatives", "positives")):
            chosen = finite & (flat == label)
            mass = np.histogram(rows[chosen], edges, weights=weights[chosen])[0]
            shares[name] = mass / max(mass.sum(), np.finfo(np.float64).tiny)
        knots = np.asarray(getattr(calibrator, "get_knots", list)(), np.float64)
        inside = knots[(knots > edges[0]) & (knots < edges[-1])]
        # Includes the knots, where the curve bends.
        at = np.unique(np.r_[np.linspace(edges[0], edges[-1], _NUM_POINTS), inside])
        return cls(at, _curve(calibrator, at), knots, _curve(calibrator, knots), edges, shares)

    def draw(self, ax: Axes) -> None:
        """Draws on the given Matplotlib axes."""
        ends, color = self.logits[[0, -1]], STYLES[1]["color"]
        ax.plot(ends, ends, color=GUIDE_COLOR, label="identity")
        ax.plot(self.logits, self.values, color=color, label="η(l)")
        seen = (self.knots >= ends[0]) & (self.knots <= ends[1])
        if seen.any():
            ax.plot(self.knots[seen], self.knot_values[seen], "o", color=color, label="knots")
        # The lowest quarter is for the histogram.
        low, high = ax.get_ylim()
        ax.set_ylim(low - 0.4 * (high - low), high)
        ax.set(xlabel="logit", ylabel="calibrated logit", title="Calibration map")
        below = ax.inset_axes((0.0, 0.0, 1.0, 0.25), sharex=ax)
        below.set_axis_off()
        for (name, share), style in zip(self.shares.items(), STYLES, strict=False):
            shade = {"color": style["color"], "alpha": 0.5, "fill": True}
            below.stairs(share, self.bin_edges, label=name, **shade)
        handles = [*ax.get_legend_handles_labels()[0], *below.get_legend_handles_labels()[0]]
        ax.legend(handles=handles, loc="upper left", frameon=False)


def _curve(calibrator: Head, logits: Floats) -> Floats:
    return ops.convert_to_numpy(calibrator(logits)).astype(np.float64).reshape(-1)
