"""DelayCurves: the shares of positives that have their label at an age, as engines use them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from calibration_records._check import damaged

if TYPE_CHECKING:
    import pyarrow

FORMAT = "keras_calibration.LabelDelay"
# The table of the curves, on the connection of a log.
CURVES = "keras_calibration_curves"


@dataclass(frozen=True, eq=False)
class DelayCurves:
    """The curves of a fitted `LabelDelay`: plain arrays, which any worker can read.

    Args:
        grid: Ages (steps,) in days, in ascending order.
        shares: Shares of the positives that have their label at these ages (values + 1, steps); the
            last row is that of all values together.
        values: Field values with a curve of their own (values,), as texts.
        horizon: The longest delay of a positive, in days.
        has_all_delays: Whether shares are constant between ages; otherwise they rise evenly.
        min_share: Rows with a smaller share say too little, and are not used.

    Example:
        >>> curves = DelayCurves(np.array([1.0]), np.array([[1.0]]), np.zeros(0, str), 1.0, True, 0)
        >>> curves.table().to_pylist()
        [{'value': None, 'step': 0, 'start': 1.0, 'width': 1.0, 'share': 1.0, 'rise': 0.0}]
    """

    grid: np.ndarray
    shares: np.ndarray
    values: np.ndarray
    horizon: float
    has_all_delays: bool
    min_share: float

    @classmethod
    def of(cls, fitted: Mapping[str, Any], min_share: float, has_field: bool) -> DelayCurves:
        """The curves of what a LabelDelay has fitted.

        Raises:
            ValueError: If it is not fitted to dates, or not by field value and `has_field`.
        """
        if not fitted["in_days"]:
            raise ValueError(
                "A log has dates, and the delays must be fitted to dates. Received: a LabelDelay "
                "that is fitted to numbers. Convert the times before `fit`, or call `fit_log`."
            )
        if has_field and not fitted["has_field"]:
            raise ValueError(
                "The delays must be fitted by field value if the log names a `delay_field`. "
                "Received: a LabelDelay that is fitted without a field."
            )
        return cls(
            grid=fitted["grid"],
            shares=fitted["shares"] if has_field else fitted["shares"][-1:],
            values=(fitted["values"] if has_field else fitted["values"][:0]).astype(np.str_),
            horizon=float(fitted["horizon"]),
            has_all_delays=bool(fitted["has_all_delays"]),
            min_share=min_share,
        )

    def table(self) -> pyarrow.Table:
        """The curves by value and step of the age; the value of the curve of the whole is NULL."""
        import pyarrow

        num_curves, num_steps = self.shares.shape
        last = self.shares[:, -1:]
        rise = np.diff(self.shares, axis=1, append=last) * (not self.has_all_delays)
        width = np.append(np.diff(self.grid), 1.0)
        return pyarrow.table(
            {
                "value": pyarrow.array([*self.values.tolist(), None], pyarrow.string()).take(
                    pyarrow.array(np.repeat(np.arange(num_curves), num_steps))
                ),
                "step": np.tile(np.arange(num_steps), num_curves),
                "start": np.tile(self.grid, num_curves),
                "width": np.tile(width, num_curves),
                "share": self.shares.ravel(),
                "rise": rise.ravel(),
            }
        )

    def with_share(self, rows: str, name: str, age: str = "age", side: str = "right") -> str:
        """Rows with the share at an age as a new column, by their `delay_value`.

        The side "left" gives the share just before the age.
        """
        step = f"SELECT *, {places(self.grid, age, side)} - 1 AS step FROM ({rows})"
        own, whole = (
            f"{curve}.share + {curve}.rise * ({age} - {curve}.start) / {curve}.width"
            for curve in ("own", "whole")
        )
        return (
            f"SELECT rows.* EXCLUDE (step), coalesce({own}, {whole}, 0.0) AS {name} "
            f"FROM ({step}) AS rows "
            f"LEFT JOIN {CURVES} AS own ON own.value = delay_value AND own.step = rows.step "
            f"LEFT JOIN {CURVES} AS whole ON whole.value IS NULL AND whole.step = rows.step"
        )


def read_label_delay(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments of a LabelDelay and what it has fitted, from the file that `save` wrote.

    Raises:
        ValueError: If the file is another one.
    """
    try:
        content = json.loads(Path(path).read_bytes())
        if content["format"] != FORMAT:
            raise KeyError(content["format"])
        fitted = {
            name: np.array(value) if isinstance(value, list) else value
            for name, value in content["fitted"].items()
        }
        return dict(content["config"]), fitted
    except (ValueError, KeyError, TypeError) as error:
        raise damaged("path", path, "LabelDelay.save") from error


def places(grid: Sequence[float] | np.ndarray, column: str, side: str) -> str:
    """Expression of `np.searchsorted(grid, column, side)`.

    Example:
        >>> places([1.0, 2.0], "age", "right")
        'CASE WHEN age < 2.0 THEN CASE WHEN age < 1.0 THEN 0 ELSE 1 END ELSE 2 END'
    """
    comparison = "<" if side == "right" else "<="

    def between(low: int, high: int) -> str:
        if low == high:
            return str(low)
        middle = (low + high) // 2
        below = f"{column} {comparison} {float(grid[middle])!r}"
        return f"CASE WHEN {below} THEN {between(low, middle)} ELSE {between(middle + 1, high)} END"

    return between(0, len(grid))
