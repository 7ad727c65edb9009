"""Reads a scored log (CSV or Parquet) in batches of labels, predictions, field ids and times."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from keras_calibration.scoring.parquet import Lookup, ParquetBatches, Paths, read_parquet

if TYPE_CHECKING:
    import pandas
    import pyarrow.dataset

# Distinct values of a field that are kept apart; later ones are counted as "other".
LARGEST_NUM_VALUES = 10_000
_NAN = float("nan")


class FieldValues:
    """Numbers the values of a field in the order of first appearance; -1 is "other".

    Example:
        >>> values = FieldValues(2)
        >>> values(np.array(["de", "fr"])), values(np.array(["it", "de"]))
        (array([0, 1]), array([-1,  0]))
        >>> values.names
        ['de', 'fr']
    """

    def __init__(self, largest_num_values: int = LARGEST_NUM_VALUES) -> None:
        self.largest_num_values = largest_num_values
        self._ids: dict[Hashable, int] = {}

    def __call__(self, values: ArrayLike) -> np.ndarray:
        """The ids of distinct values, shape (n,)."""
        return np.array([self._id(value) for value in np.asarray(values).tolist()], np.int64)

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def names(self) -> list[str]:
        """The values as text, in the order of their ids."""
        return [str(value) for value in self._ids]

    def _id(self, value: Hashable) -> int:
        if value != value:  # NaN != NaN: without this, each NaN would be a new value
            value = _NAN
        if value not in self._ids and len(self._ids) == self.largest_num_values:
            return -1
        return self._ids.setdefault(value, len(self._ids))


def read_log(
    paths: Paths | pandas.DataFrame,
    probability: str | Sequence[str],
    label: str,
    fields: Iterable[str],
    timestamp: str,
    values_of: Callable[[str], Lookup],
    label_lookup: Lookup = None,
) -> ParquetBatches:
    """Batches of a scored log; `timestamp` is one of their fields, `values_of` maps to ids."""
    columns = [*fields, timestamp]
    probabilities = [probability] if isinstance(probability, str) else list(probability)
    named = [*columns, *probabilities, label]
    if twice := {name for name in named if named.count(name) > 1}:
        raise ValueError(f"Each column must be named only once. Received twice: {sorted(twice)}.")
    return read_parquet(
        _data_set(paths),
        label=label,
        probability=probability,
        fields={name: values_of(name) for name in columns},
        label_lookup=label_lookup,
    )


def _data_set(paths: Any) -> Paths:
    """CSV files and data frames as a `pyarrow.dataset.Dataset`; anything else unchanged."""
    if hasattr(paths, "columns") and hasattr(paths, "iloc"):
        return _data_set_of_frame(paths)
    is_path = isinstance(paths, str | os.PathLike)
    if not is_path and not isinstance(paths, list | tuple):
        return paths
    files = [Path(path) for path in ([paths] if is_path else paths)]
    if absent := [str(path) for path in files if not path.exists()]:
        raise ValueError(f"Argument `log` must name existing files. Received: {', '.join(absent)}.")
    inside = sorted(files[0].rglob("*.csv*")) if files[0].is_dir() else files
    if not inside or ".csv" not in inside[0].suffixes:
        return paths
    from pyarrow import dataset

    source = os.fspath(files[0]) if is_path else list(map(os.fspath, files))
    return dataset.dataset(source, format="csv")


def _data_set_of_frame(frame: pandas.DataFrame) -> pyarrow.dataset.Dataset:
    """A pandas data frame as a `pyarrow.dataset.Dataset`."""
    try:
        import pyarrow
        from pyarrow import dataset
    except ImportError as error:
        raise ImportError(
            "Reading a log requires pyarrow. Install it with `pip install "
            '"keras-calibration[parquet]"`.'
        ) from error
    return dataset.dataset(pyarrow.Table.from_pandas(frame, preserve_index=False))
