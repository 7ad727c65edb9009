"""FieldDisplay: the calibration error of each value of a field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from calibration_records._check import integer
from calibration_records._display import GUIDE_COLOR, STYLES, Display, as_label
from keras_calibration._rows.scored_rows import scored_rows
from keras_calibration.plots.rates import Rates, rates_by_value

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass
class FieldDisplay(Display):
    """Observed minus predicted rate of the most frequent values of a field.

    The bar of a field value is `Σ w (y - p) / Σ w` over its rows: above 0, the predictions are too
    low. Its line is the 95 % Wilson interval of the observed rate, minus the predicted rate: an
    interval without 0 shows a bias that chance can hardly explain. Field-ECE is the mean absolute
    length of the bars of all values, weighted by rows. Create it with `from_predictions`.

    Args:
        field_name: Name of the field.
        value_names: Names of the values shown, those with most rows first.
        curves: Name of each set of probabilities → the `Rates` of these values.

    Example:
        >>> display = FieldDisplay.from_predictions(
        ...     labels=[1, 0, 1, 0],
        ...     predictions={"before": [0.2, 0.2, 0.5, 0.5], "after": [0.5, 0.5, 0.5, 0.5]},
        ...     field=["tablet", "tablet", "tablet", "phone"],
        ...     field_name="device",
        ... )
        >>> display.value_names
        ('tablet', 'phone')
        >>> figure = display.plot().figure_
        >>> import matplotlib.pyplot as plt
        >>> plt.close(figure)

    Reference:
        Pan et al., *Field-aware Calibration*, WWW 2020, eq. 5 (the errors).
    """

    field_name: str
    value_names: tuple[str, ...]
    curves: Mapping[str, Rates]

    def __post_init__(self) -> None:
        self.figsize = (5.6, max(3.0, 1.4 + 0.28 * len(self.value_names)))

    @classmethod
    @np.errstate(under="ignore")
    def from_predictions(
        cls,
        labels: ArrayLike,
        predictions: ArrayLike | Mapping[str, ArrayLike],
        field: ArrayLike,
        *,
        field_name: str = "field",
        num_values_shown: int = 12,
        sample_weight: ArrayLike | None = None,
        from_logits: bool = False,
        weights_are: str = "importance",
    ) -> FieldDisplay:
        """Computes the rates of the most frequent values.

        Args:
            labels: Labels, 0 or 1, shape `(n,)` or `(n, 1)`.
            predictions: Probabilities of the same rows, or name → probabilities, for
                example `{"before": ..., "after": ...}`.
            field: Field value of each row, numbers or strings.
            field_name: Name of the field.
            num_values_shown: Largest number of values to show, at least 1.
            sample_weight: Non-negative weights of the rows; None for ones.
            from_logits: Whether the predictions are logits.
            weights_are: `"importance"`, known up to a common factor, or `"counts"` of rows.

        Returns:
            The display, not yet drawn.

        Raises:
            ValueError: If arrays differ in length, or values are out of range.

        Example:
            >>> display = FieldDisplay.from_predictions([0, 1, 1], [0.2, 0.3, 0.7], [7, 7, 3])
            >>> display.value_names, display.curves["predicted"].num_rows
            (('7', '3'), array([2, 1]))
        """
        integer("num_values_shown", num_values_shown, 1)
        rows = scored_rows(labels, predictions, sample_weight, {field_name: field}).probabilities(
            from_logits, True
        )
        return cls(field_name, *rates_by_value(rows, field_name, num_values_shown, weights_are))

    def draw(self, ax: Axes) -> None:
        """Draws on the given Matplotlib axes."""
        places = np.arange(len(self.value_names))
        num_curves = len(self.curves)
        height = 0.76 / num_curves
        for index, (name, rates) in enumerate(self.curves.items()):
            # The bars of a value, one for each set of probabilities, are centred on its place.
            ax.barh(
                places + (index - (num_curves - 1) / 2.0) * height,
                rates.observed - rates.predicted,
                height,
                xerr=rates.interval_lengths(),
                color=STYLES[index % len(STYLES)]["color"],
                label=as_label(name),
            )
        ax.axvline(0.0, color=GUIDE_COLOR, linewidth=1.0)
        named = zip(self.value_names, next(iter(self.curves.values())).num_rows, strict=True)
        ax.set_yticks(places, [f"{as_label(name)}  ({rows:,})" for name, rows in named])
        ax.set(ylim=(len(places) - 0.4, -0.6), ylabel=f"{as_label(self.field_name)} (rows)")
        ax.set_xlabel("observed − predicted rate (95 % interval)")
        if num_curves > 1:
            # Bars may be anywhere in the axes, so the legend is placed above.
            ax.legend(ncols=num_curves, loc="lower center", bbox_to_anchor=(0.5, 1.0))
