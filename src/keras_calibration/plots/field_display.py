"""FieldDisplay: the calibration error of each value of a field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibration_records._columns import warn_of_other_order
from keras_calibration._rows.columns import as_array
from keras_calibration._rows.weights import rows_that_count
from keras_calibration._solvers.segments import distinct_values
from keras_calibration.plots.display import Display
from keras_calibration.plots.rates import Rates, check_num_rows, checked_predictions, group_rates
from keras_calibration.plots.style import GUIDE_COLOR, style_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
        ...     field=[1, 1, 1, 0],
        ...     field_name="device",
        ...     vocabulary=("phone", "tablet"),
        ... )
        >>> display.value_names
        ('tablet', 'phone')
        >>> figure = display.plot().figure_
        >>> import matplotlib.pyplot as plt
        >>> plt.close(figure)

    Reference:
        Pan et al., *Field-aware Calibration*, WWW 2020, eq. 5 (the errors).
    """

    def __init__(
        self, field_name: str, value_names: Sequence[str], curves: Mapping[str, Rates]
    ) -> None:
        self.field_name = field_name
        self.value_names = tuple(value_names)
        self.curves = dict(curves)

    @classmethod
    def from_predictions(
        cls,
        labels: ArrayLike,
        predictions: ArrayLike | Mapping[str, ArrayLike],
        field: ArrayLike,
        *,
        field_name: str = "field",
        vocabulary: Sequence[str] | None = None,
        num_values_shown: int = 12,
        sample_weight: ArrayLike | None = None,
        from_logits: bool = False,
    ) -> FieldDisplay:
        """Computes the rates of the most frequent values.

        Args:
            labels: Labels, 0 or 1, shape `(n,)` or `(n, 1)`.
            predictions: Probabilities of the same rows, or name → probabilities, for
                example `{"before": ..., "after": ...}`.
            field: Field value of each row, numbers or strings. With `vocabulary`: ids, whole
                numbers from 0.
            field_name: Name of the field.
            vocabulary: Name of each id. None to show the values themselves.
            num_values_shown: Largest number of values to show, at least 1.
            sample_weight: Non-negative weights of the rows; None for ones.
            from_logits: Whether the predictions are logits.

        Returns:
            The display, not yet drawn.

        Raises:
            ValueError: If arrays differ in length, values are out of range, or an id has no name.

        Example:
            >>> display = FieldDisplay.from_predictions([0, 1, 1], [0.2, 0.3, 0.7], [7, 7, 3])
            >>> display.value_names, display.curves["predicted"].num_rows
            (('7', '3'), array([2, 1]))
        """
        flat_labels, named, weights = checked_predictions(
            labels, predictions, sample_weight, from_logits
        )
        warn_of_other_order(labels=labels, field=field)
        ids = _check_ids(field, flat_labels.size, field_name, vocabulary, weights)
        if num_values_shown < 1:
            raise ValueError(
                "Argument `num_values_shown` must be at least 1. "
                f"Received: num_values_shown={num_values_shown}."
            )
        values, groups = distinct_values(ids)
        counts = np.bincount(groups, None if weights is None else weights > 0, len(values))
        shown = np.argsort(-counts, kind="stable")[:num_values_shown]
        curves = {}
        for name, predicted in named.items():
            rates = group_rates(flat_labels, predicted, groups, len(values), weights)
            curves[name] = Rates._make(array[shown] for array in rates)
        names = [values[value] for value in shown]
        if vocabulary is not None:
            names = [vocabulary[int(name)] for name in names]
        return cls(field_name, names, curves)

    def figsize(self) -> tuple[float, float]:
        """Width and height of a new figure, in inches."""
        return (5.6, max(3.0, 1.4 + 0.28 * len(self.value_names)))

    def draw(self, ax: Axes) -> None:
        """Draws on the given Matplotlib axes."""
        num_values, num_curves = len(self.value_names), len(self.curves)
        height = 0.76 / num_curves
        for index, (name, rates) in enumerate(self.curves.items()):
            style = style_of(index)
            difference = rates.observed - rates.predicted
            ax.barh(
                np.arange(num_values) + (index - (num_curves - 1) / 2.0) * height,
                difference,
                height=height,
                xerr=rates.interval_lengths(),
                label=name,
                color=style.color,
                ecolor="black",
                error_kw={"elinewidth": 0.9, "capsize": 1.5},
            )
        ax.axvline(0.0, color=GUIDE_COLOR, linewidth=1.0)
        num_rows = next(iter(self.curves.values())).num_rows
        ax.set(
            yticks=np.arange(num_values),
            yticklabels=[
                f"{name}  ({rows:,})" for name, rows in zip(self.value_names, num_rows, strict=True)
            ],
            ylim=(num_values - 0.4, -0.6),
            ylabel=f"{self.field_name} (rows)",
            xlabel="observed − predicted rate (95 % interval)",
        )
        ax.set_title(
            f"Bias of the most frequent values of {self.field_name}",
            pad=24 if num_curves > 1 else 6,
        )
        ax.tick_params(axis="y", length=0)
        if num_curves > 1:
            # Bars may be anywhere in the axes, so the legend is placed under the title.
            ax.legend(
                loc="lower center",
                bbox_to_anchor=(0.5, 1.0),
                ncols=num_curves,
                frameon=False,
                borderaxespad=0.1,
            )


def _check_ids(
    field_ids: ArrayLike,
    num_rows: int,
    field_name: str,
    vocabulary: Sequence[str] | None,
    weights: NDArray[np.float64] | None,
) -> NDArray[np.generic]:
    """The field values (n,); with a vocabulary, ids that all have a name."""
    ids = as_array(field_ids, repr(field_name)).reshape(-1)
    check_num_rows(field_name, ids, num_rows)
    if (numbers := rows_that_count(weights)) is not None:
        ids = ids[numbers]
    if vocabulary is None:
        return ids
    if not np.issubdtype(ids.dtype, np.integer) or ids.min() < 0:
        raise ValueError(
            "Argument `field` must hold integers of at least 0 if `vocabulary` is given. Received: "
            f"{field_name!r} of dtype {ids.dtype} with the minimum {ids.min()}."
        )
    if ids.max() >= len(vocabulary):
        raise ValueError(
            f"Argument `vocabulary` must have a name for every id. Received: {len(vocabulary)} "
            f"names for {field_name!r}, whose largest id is {ids.max()}."
        )
    return ids.astype(np.int64)
