"""Scored logs, CSV or Parquet, in batches: labels, predictions, ids of fields and of periods."""

import datetime
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from keras_calibration.scoring.parquet import ParquetBatches, read_parquet

PERIODS = ("hour", "day", "week", "month")
# The distinct values of a field that are told apart; those that come later share "other".
LARGEST_NUM_VALUES = 10_000
_DAY = 24 * 60 * 60
_NAN = float("nan")


class FieldValues:
    """The values of a field in the order of their first appearance: value → id.

    Args:
        largest_num_values: Values after these get the id -1, "other".

    Example:
        >>> values = FieldValues(2)
        >>> values(np.array(["de", "fr"])), values(np.array(["it", "de"]))
        (array([0, 1]), array([-1,  0]))
        >>> values.names
        ['de', 'fr']
    """

    def __init__(self, largest_num_values: int = LARGEST_NUM_VALUES) -> None:
        self.largest_num_values = largest_num_values
        self._ids: dict[Any, int] = {}

    def __call__(self, values: Any) -> np.ndarray:
        """Ids (n,) of distinct values (n,)."""
        return np.array([self._id(value) for value in np.asarray(values).tolist()], np.int64)

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def names(self) -> list[str]:
        """The values as text, by id."""
        return [str(value) for value in self._ids]

    def _id(self, value: Any) -> int:
        if value != value:  # NaN is not itself: every one read would be a new value
            value = _NAN
        if value not in self._ids and len(self._ids) == self.largest_num_values:
            return -1
        return self._ids.setdefault(value, len(self._ids))


def period_starts(times: Any, period: str) -> np.ndarray:
    """The beginning of the period of each time, in seconds since 1970, UTC.

    Args:
        times: `datetime` or `date` objects (those with a time zone are moved to UTC), ISO 8601
            texts, or numbers of seconds since 1970 (n,).
        period: One of `PERIODS`; weeks begin on Monday.

    Returns:
        Seconds (n,), int64.

    Raises:
        ValueError: If a value is no time.

    Example:
        >>> [period_name(start, "day") for start in period_starts(["2026-03-07T12:30"], "day")]
        ['2026-03-07']
    """
    seconds = _seconds(np.asarray(times))
    if period in ("hour", "day"):
        length = 3600 if period == "hour" else _DAY
        return seconds // length * length
    if period == "week":
        # 1970 began on a Thursday.
        days = seconds // _DAY
        return (days - (days + 3) % 7) * _DAY
    months = seconds.astype("datetime64[s]").astype("datetime64[M]")
    return months.astype("datetime64[s]").astype(np.int64)


def period_name(start: int, period: str) -> str:
    """The beginning of a period as text.

    Args:
        start: Its beginning, in seconds since 1970.
        period: One of `PERIODS`.

    Example:
        >>> period_name(3600, "hour"), period_name(0, "month")
        ('1970-01-01T01:00', '1970-01')
    """
    unit = {"hour": "m", "month": "M"}.get(period, "D")
    return str(np.datetime64(int(start), "s").astype(f"datetime64[{unit}]"))


def read_log(
    paths: Any,
    probability: str,
    label: str,
    fields: Iterable[str],
    timestamp: str,
    values_of: Callable[[str], Any],
) -> ParquetBatches:
    """Batches of a scored log; `timestamp` is one of their fields.

    Args:
        paths: A file or folder of Parquet or CSV files, a list of files (the first one's name tells
            which), or a `pyarrow.dataset.Dataset`.
        probability: Column of the predicted probabilities.
        label: Column of the labels.
        fields: Columns of the fields.
        timestamp: Column of the times.
        values_of: Column → what turns its distinct values into ids.

    Returns:
        What `scoring.read_parquet` returns.

    Raises:
        ValueError: If there is no such file, a column is missing or is not what it must be.
        ImportError: If pyarrow is not installed.
    """
    columns = [*fields, timestamp]
    if twice := {name for name in columns if [*columns, probability, label].count(name) > 1}:
        raise ValueError(f"Expected each column in one role. Received twice: {sorted(twice)}.")
    lookups = {name: values_of(name) for name in columns}
    return read_parquet(_data_set(paths), label, probability, fields=lookups)


def _data_set(paths: Any) -> Any:
    """CSV files as a data set; what is not CSV as it is."""
    if hasattr(paths, "columns") and hasattr(paths, "iloc"):
        return _data_set_of_frame(paths)
    is_path = isinstance(paths, str | os.PathLike)
    if not is_path and not isinstance(paths, list | tuple):
        return paths
    files = [Path(path) for path in ([paths] if is_path else paths)]
    if absent := [str(path) for path in files if not path.exists()]:
        raise ValueError(f"Received the log {', '.join(absent)}, which is not there.")
    inside = sorted(files[0].rglob("*.csv*")) if files[0].is_dir() else files
    if not inside or ".csv" not in inside[0].suffixes:
        return paths
    from pyarrow import dataset

    source = os.fspath(files[0]) if is_path else list(map(os.fspath, files))
    return dataset.dataset(source, format="csv")


def _data_set_of_frame(frame: Any) -> Any:
    """A data frame of pandas as a data set."""
    try:
        import pyarrow
        from pyarrow import dataset
    except ImportError as error:
        raise ImportError(
            "The log is read by pyarrow, which is not installed: pip install "
            '"keras-calibration[parquet]".'
        ) from error
    return dataset.dataset(pyarrow.Table.from_pandas(frame, preserve_index=False))


def _seconds(times: np.ndarray) -> np.ndarray:
    if times.dtype.kind in "iuf":
        if not np.isfinite(times).all() or (np.abs(times) > 1e11).any():
            raise ValueError(
                "Numbers in the column of times must be seconds since 1970. Received: "
                f"{times.min()} to {times.max()}. Divide milliseconds by 1000."
            )
        return np.floor(times).astype(np.int64)
    if times.dtype.kind in "UOS":
        times = np.array([_without_zone(value) for value in times.tolist()], "datetime64[s]")
    if times.dtype.kind != "M":
        raise ValueError(
            "The column of times must hold times, dates, ISO 8601 texts or seconds since 1970. "
            f"Received: {times.dtype}."
        )
    return times.astype("datetime64[s]").astype(np.int64)


def _without_zone(value: Any) -> Any:
    """A time in UTC; `numpy` has no zones."""
    if isinstance(value, str):
        try:
            value = datetime.datetime.fromisoformat(value)
        except ValueError as error:
            raise ValueError(
                f"The column of times must hold ISO 8601 texts. Received: {value!r}; expected "
                "2026-03-07 or 2026-03-07T12:30:00Z, for example."
            ) from error
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return value.astimezone(datetime.UTC).replace(tzinfo=None)
    if not isinstance(value, datetime.date):
        raise ValueError(f"The column of times must hold times. Received: {value!r}.")
    return value
