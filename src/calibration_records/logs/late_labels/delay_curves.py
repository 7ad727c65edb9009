"""DelayCurves: the shares of positives that have their label at an age, as engines use them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from calibration_records._check import damaged
from calibration_records.logs.query import Lookup

if TYPE_CHECKING:
    import pyarrow

FORMAT = "keras_calibration.LabelDelay"
# Tables on the connection of a log: the curve of each field value, and the steps of the curves.
_VALUES, _CURVES, _STEPS = (f"keras_calibration_{name}" for name in ("values", "curves", "steps"))


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
        >>> curves.tables()["keras_calibration_curves"].column("share").to_pylist()
        [1.0]
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

    def tables(self) -> dict[str, pyarrow.Table]:
        """Name → table: the number of each value's curve, the curves by step, and their steps."""
        import pyarrow

        num_curves, num_steps = self.shares.shape
        rise = np.diff(self.shares, axis=1, append=self.shares[:, -1:])
        rise *= not self.has_all_delays
        before = np.concatenate([np.zeros((num_curves, 1)), (self.shares + rise)[:, :-1]], axis=1)
        values = {"value": self.values.tolist(), "curve": np.arange(len(self.values))}
        curves = {
            "curve": np.repeat(np.arange(num_curves), num_steps),
            "place": np.tile(np.arange(num_steps) + 1, num_curves),
            "start": np.tile(self.grid, num_curves),
            "width": np.tile(np.append(np.diff(self.grid), 1.0), num_curves),
            "share": self.shares.ravel(),
            "rise": rise.ravel(),
            "before": before.ravel(),
        }
        value_type = pyarrow.schema({"value": pyarrow.string(), "curve": pyarrow.int64()})
        return {
            _VALUES: pyarrow.table(values, value_type),
            _CURVES: pyarrow.table(curves),
            _STEPS: self._steps("age").table(),
        }

    def with_curve(self, rows: str) -> str:
        """Rows with the number of the curve of their `delay_value`; the last is that of others."""
        return (
            f"SELECT rows.*, coalesce(own.curve, {len(self.values)}) AS curve "
            f"FROM ({rows}) AS rows LEFT JOIN {_VALUES} AS own ON own.value = delay_value"
        )

    def with_share(self, rows: str, age: str, name: str, before: str) -> str:
        """Rows with the share of their curve at an age, and just before; 0 where there is none."""
        share = f"own.share + own.rise * ({age} - own.start) / own.width"
        just_before = f"CASE WHEN {age} = own.start THEN own.before ELSE {share} END"
        return (
            f"SELECT rows.* EXCLUDE ({_STEPS}), coalesce({share}, 0.0) AS {name}, "
            f"coalesce({just_before}, 0.0) AS {before} "
            f"FROM ({self._steps(age).sql(rows)}) AS rows "
            f"LEFT JOIN {_CURVES} AS own ON own.curve = rows.curve AND own.place = {_STEPS}"
        )

    def _steps(self, age: str) -> Lookup:
        return Lookup(_STEPS, self.grid, age)


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
