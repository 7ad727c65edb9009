"""CalibrationMapDisplay: the calibrated logit against the logit, over a histogram of the logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Self

import numpy as np
from keras import ops
from numpy.typing import ArrayLike, NDArray

from calibration_records._columns import warn_of_other_order
from keras_calibration._rows.columns import numbers_of
from keras_calibration._rows.weights import rows_that_count
from keras_calibration.layers.head import Head
from keras_calibration.plots.display import Display
from keras_calibration.plots.rates import check_num_rows, checked_predictions
from keras_calibration.plots.style import GUIDE_COLOR, style_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NUM_POINTS = 512


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

    def __init__(
        self,
        logits: ArrayLike,
        values: ArrayLike,
        knots: ArrayLike,
        knot_values: ArrayLike,
        bin_edges: ArrayLike,
        shares: Mapping[str, ArrayLike],
    ) -> None:
        self.logits, self.values = np.asarray(logits), np.asarray(values)
        self.knots, self.knot_values = np.asarray(knots), np.asarray(knot_values)
        self.bin_edges = np.asarray(bin_edges)
        self.shares = {name: np.asarray(share) for name, share in shares.items()}

    @classmethod
    def from_calibrator(
        cls,
        calibrator: Head,
        logits: ArrayLike,
        labels: ArrayLike | None = None,
        *,
        sample_weight: ArrayLike | None = None,
        num_bins: int = 60,
    ) -> Self:
        """Computes the curve and the histogram.

        Args:
            calibrator: A head of one logit a row that reads no features. For another head, pass
                `head.calibrator`.
            logits: Logits of the rows, shape `(n,)` or `(n, 1)`. Infinite ones are left out.
            labels: Labels, 0 or 1, of the same rows. Without them, there is one histogram of all
                rows.
            sample_weight: Non-negative weights of the rows; None for ones.
            num_bins: Number of bins, at least 1.

        Returns:
            The display, not yet drawn.

        Raises:
            ValueError: If the calibrator is of another kind, arrays differ in length, a value is
                out of range, or no logit is finite.

        Example:
            >>> from keras_calibration.layers import ILPS
            >>> display = CalibrationMapDisplay.from_calibrator(ILPS(num_knots=3), [-2.0, 0.0, 1.0])
            >>> display.knots.round(2), display.bin_edges[[0, -1]]
            (array([-1.1,  0. ,  1.1]), array([-2.,  1.]))
        """
        if getattr(calibrator, "feature_names", None) != ():
            raise ValueError(
                "Argument `calibrator` must be a head that reads no features, such as ILPS. "
                f"Received: calibrator={calibrator!r}. For another head, pass head.calibrator."
            )
        calibrator.check_logits((None, 1))
        if num_bins < 1:
            raise ValueError(
                f"Argument `num_bins` must be at least 1. Received: num_bins={num_bins}."
            )
        warn_of_other_order(logits=logits, labels=labels, sample_weight=sample_weight)
        rows = numbers_of(logits, "Logits").astype(np.float64).reshape(-1)
        groups = np.zeros(rows.size) if labels is None else labels
        flat, _, weights = checked_predictions(groups, {}, sample_weight)
        check_num_rows("logits", rows, flat.size)
        if (numbers := rows_that_count(weights)) is not None:
            rows = rows[numbers]
        finite = np.isfinite(rows)
        if np.isnan(rows).any() or not finite.any():
            raise ValueError(
                "Argument `logits` must hold at least one finite value and no NaN. Received: "
                f"{np.isnan(rows).sum()} NaN and {finite.sum()} finite values."
            )
        weights = np.ones(rows.size) if weights is None else weights
        edges = np.histogram_bin_edges(rows[finite], num_bins)
        named = {"rows": finite}
        if labels is not None:
            named = {"negatives": finite & (flat == 0.0), "positives": finite & (flat == 1.0)}
        shares = {}
        for name, chosen in named.items():
            mass = np.histogram(rows[chosen], edges, weights=weights[chosen])[0]
            shares[name] = mass / max(mass.sum(), np.finfo(np.float64).tiny)
        knots = _knots_of(calibrator)
        inside = knots[(knots > edges[0]) & (knots < edges[-1])]
        # Includes the knots, where the curve bends.
        at = np.unique(np.r_[np.linspace(edges[0], edges[-1], _NUM_POINTS), inside])
        return cls(at, _curve(calibrator, at), knots, _curve(calibrator, knots), edges, shares)

    def figsize(self) -> tuple[float, float]:
        """Width and height of a new figure, in inches."""
        return (5.2, 5.0)

    def draw(self, ax: Axes) -> None:
        """Draws on the given Matplotlib axes."""
        ends = self.logits[[0, -1]]
        ax.plot(ends, ends, color=GUIDE_COLOR, linewidth=1.0, label="identity")
        ax.plot(self.logits, self.values, color=style_of(1).color, linewidth=1.6, label="η(l)")
        if self.knots.size:
            ax.plot(
                self.knots,
                self.knot_values,
                color=style_of(1).color,
                marker="o",
                markersize=4.0,
                linestyle="none",
                label="knots",
            )
        seen = (self.knots >= ends[0]) & (self.knots <= ends[1])
        heights = np.r_[ends, self.values, self.knot_values[seen]]
        heights = heights[np.isfinite(heights)]
        margin = 0.03 * np.ptp(ends)
        # The lowest quarter is for the histogram.
        height = np.ptp(heights)
        ax.set(
            xlim=(ends[0] - margin, ends[1] + margin),
            ylim=(heights.min() - 0.4 * height, heights.max() + 0.05 * height),
            xlabel="logit",
            ylabel="calibrated logit",
            title="Calibration map",
        )
        below = ax.inset_axes((0.0, 0.0, 1.0, 0.25), sharex=ax)
        below.set_axis_off()
        for index, (name, share) in enumerate(self.shares.items()):
            color = style_of(index).color
            below.stairs(share, self.bin_edges, fill=True, color=color, alpha=0.5, label=name)
            below.stairs(share, self.bin_edges, color=color)
        below.set_ylim(0.0, None)
        handles = [*ax.get_legend_handles_labels()[0], *below.get_legend_handles_labels()[0]]
        ax.legend(handles=handles, loc="upper left", frameon=False)


def _knots_of(calibrator: Head) -> NDArray[np.float64]:
    get_knots = getattr(calibrator, "get_knots", None)
    return np.asarray(get_knots() if get_knots else [], np.float64)


def _curve(calibrator: Head, logits: NDArray[np.float64]) -> NDArray[np.float64]:
    return ops.convert_to_numpy(calibrator(logits)).astype(np.float64).reshape(-1)
